"""From states to logits and losses: the language-model head, and the layers in front of a classifier.

Shape letters: B batch, T length, N labeled positions, D model width, V vocabulary.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers.loss.loss_utils import ForCausalLMLoss, ForMaskedLMLoss

from vanillaformer.configuration import BlockConfig, VanillaEncoderConfig

from .acceleration import acceleration
from .parts.dropout import identity
from .parts.feed_forward import build_activation
from .parts.norms import build_norm

IGNORE_INDEX = -100  # label of the positions that have no loss


def cap_logits(logits: torch.Tensor, scale: float, cap: float) -> torch.Tensor:
    """Return `cap · tanh(scale · logits / cap)` (Gemma 2)."""
    return cap * torch.tanh(logits * (scale / cap))


def build_logits_transform(config: BlockConfig) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the function applied to the output layer's logits: scale, soft cap, or identity."""
    if config.logit_scale is None and config.final_logit_softcapping is None and not config.scale_decoder_outputs:
        return identity
    scale = 1.0 if config.logit_scale is None else config.logit_scale
    if config.scale_decoder_outputs:
        scale *= config.hidden_size**-0.5
    if config.final_logit_softcapping is not None:
        return partial(cap_logits, scale=scale, cap=config.final_logit_softcapping)
    return identity if scale == 1.0 else partial(torch.mul, other=scale)  # Cohere, T5


class LMHeadMixin:
    """Mixin of the language models: output layer and cross-entropy, `softmax(W h)` against the labels.

    Three keyword arguments of every language model's `forward` are for training, where most logits are not needed:

    - `labeled_only`: compute logits only for the positions with a label, in order, as (N, V).
    - `return_logits=False`: return only the loss; none are kept.
    - `label_smoothing` ε: the loss of the targets `(1 - ε) onehot(y) + ε / V` (Szegedy et al. 2016).

    The loss does not depend on the first two: a user's own `loss_function` gets all logits; it excludes smoothing.
    """

    lm_head: nn.Module
    logits_transform: Callable[[torch.Tensor], torch.Tensor]
    loss_function: Callable[..., torch.Tensor]
    predicts_next_token = False  # whether the target of a position is the label of the next one

    def transform_hidden_states(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return the input of the output layer."""
        return hidden_states

    def loss_and_logits(
        self,
        hidden_states: torch.Tensor,
        labels: torch.Tensor | None,
        *pointers: torch.Tensor,
        labeled_only: bool = False,
        return_logits: bool = True,
        label_smoothing: float = 0.0,
        shift_labels: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Return the mean cross-entropy, or `None` without `labels` (B, T), and the logits (B, T, V) or (N, V).

        `pointers` (B, T, ...) are inputs of `logits` for each position besides its state (B, T, D).
        `shift_labels` (B, T) are labels already shifted by one, for rows split over devices.
        """
        if labels is None:
            return None, self.logits(hidden_states, *pointers)
        shifted = {"shift_labels": shift_labels} if shift_labels is not None and self.predicts_next_token else {}
        targets = shifted.get("shift_labels", self.targets(labels)).view(labels.shape)
        ignored = kwargs.get("ignore_index")
        usual = self.loss_function is (ForCausalLMLoss if self.predicts_next_token else ForMaskedLMLoss)
        usual = usual and ignored is None
        if label_smoothing and not usual:
            raise ValueError(f"label_smoothing={label_smoothing} needs the model's own loss_function and ignore_index")
        labeled = targets != IGNORE_INDEX  # (B, T)
        if labeled_only and usual:
            rows = labeled.flatten().nonzero().squeeze(1)  # only once: the CPU waits for a GPU here
            picked = [each.flatten(0, 1).index_select(0, rows) for each in (hidden_states, targets, *pointers)]
            hidden_states, targets, pointers = picked[0], picked[1], tuple(picked[2:])
        if (
            usual
            and not (return_logits or pointers)
            and (loss := acceleration.loss(self, hidden_states, targets, label_smoothing, **kwargs)) is not None
        ):
            return loss, None
        logits = self.logits(hidden_states, *pointers)
        if usual and (labeled_only or label_smoothing):
            loss = smoothed_loss(logits.flatten(0, -2), targets.flatten(), label_smoothing, **kwargs)
        else:
            sizes = {"vocab_size": logits.shape[-1]} | shifted
            loss = self.loss_function(logits=logits, labels=labels, **sizes, **kwargs)
            logits = logits[labeled] if labeled_only else logits
        return loss, logits if return_logits else None

    def logits(self, hidden_states: torch.Tensor, *pointers: torch.Tensor) -> torch.Tensor:
        """Return the logits (..., V) of states (..., D)."""
        return self.logits_transform(self.lm_head(self.transform_hidden_states(hidden_states)))

    def targets(self, labels: torch.Tensor) -> torch.Tensor:
        """Return the target of each position (B, T): its label, or that of the next one and -100 at the end."""
        return nn.functional.pad(labels, (0, 1), value=IGNORE_INDEX)[..., 1:] if self.predicts_next_token else labels


def smoothed_loss(
    logits: torch.Tensor,
    targets: torch.Tensor,
    label_smoothing: float = 0.0,
    *,
    num_items_in_batch: torch.Tensor | int | None = None,
    **_: Any,
) -> torch.Tensor:
    """Return the cross-entropy of logits (N, V) with targets (N), ignoring those of -100.

    It is the mean, or the sum divided by `num_items_in_batch`, the number of targets in all batches of a step.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    targets = targets.to(logits.device)
    options: dict[str, Any] = {"ignore_index": IGNORE_INDEX, "label_smoothing": label_smoothing}
    if num_items_in_batch is None:
        return nn.functional.cross_entropy(logits, targets, **options)
    total = nn.functional.cross_entropy(logits, targets, reduction="sum", **options)
    return total / torch.as_tensor(num_items_in_batch, device=total.device)


class PredictionHead(nn.Module):
    """The layer that BERT has in front of an output layer or classifier: `norm(φ(W h + b))`, (..., D) → (..., D)."""

    def __init__(self, config: VanillaEncoderConfig, act: str, norm: bool):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size, bias=config.head_bias)
        self.act_fn = build_activation(act)
        self.norm = build_norm(config) if norm else nn.Identity()

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.norm(self.act_fn(self.dense(hidden_states)))


def build_pooler(config: VanillaEncoderConfig) -> nn.Module:
    """Return the layer between pooling and classifier, the identity if the config has none."""
    if config.classifier_act is None:
        return nn.Identity()
    return PredictionHead(config, config.classifier_act, config.classifier_norm)


def pool_states(
    pool: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    hidden_states: torch.Tensor,
    attention_mask: torch.Tensor | None,
) -> torch.Tensor:
    """Return one vector per text by one of `POOLINGS`, (B, T, D) → (B, D); no mask means no padding.

    Raises:
        ValueError: The mask is not (B, T).
    """
    if attention_mask is None:
        attention_mask = torch.ones(hidden_states.shape[:2], device=hidden_states.device)
    if attention_mask.ndim != 2:
        raise ValueError(
            f"pooling needs an attention_mask of shape (batch, length), got {tuple(attention_mask.shape)}"
        )
    return pool(hidden_states, attention_mask)
