"""The loss of a training step, and what changes it: label smoothing, R-Drop, guided attention, scheduled sampling.

Evaluation always uses the plain cross-entropy, so that losses and perplexities of different runs compare.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import torch
from accelerate.utils import extract_model_from_parallel
from torch import nn
from transformers import PreTrainedConfig

from vanillaformer.configuration import VanillaConfig, VanillaDecoderConfig
from vanillaformer.data.targets import PAIRS, targets_of
from vanillaformer.modeling.heads import IGNORE_INDEX, smoothed_loss

from .guided_attention import guided_attention_loss

Inputs = dict[str, Any]
Decay = Literal["none", "linear", "exponential", "inverse_sigmoid"]
# The probability of feeding the gold token after `step` steps (Bengio et al. 2015, section 2.4).
GOLD_PROBABILITY: dict[str, Callable[[float, float], float]] = {
    "linear": lambda step, k: 1 - step / k,
    "exponential": lambda step, k: k**step,
    "inverse_sigmoid": lambda step, k: k / (k + math.exp(min(step / k, 700.0))),
}


@dataclass
class LossArguments:
    """What is minimized in training in addition to the cross-entropy."""

    HELP_GROUP = "Loss"

    # What only some tasks offer, as it is for all others
    scheduled_sampling = cast(Decay, "none")
    scheduled_sampling_k = 0.0
    scheduled_sampling_floor = 0.0
    guided_attention = 0.0
    guided_attention_sigma = 0.2
    token_dropout = 0.0
    lm_loss_weight = 0.0
    ensemble = 0
    mixup = 0.0

    r_drop: float = field(
        default=0.0,
        metadata={"help": "R-Drop (with dropout): weight of the divergence"},
    )

    def check(self) -> None:
        """Raise ValueError for a number out of range."""
        if not 0 <= self.token_dropout < 1:
            raise ValueError(f"--token_dropout {self.token_dropout}: it must be at least 0 and below 1")
        for name in ("r_drop", "guided_attention", "lm_loss_weight"):
            if getattr(self, name) < 0:
                raise ValueError(f"--{name} {getattr(self, name)}: it must be at least 0")
        if self.guided_attention_sigma <= 0:
            raise ValueError(f"--guided_attention_sigma {self.guided_attention_sigma}: it must be above 0")
        if self.ensemble < 0 or self.ensemble == 1:
            raise ValueError(f"--ensemble {self.ensemble}: it must be 0 or at least 2")
        for name in ("lm_loss_weight", "lora_rank"):
            if self.ensemble and getattr(self, name, 0):
                raise ValueError(f"--ensemble {self.ensemble} cannot be used with --{name} {getattr(self, name)}")
        smoothing = getattr(self, "label_smoothing_factor", 0.0)
        if not 0 <= smoothing < 1:
            raise ValueError(f"--label_smoothing_factor {smoothing}: it must be at least 0 and below 1")
        if not 0 <= self.scheduled_sampling_floor <= 1:
            raise ValueError(f"--scheduled_sampling_floor {self.scheduled_sampling_floor}: it must lie in 0 to 1")
        kind, k = self.scheduled_sampling, self.scheduled_sampling_k
        if kind == "exponential" and not 0 < k < 1:
            raise ValueError(f"--scheduled_sampling_k {k}: exponential needs a number between 0 and 1, as 0.9999")
        if kind in ("linear", "inverse_sigmoid") and k < 1:
            raise ValueError(f"--scheduled_sampling_k {k}: {kind} needs a number of steps, at least 1")


@dataclass
class ScheduledSamplingArguments(LossArguments):
    """How often a decoder is fed its own predictions (Bengio et al. 2015; Mihaylova and Martins 2019)."""

    HELP_GROUP = "Loss"

    scheduled_sampling: Decay = field(
        default="none", metadata={"help": "Scheduled sampling: decay of the gold inputs"}
    )
    scheduled_sampling_k: float = field(
        default=0.0, metadata={"help": "Its k: 1 - step/k, k^step or k/(k + exp(step/k))"}
    )
    scheduled_sampling_floor: float = field(
        default=0.0, metadata={"help": "Scheduled sampling: minimum share of gold inputs"}
    )


@dataclass
class GuidedAttentionArguments(LossArguments):
    """How much attention off the diagonal costs (Tachibana et al. 2018)."""

    HELP_GROUP = "Loss"

    guided_attention: float = field(
        default=0.0, metadata={"help": "Guided attention: weight of attention off the diagonal (e.g. 1.0)"}
    )
    guided_attention_sigma: float = field(default=0.2, metadata={"help": "Guided attention: width of the diagonal"})


@dataclass
class TokenDropoutArguments(LossArguments):
    """How often a token is hidden from attention and pooling (word dropout, Iyyer et al. 2015)."""

    HELP_GROUP = "Loss"

    token_dropout: float = field(default=0.0, metadata={"help": "Probability of hiding a token (word dropout)"})


@dataclass
class LanguageModelLossArguments(LossArguments):
    """How much the language model of a classifier counts (Radford et al. 2018, section 3.2)."""

    HELP_GROUP = "Loss"

    lm_loss_weight: float = field(
        default=0.0, metadata={"help": "Decoders: weight of a language-model loss on the same texts (e.g. 0.5)"}
    )


@dataclass
class EnsembleArguments(LossArguments):
    """How many models are distilled into one."""

    HELP_GROUP = "Loss"

    ensemble: int = field(
        default=0, metadata={"help": "Number of models to train first, whose mean the model learns; 0 for none"}
    )


def gold_probability(arguments: LossArguments, step: int) -> float:
    """Return the probability that the decoder is fed the gold token at an optimizer step."""
    if arguments.scheduled_sampling == "none":
        return 1.0
    probability = GOLD_PROBABILITY[arguments.scheduled_sampling](step, arguments.scheduled_sampling_k)
    return max(arguments.scheduled_sampling_floor, probability)


def training_loss(
    model: nn.Module,
    inputs: Inputs,
    *,
    label_smoothing: float,
    r_drop: float,
    items: torch.Tensor | int,
    second_items: torch.Tensor | int | None = None,
    guided_attention: float = 0.0,
    guided_attention_sigma: float = 0.2,
    lm_loss_weight: float = 0.0,
) -> torch.Tensor:
    """Return the loss of a batch, divided by the number of targets in all batches of the step.

    `Σ CE(p, y) / items`; with R-Drop `(Σ CE(p, y) + Σ CE(q, y) + α/2 Σ (KL(p‖q) + KL(q‖p))) / (2 items)`, where p and
    q are two passes: half of the paper's loss, so that it stays as large as the cross-entropy.

    Args:
        model: A model with a head, maybe wrapped.
        inputs: A batch with `labels`.
        label_smoothing: ε of the targets.
        r_drop: α; 0 for a single pass.
        items: The number of targets.
        second_items: That of the second loss, of pairs of segments or of the next tokens of a classifier's texts;
            None for its mean over the batch.
        guided_attention: Weight of `guided_attention_loss` of an encoder-decoder; 0 for none.
        guided_attention_sigma: Its σ.
        lm_loss_weight: What `language_model_loss` of a classifier's texts is multiplied by.
    """
    if r_drop:
        inputs, items, second_items = twice(inputs), 2 * items, second_items and 2 * second_items
    if inputs["labels"].is_floating_point():  # the probabilities of classes, of mixed images
        logits = model(**without_labels(inputs))["logits"]
        options: dict[str, Any] = {"reduction": "sum", "label_smoothing": label_smoothing}
        loss = nn.functional.cross_entropy(logits.float(), inputs["labels"], **options) / items
    elif inputs["labels"].ndim == 1:  # a class for each text
        outputs = model(**without_labels(inputs), output_hidden_states=lm_loss_weight > 0)
        logits = outputs["logits"]
        loss = smoothed_loss(logits, inputs["labels"], label_smoothing, num_items_in_batch=items)
        if lm_loss_weight:
            of_texts = language_model_loss(model, outputs["hidden_states"][-1], inputs, second_items)
            loss = loss + lm_loss_weight * of_texts
    else:
        options = {"label_smoothing": label_smoothing, "num_items_in_batch": items}
        options |= {"output_attentions": True} if guided_attention else {}
        pairs = second_items if PAIRS in inputs else None
        outputs = pass_with_loss(model, inputs, return_logits=bool(r_drop), pairs=pairs, **options)
        loss, logits = outputs["loss"], outputs.get("logits", outputs.get("prediction_logits"))
        if guided_attention:
            masks = inputs["labels"], inputs["attention_mask"]
            off_diagonal = guided_attention_loss(outputs["cross_attentions"], *masks, guided_attention_sigma)
            loss = loss + guided_attention * off_diagonal / items
    return loss + r_drop * symmetric_divergence(*logits.float().chunk(2)) / items if r_drop else loss


def pass_with_loss(
    model: nn.Module,
    inputs: Inputs,
    *,
    label_smoothing: float,
    num_items_in_batch: torch.Tensor | int,
    return_logits: bool,
    pairs: torch.Tensor | int | None = None,
    **options: Any,
) -> Any:
    """Return the outputs of a model of tokens, whose loss is divided by `num_items_in_batch`, as a mapping.

    The logits are those of positions with a target, (N, V). A native model's loss is what its class computes: its
    cross-entropy is exchanged for the smoothed one, and what the class adds to it stays.
    """
    inner: Any = extract_model_from_parallel(getattr(model, "module", model), keep_torch_compile=False)
    smoothing: dict[str, Any] = {"label_smoothing": label_smoothing, "num_items_in_batch": num_items_in_batch}
    if isinstance(inner.config, VanillaConfig):
        options |= {} if pairs is None else {"num_pairs_in_batch": pairs}
        return model(**inputs, **options, **smoothing, labeled_only=True, return_logits=return_logits)
    outputs = model(**inputs, **options)
    targets = targets_of(inner, inputs["labels"])
    labeled = targets != IGNORE_INDEX
    logits = outputs.get("logits", outputs.get("prediction_logits"))[labeled]
    if not len(logits):  # the mean over no target is not a number
        return {**outputs, "logits": logits, "loss": logits.sum()}
    share = len(logits) / num_items_in_batch
    loss = outputs["loss"] * share
    if pairs is not None:  # whose mean is not over tokens
        wanted = inputs[PAIRS].view(-1)
        of_pairs = nn.functional.cross_entropy(outputs["seq_relationship_logits"], wanted)
        loss = loss + of_pairs * ((wanted != IGNORE_INDEX).sum() / pairs - share)
    if label_smoothing:
        plain = smoothing | {"label_smoothing": 0.0}
        loss = loss + smoothed_loss(logits, targets[labeled], **smoothing)
        loss = loss - smoothed_loss(logits, targets[labeled], **plain)
    return {**outputs, "logits": logits, "loss": loss}


def language_model_loss(
    model: nn.Module, hidden_states: torch.Tensor, inputs: Inputs, items: torch.Tensor | int | None
) -> torch.Tensor:
    """Return the cross-entropy of the next tokens, scored with the table of embeddings as output layer.

    Args:
        model: A decoder, maybe wrapped.
        hidden_states: Its last states (B, T, D).
        inputs: The batch: `input_ids` (B, T) and `attention_mask` (B, T).
        items: The number of next tokens in all batches of the step, which the sum is divided by; None for the mean.
    """
    inner: Any = getattr(model, "module", model)  # of DistributedDataParallel
    seen = inputs["attention_mask"][:, 1:].bool()
    logits = hidden_states[:, :-1][seen] @ inner.get_input_embeddings().weight.to(hidden_states.dtype).T
    return smoothed_loss(logits, inputs["input_ids"][:, 1:][seen], num_items_in_batch=items)


def count_second_targets(batch: Inputs) -> torch.Tensor:
    """Return the number of targets of a batch's second loss: pairs of segments, or next tokens of texts."""
    if PAIRS in batch:
        return (batch[PAIRS] != IGNORE_INDEX).sum()
    return batch["attention_mask"][:, 1:].bool().sum()


