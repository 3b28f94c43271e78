"""The loss of a training step: a list of terms, the cross-entropy first, and changes to a batch before it.

Evaluation always uses the plain cross-entropy, so that losses and perplexities of different runs compare.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, cast

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
    """Arguments of how often a decoder is fed its predictions (Bengio et al. 2015; Mihaylova and Martins 2019)."""

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


# ------------------------------------------------------------------------------------------------- terms of the loss
class Batch(NamedTuple):
    """A batch of a step."""

    inputs: Inputs
    items: Count  # the number of targets in all batches of the step, which sums are divided by
    second_items: Count | None  # that of a second loss, of pairs; None without any


def training_loss(
    model: nn.Module, inputs: Inputs, terms: Sequence[Any], *, items: Count, second_items: Count | None = None
) -> torch.Tensor:
    """Return the loss of a batch with `labels`, the sum of its terms (`loss_terms`); see `Batch` for the numbers.

    The first term passes the batch through the model; the others read its outputs, each once.
    """
    first, *others = terms
    if any(term.two_passes for term in others):
        inputs = {name: torch.cat([each, each]) if torch.is_tensor(each) else each for name, each in inputs.items()}
        items, second_items = 2 * items, second_items and 2 * second_items
    batch = Batch(inputs, items, second_items)
    outputs = first(model, batch, {name: True for term in others for name in term.reads})
    loss = outputs["loss"]
    for term in others:
        loss = loss + term(model, batch, outputs)
    return loss


def loss_terms(args: Any) -> list[Any]:
    """Return the terms that training arguments ask for."""
    terms: list[Any] = [CrossEntropy(args.label_smoothing_factor)]
    if args.guided_attention:
        terms.append(GuidedAttention(args.guided_attention, args.guided_attention_sigma))
    if args.r_drop:
        terms.append(RDrop(args.r_drop))
    return terms


class Term:
    """A summand of the loss, which reads the outputs of the model for a batch."""

    reads: ClassVar[tuple[str, ...]] = ()  # options of the forward pass whose outputs it reads
    two_passes: ClassVar[bool] = False  # whether the model has to see each row twice

    def __call__(self, model: nn.Module, batch: Batch, outputs: Any) -> torch.Tensor:
        raise NotImplementedError


@dataclass
class CrossEntropy:
    """`Σ CE(p, y) / items`, with smoothed labels."""

    label_smoothing: float = 0.0

    def __call__(self, model: nn.Module, batch: Batch, options: dict[str, bool]) -> Any:
        """Return the outputs of the model as a mapping, with `loss` and, if `return_logits` asks for it, `logits`."""
        labels, items = batch.inputs["labels"], batch.items
        inner: Any = extract_model_from_parallel(getattr(model, "module", model), keep_torch_compile=False)
        kind = getattr(getattr(inner, "config", None), "problem_type", None)
        if kind in ("regression", "multi_label_classification"):
            outputs = model(**batch.inputs)  # the mean over the numbers, or over the labels
            return {**outputs, "loss": outputs["loss"] * labels.numel() / items}
        if labels.ndim > 1:
            return self.of_tokens(model, inner, batch, options)
        wanted = {name: value for name, value in options.items() if name != "return_logits"}
        outputs = model(**without_labels(batch.inputs), **wanted)
        loss = smoothed_loss(outputs["logits"], labels, self.label_smoothing, num_items_in_batch=items)
        return {**outputs, "loss": loss}

    def of_tokens(self, model: nn.Module, inner: Any, batch: Batch, options: dict[str, bool]) -> Any:
        """Return the outputs of `inner`, a model of tokens; the logits are those of positions with a target, (N, V).

        A native model's loss, and that of tags, is computed by its class: its cross-entropy is exchanged for the
        smoothed one, and other summands are kept.
        """
        inputs, pairs = batch.inputs, batch.second_items
        smoothing: dict[str, Any] = {"label_smoothing": self.label_smoothing, "num_items_in_batch": batch.items}
        wanted: dict[str, Any] = {name: value for name, value in options.items() if name != "return_logits"}
        if isinstance(inner.config, VanillaConfig) and inner.loss_type != "ForTokenClassification":
            wanted |= {} if pairs is None else {"num_pairs_in_batch": pairs}
            logits = options.get("return_logits", False)
            outputs = model(**inputs, **wanted, **smoothing, labeled_only=True, return_logits=logits)
            return {**outputs, "logits": outputs.get("logits", outputs.get("prediction_logits"))}
        outputs = model(**inputs, **wanted)
        targets = targets_of(inner, inputs["labels"])
        labeled = targets != IGNORE_INDEX
        logits = outputs.get("logits", outputs.get("prediction_logits"))[labeled]
        if not len(logits):  # the mean over no target is not a number
            return {**outputs, "logits": logits, "loss": logits.sum()}
        share = len(logits) / batch.items
        loss = outputs["loss"] * share
        if pairs is not None:  # whose mean is not over tokens
            classes = inputs[PAIRS].view(-1)
            of_pairs = nn.functional.cross_entropy(outputs["seq_relationship_logits"], classes)
            loss = loss + of_pairs * ((classes != IGNORE_INDEX).sum() / pairs - share)
        if self.label_smoothing:
            plain = smoothing | {"label_smoothing": 0.0}
            loss = loss + smoothed_loss(logits, targets[labeled], **smoothing)
            loss = loss - smoothed_loss(logits, targets[labeled], **plain)
        return {**outputs, "logits": logits, "loss": loss}


@dataclass
class GuidedAttention(Term):
    """The cost of cross-attention off the diagonal, see `guided_attention_loss`."""

    weight: float
    sigma: float
    reads = ("output_attentions",)

    def __call__(self, model: nn.Module, batch: Batch, outputs: Any) -> torch.Tensor:
        masks = batch.inputs["labels"], batch.inputs["attention_mask"]
        return self.weight * guided_attention_loss(outputs["cross_attentions"], *masks, self.sigma) / batch.items


@dataclass
class RDrop(Term):
    """R-Drop: two passes p and q with other dropout, and `α/2 Σ (KL(p‖q) + KL(q‖p)) / items`.

    With the cross-entropy of both this is half of the paper's loss, so that it stays as large as the cross-entropy.
    """

    weight: float
    reads = ("return_logits",)
    two_passes = True

    def __call__(self, model: nn.Module, batch: Batch, outputs: Any) -> torch.Tensor:
        first, second = outputs["logits"].float().log_softmax(dim=-1).chunk(2)  # (N, V) each
        # KL(p‖q) + KL(q‖p) = Σ (p - q)(log p - log q)
        return self.weight * ((first.exp() - second.exp()) * (first - second)).sum() / 2 / batch.items


def guided_attention_loss(
    attentions: Sequence[torch.Tensor], labels: torch.Tensor, source_mask: torch.Tensor, sigma: float
) -> torch.Tensor:
    """Return `Σ_t mean_s A_ts W_ts` over the real targets t and sources s, the mean over layers and heads.

    `W_ts = 1 - exp(-(t/T - s/S)² / 2σ²)` (Tachibana et al. 2018), with t and s counted from 0 in each sentence of
    lengths T and S; σ is the width of the diagonal as a part of the sentence. Divided by T, it is the paper's mean for
    one sentence. Each layer has attentions (B, H, T, S), for labels (B, T) and a mask of the source (B, S).
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
    """Return the position of each real token of a mask (B, T) as a part of its sentence's length, from 0."""
    return (mask.cumsum(dim=1) - 1) / mask.sum(dim=1, keepdim=True).clamp(min=1)


