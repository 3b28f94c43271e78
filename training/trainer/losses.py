"""The loss of a training step: the cross-entropy and what is added to it, and changes to a batch before it.

Evaluation always uses the plain cross-entropy, so that losses and perplexities of different runs are comparable.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from accelerate.utils import extract_model_from_parallel
from torch import nn

from vanillaformer.configuration import VanillaConfig
from vanillaformer.console import limits
from vanillaformer.console.limits import Limit, check_limits, option
from vanillaformer.data.targets import PAIRS, targets_of
from vanillaformer.modeling.heads import IGNORE_INDEX, smoothed_loss

Inputs = dict[str, Any]
Count = torch.Tensor | int
Decay = Literal["none", "linear", "exponential", "inverse_sigmoid"]
STEPS: Limit = ("a number of steps, at least 1", lambda k: k >= 1)
# The probability of feeding the gold token after `step` steps (Bengio et al. 2015, section 2.4), and what k has to be
DECAYS: dict[str, tuple[Callable[[float, float], float], Limit]] = {
    "none": (lambda step, k: 1.0, limits.FINITE),
    "linear": (lambda step, k: 1 - step / k, STEPS),
    "exponential": (lambda step, k: k**step, ("a number between 0 and 1, as 0.9999", lambda k: 0 < k < 1)),
    "inverse_sigmoid": (lambda step, k: k / (k + math.exp(min(step / k, 700.0))), STEPS),
}


@dataclass
class LossArguments:
    """Terms of the loss in addition to the cross-entropy."""

    HELP_GROUP = "Loss"

    # Options of some tasks, with their values in all others
    scheduled_sampling = cast(Decay, "none")
    scheduled_sampling_k = 0.0
    scheduled_sampling_floor = 0.0
    guided_attention = 0.0
    guided_attention_sigma = 0.2
    token_dropout = 0.0

    r_drop: float = option(0.0, "R-Drop (with dropout): weight of the divergence", limit=limits.NOT_NEGATIVE)

    def check(self) -> None:
        check_limits(self, {"scheduled_sampling_k": DECAYS[self.scheduled_sampling][1]})


@dataclass
class ScheduledSamplingArguments(LossArguments):
    """Arguments of scheduled sampling (Bengio et al. 2015; Mihaylova and Martins 2019)."""

    scheduled_sampling: Decay = option("none", "Scheduled sampling: decay of the gold inputs")
    scheduled_sampling_k: float = option(0.0, "k: 1 - step/k, k^step or k/(k + exp(step/k))")
    scheduled_sampling_floor: float = option(
        0.0, "Scheduled sampling: minimum share of gold inputs", limit=limits.PROBABILITY
    )


@dataclass
class GuidedAttentionArguments(LossArguments):
    """Arguments of the loss of attention off the diagonal (Tachibana et al. 2018)."""

    guided_attention: float = option(0.0, "Guided attention: weight of its loss, e.g. 1.0", limit=limits.NOT_NEGATIVE)
    guided_attention_sigma: float = option(0.2, "Guided attention: width of the diagonal", limit=limits.POSITIVE)


@dataclass
class TokenDropoutArguments(LossArguments):
    """Arguments of hiding tokens from attention and pooling (word dropout, Iyyer et al. 2015)."""

    token_dropout: float = option(0.0, "Probability of hiding a token (word dropout)", limit=limits.BELOW_ONE)


# ----------------------------------------------------------------------------------------------------------- the loss
def training_loss(
    model: nn.Module, inputs: Inputs, args: Any, *, items: Count, second_items: Count | None = None
) -> torch.Tensor:
    """Return the loss of a batch with `labels`: its cross-entropy and the terms that training arguments add.

    Sums are divided by `items`, the number of targets in all batches of the step; `second_items` is that of a second
    loss, of pairs. There is one forward pass, for R-Drop with each row twice.
    """
    if args.r_drop:
        inputs = {name: torch.cat([each, each]) if torch.is_tensor(each) else each for name, each in inputs.items()}
        items, second_items = 2 * items, second_items and 2 * second_items
    outputs = cross_entropy(model, inputs, args, items, second_items)
    loss = outputs["loss"]
    if args.guided_attention:
        masks = inputs["labels"], inputs["attention_mask"]
        penalty = guided_attention_loss(outputs["cross_attentions"], *masks, args.guided_attention_sigma)
        loss = loss + args.guided_attention * penalty / items
    if args.r_drop:
        loss = loss + args.r_drop * divergence(outputs["logits"]) / 2 / items
    return loss


def cross_entropy(model: nn.Module, inputs: Inputs, args: Any, items: Count, pairs: Count | None) -> dict[str, Any]:
    """Return the outputs of the model, with `Σ CE(p, y) / items` of smoothed labels as `loss`.

    The loss of native models and of tags is computed by their class: its cross-entropy is replaced by the smoothed
    one, and other terms are kept. The `logits` for R-Drop are those of positions with a target, (N, V).
    """
    labels = inputs["labels"]
    inner: Any = extract_model_from_parallel(model, keep_torch_compile=False)
    if getattr(getattr(inner, "config", None), "problem_type", None) in ("regression", "multi_label_classification"):
        outputs = model(**inputs)  # the mean over the numbers, or over the labels
        return {**outputs, "loss": outputs["loss"] * labels.numel() / items}
    wanted: dict[str, Any] = {"output_attentions": True} if args.guided_attention else {}
    smoothing: dict[str, Any] = {"label_smoothing": args.label_smoothing_factor, "num_items_in_batch": items}
    if labels.ndim < 2:
        outputs = model(**without_labels(inputs), **wanted)
        return {**outputs, "loss": smoothed_loss(outputs["logits"], labels, **smoothing)}
    if isinstance(inner.config, VanillaConfig) and inner.loss_type != "ForTokenClassification":
        wanted |= {} if pairs is None else {"num_pairs_in_batch": pairs}
        outputs = model(**inputs, **wanted, **smoothing, labeled_only=True, return_logits=bool(args.r_drop))
        return {**outputs, "logits": outputs.get("logits", outputs.get("prediction_logits"))}
    outputs = model(**inputs, **wanted)
    targets = targets_of(inner, labels)
    labeled = targets != IGNORE_INDEX
    logits = outputs.get("logits", outputs.get("prediction_logits"))[labeled]
    if not len(logits):  # the mean over no target is not a number
        return {**outputs, "logits": logits, "loss": logits.sum()}
    share = len(logits) / items
    loss = outputs["loss"] * share
    if pairs is not None:  # whose mean is not over tokens
        classes = inputs[PAIRS].view(-1)
        of_pairs = nn.functional.cross_entropy(outputs["seq_relationship_logits"], classes)
        loss = loss + of_pairs * ((classes != IGNORE_INDEX).sum() / pairs - share)
    if args.label_smoothing_factor:
        loss = loss + smoothed_loss(logits, targets[labeled], **smoothing)
        loss = loss - smoothed_loss(logits, targets[labeled], num_items_in_batch=items)
    return {**outputs, "logits": logits, "loss": loss}


def divergence(logits: torch.Tensor) -> torch.Tensor:
    """Return `Σ KL(p‖q) + KL(q‖p)` of two passes p and q with different dropout, concatenated in (2 N, V).

    `training_loss` divides both cross-entropies and half of this by 2 N: half of R-Drop's loss, as large as one
    cross-entropy.
    """
    first, second = logits.float().log_softmax(dim=-1).chunk(2)
    return ((first.exp() - second.exp()) * (first - second)).sum()  # Σ (p - q)(log p - log q)


def guided_attention_loss(
    attentions: Sequence[torch.Tensor], labels: torch.Tensor, source_mask: torch.Tensor, sigma: float
) -> torch.Tensor:
    """Return `Σ_t mean_s A_ts W_ts` over the real targets t and sources s, averaged over layers and heads.

    `W_ts = 1 - exp(-(t/T - s/S)² / 2σ²)` (Tachibana et al. 2018), with t and s counted from 0 in each sentence of
    lengths T and S; σ is the width of the diagonal as a share of the sentence. Divided by T, it is the paper's mean
    for one sentence. Each layer has attentions (B, H, T, S), for labels (B, T) and a mask of the source (B, S).
    """
    attention = torch.stack([layer.mean(dim=1) for layer in attentions]).mean(dim=0)  # (B, T, S)
    if attention.shape[1] != labels.shape[1]:
        raise ValueError(
            f"guided attention needs a target at each position of the decoder, got {attention.shape[1]} positions "
            f"for {labels.shape[1]} targets"
        )
    attention = attention.to(torch.promote_types(attention.dtype, torch.float32))
    targets, sources = (mask.to(attention) for mask in (labels != IGNORE_INDEX, source_mask))
    distance = relative_positions(targets).unsqueeze(2) - relative_positions(sources).unsqueeze(1)
    weights = (1 - torch.exp(-(distance**2) / (2 * sigma**2))) * targets.unsqueeze(2)
    means = sources / sources.sum(dim=1, keepdim=True).clamp(min=1)
    return (attention * weights * means.unsqueeze(1)).sum()


def relative_positions(mask: torch.Tensor) -> torch.Tensor:
    """Return the position, from 0, of each real token of a mask (B, T), divided by its sentence's length."""
    return (mask.cumsum(dim=1) - 1) / mask.sum(dim=1, keepdim=True).clamp(min=1)