def check_language_model_loss(weight: float, config: PreTrainedConfig) -> None:
    """Raise ValueError when a classifier is to be trained with a language model's loss that it cannot have."""
    if weight and not (isinstance(config, VanillaDecoderConfig) and config.tie_word_embeddings):
        raise ValueError(
            f"--lm_loss_weight {weight}: the model must be a decoder with tie_word_embeddings=True, whose table of "
            f"embeddings is its output layer, not {type(config).__name__} with "
            f"tie_word_embeddings={getattr(config, 'tie_word_embeddings', None)}"
        )


def with_hidden_tokens(inputs: Inputs, rate: float | torch.Tensor) -> Inputs:
    """Return a batch in which each token but the first of a text is padding to the model, with a probability.

    Args:
        inputs: A batch with `attention_mask` (B, T), of an encoder; with `position_ids` if rows have several texts.
        rate: The probability, or that of each text (B, 1).
    """
    if not torch.is_tensor(rate) and not rate:
        return inputs
    seen = inputs["attention_mask"]
    hidden = torch.rand(seen.shape, device=seen.device) < rate
    hidden = hidden & (inputs.get("position_ids", torch.arange(seen.shape[1], device=seen.device)) > 0)
    return {**inputs, "attention_mask": seen.masked_fill(hidden, 0)}