# ------------------------------------------------------------------------------------------------ changes to a batch
def without_labels(inputs: Inputs) -> Inputs:
    return {name: value for name, value in inputs.items() if name != "labels"}


def with_hidden_tokens(inputs: Inputs, rate: float) -> Inputs:
    """Return a batch in which each token but the first of a text is padding to the model, with a probability."""
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

    A first pass, without gradient, predicts the likeliest token at every position from the gold ones before it; the
    second pass, with the loss, is the caller's. The start and tokens without a loss do not change.
    """
    if gold >= 1:
        return inputs
    with torch.no_grad():
        logits = model(**without_labels(inputs))["logits"]
    name = "decoder_input_ids" if "decoder_input_ids" in inputs else "input_ids"
    # The token at t was predicted at t - 1; a decoder's label of it stands at t, an encoder-decoder's at t - 1.
    labels = inputs["labels"][:, :-1] if name == "decoder_input_ids" else inputs["labels"][:, 1:]
    fed, predicted = inputs[name][:, 1:], logits[:, :-1].argmax(dim=-1)
    gold_tokens = (torch.rand(fed.shape, device=fed.device) < gold) | (labels == IGNORE_INDEX)
    return {**inputs, name: torch.cat([inputs[name][:, :1], torch.where(gold_tokens, fed, predicted)], dim=1)}
