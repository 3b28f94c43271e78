"""From states to token logits and their loss: the one place where the output layer and the loss meet."""

from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs

from vanillaformer.configuration import BlockConfig

from .dropout import keep


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

    What the head computes and for which rows is decided here alone, so that rows without a label can be left out or
    the loss be taken in chunks without touching a model.
    """

    lm_head: nn.Module
    shape_logits: Callable[[torch.Tensor], torch.Tensor]
    loss_function: Callable[..., torch.Tensor]

    def score_tokens(
        self, hidden_states: torch.Tensor, labels: torch.Tensor | None, **kwargs: Unpack[TransformersKwargs]
    ) -> tuple[torch.Tensor | None, torch.Tensor]:
        """Return the mean cross-entropy, or `None` without `labels` (B, T), and the logits (B, T, V)."""
        logits = self.shape_logits(self.lm_head(hidden_states))
        if labels is None:
            return None, logits
        return self.loss_function(logits=logits, labels=labels, vocab_size=logits.shape[-1], **kwargs), logits