def with_mixed_images(inputs: Inputs, alpha: float, classes: int) -> Inputs:
    """Return a batch whose images are `λ x_i + (1 - λ) x_j`, and whose labels are mixed likewise (B, C).

    Mixup (Zhang et al. 2018, arXiv 1710.09412): λ is drawn from Beta(α, α) for each image, its partner from the batch.

    Args:
        inputs: A batch with `pixel_values` (B, ...), and `labels` (B) where there are any.
        alpha: α; 0 changes nothing.
        classes: Number of classes C.
    """
    if not alpha:
        return inputs
    images = inputs["pixel_values"]
    weights = torch.distributions.Beta(alpha, alpha).sample((len(images),)).to(images.device)
    partners = torch.randperm(len(images), device=images.device)

    def mixed(values: torch.Tensor) -> torch.Tensor:
        share = weights.view(-1, *[1] * (values.ndim - 1)).to(values.dtype)
        return share * values + (1 - share) * values[partners]

    labels = nn.functional.one_hot(inputs["labels"], classes).float()
    return {**inputs, "pixel_values": mixed(images), "labels": mixed(labels)}


def without_labels(inputs: Inputs) -> Inputs:
    """Return a batch without its labels."""
    return {name: value for name, value in inputs.items() if name != "labels"}