# ------------------------------------------------------------------------------------------------ changes to a batch
def without_labels(inputs: Inputs) -> Inputs:
    return {name: value for name, value in inputs.items() if name != "labels"}


def with_hidden_tokens(inputs: Inputs, rate: float) -> Inputs:
    """Return a batch in which each token but the first of a text is hidden from attention with a probability."""
    if not rate:
        return inputs
    seen = inputs["attention_mask"]
    hidden = torch.rand(seen.shape, device=seen.device) < rate
    hidden = hidden & (inputs.get("position_ids", torch.arange(seen.shape[1], device=seen.device)) > 0)
    return {**inputs, "attention_mask": seen.masked_fill(hidden, 0)}


def gold_probability(arguments: LossArguments, step: int) -> float:
    decay, _ = DECAYS[arguments.scheduled_sampling]
    return max(arguments.scheduled_sampling_floor, decay(step, arguments.scheduled_sampling_k))


def scheduled_sampling_inputs(model: nn.Module, inputs: Inputs, gold: float) -> Inputs:
    """Return a batch whose decoder inputs are, with probability `1 - gold` each, the model's predictions.

    A first pass, without gradient, predicts the most likely token at every position from the gold ones before it; the
    second pass, with the loss, is the caller's. The start and tokens without a loss do not change.
    """
    with torch.no_grad():
        logits = model(**without_labels(inputs))["logits"]
    name = "decoder_input_ids" if "decoder_input_ids" in inputs else "input_ids"
    # The token at t was predicted at t - 1; a decoder's label of it stands at t, an encoder-decoder's at t - 1.
    labels = inputs["labels"][:, :-1] if name == "decoder_input_ids" else inputs["labels"][:, 1:]
    fed, predicted = inputs[name][:, 1:], logits[:, :-1].argmax(dim=-1)
    gold_tokens = (torch.rand(fed.shape, device=fed.device) < gold) | (labels == IGNORE_INDEX)
    return {**inputs, name: torch.cat([inputs[name][:, :1], torch.where(gold_tokens, fed, predicted)], dim=1)}
