"""From states to token logits and their loss: the one place where the output layer and the loss meet."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from vanillaformer.configuration import BlockConfig

from .parts.dropout import keep

IGNORED = -100  # the label that is not scored


def scale_logits(logits: torch.Tensor, scale: float) -> torch.Tensor:
    """Return the logits times a factor (Cohere, T5)."""
    return logits * scale


def cap_logits(logits: torch.Tensor, scale: float, cap: float) -> torch.Tensor:
    """Return `cap · tanh(scale · logits / cap)` (Gemma 2)."""
    return cap * torch.tanh(logits * (scale / cap))


def build_logit_shape(config: BlockConfig) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return what happens to the logits behind the output layer."""
    scale = 1.0 if config.logit_scale is None else config.logit_scale
    if getattr(config, "scale_decoder_outputs", False):
        scale *= config.hidden_size**-0.5
    if config.final_logit_softcapping is not None:
        return partial(cap_logits, scale=scale, cap=config.final_logit_softcapping)
    return keep if scale == 1.0 else partial(scale_logits, scale=scale)


class TokenScores:
    """Mixin of the language models: `lm_head`, `shape_logits` and `loss_function` behind one call.

    What the head computes and for which rows is decided here alone. Three keywords of every language model's `forward`
    end here; training gives them, because most of what a head computes is never looked at there:

    - `labelled_only`: compute logits only of positions that a label is for, in their order, as (N, V).
    - `return_logits=False`: return the loss alone.
    - `label_smoothing` ε: the loss of the targets `(1 - ε) onehot(y) + ε / V` (Szegedy et al. 2016).

    The loss does not depend on the first two.
    """

    lm_head: nn.Module
    shape_logits: Callable[[torch.Tensor], torch.Tensor]
    loss_function: Callable[..., torch.Tensor]
    predicts_next = False  # whether the label of a position is the token of the one behind it

    def before_head(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return the states that the output layer takes."""
        return hidden_states

    def score_tokens(
        self,
        hidden_states: torch.Tensor,
        labels: torch.Tensor | None,
        *,
        labelled_only: bool = False,
        return_logits: bool = True,
        label_smoothing: float = 0.0,
        shift_labels: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Return the mean cross-entropy, or `None` without `labels` (B, T), and the logits (B, T, V) or (N, V).

        `shift_labels` (B, T) are the tokens that follow, for parts of rows, whose last token's is not in `labels`.
        """
        if labels is None:
            return None, self.logits(hidden_states)
        shifted = {"shift_labels": shift_labels} if shift_labels is not None and self.predicts_next else {}
        targets = shifted.get("shift_labels", self.targets(labels)).view(labels.shape)
        if labelled_only:
            wanted = targets != IGNORED  # (B, T)
            hidden_states, targets = hidden_states[wanted], targets[wanted]
        logits = self.logits(hidden_states)
        if labelled_only or label_smoothing:
            loss = smoothed_loss(logits.flatten(0, -2), targets.flatten(), label_smoothing, **kwargs)
        else:
            sizes = {"vocab_size": logits.shape[-1]} | shifted
            loss = self.loss_function(logits=logits, labels=labels, **sizes, **kwargs)
        return loss, logits if return_logits else None

    def logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return the logits (..., V) of states (..., D)."""
        return self.shape_logits(self.lm_head(self.before_head(hidden_states)))

    def targets(self, labels: torch.Tensor) -> torch.Tensor:
        """Return what each position predicts (B, T): its label, or that of the next one, -100 behind the last."""
        return nn.functional.pad(labels, (0, 1), value=IGNORED)[..., 1:] if self.predicts_next else labels


def smoothed_loss(
    logits: torch.Tensor,
    targets: torch.Tensor,
    label_smoothing: float = 0.0,
    *,
    num_items_in_batch: torch.Tensor | int | None = None,
    **_: Any,
) -> torch.Tensor:
    """Return the cross-entropy of logits (N, V) with targets (N), of which -100 does not count.

    Its mean, or its sum divided by `num_items_in_batch`, the number of targets in all the batches of a step.
    """
    logits, targets = logits.float(), targets.to(logits.device)
    options: dict[str, Any] = {"ignore_index": IGNORED, "label_smoothing": label_smoothing}
    if num_items_in_batch is None:
        return nn.functional.cross_entropy(logits, targets, **options)
    total = nn.functional.cross_entropy(logits, targets, reduction="sum", **options)
    return total / torch.as_tensor(num_items_in_batch, device=total.device)