def twice(inputs: Inputs) -> Inputs:
    """Return a batch with every row twice."""
    return {name: torch.cat([value, value]) if torch.is_tensor(value) else value for name, value in inputs.items()}


def symmetric_divergence(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Return `½ Σ (KL(p‖q) + KL(q‖p))` of the distributions with logits (N, V): `½ Σ (p - q)(log p - log q)`."""
    logs = first.log_softmax(dim=-1), second.log_softmax(dim=-1)
    return ((logs[0].exp() - logs[1].exp()) * (logs[0] - logs[1])).sum() / 2


def with_own_predictions(model: nn.Module, inputs: Inputs, gold: float) -> Inputs:
    """Return a batch whose decoder inputs are, with probability `1 - gold` each, the model's own predictions.

    A first pass, without gradient, predicts the likeliest token at every position from the gold ones before it; the
    second pass, with the loss, is the caller's. The start and tokens that no loss is taken of stay as they are.

    Args:
        model: A decoder, or an encoder-decoder, with its head, maybe wrapped.
        inputs: A batch with `labels`, and with `decoder_input_ids` for an encoder-decoder.
        gold: Probability of a gold token.
    """
    if gold >= 1:
        return inputs
    with torch.no_grad():
        logits = model(**without_labels(inputs))["logits"]
    name = "decoder_input_ids" if "decoder_input_ids" in inputs else "input_ids"
    # The token at t was predicted at t - 1; a decoder's label of it stands at t, an encoder-decoder's at t - 1.
    labels = inputs["labels"][:, :-1] if name == "decoder_input_ids" else inputs["labels"][:, 1:]
    fed, own = inputs[name][:, 1:], logits[:, :-1].argmax(dim=-1)
    keep = (torch.rand(fed.shape, device=fed.device) < gold) | (labels == IGNORE_INDEX)
    return {**inputs, name: torch.cat([inputs[name][:, :1], torch.where(keep, fed, own)], dim=1)}
