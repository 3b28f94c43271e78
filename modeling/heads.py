"""From states to token logits and their loss: the one place where the output layer and the loss meet."""

from collections.abc import Callable

import torch
from torch import nn
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs


class TokenScores:
    """Mixin of the language models: `lm_head` and `loss_function` behind one call.

    What the head computes and for which rows is decided here alone, so that rows without a label can be left out or
    the loss be taken in chunks without touching a model.
    """

    lm_head: nn.Module
    loss_function: Callable[..., torch.Tensor]

    def score_tokens(
        self, hidden_states: torch.Tensor, labels: torch.Tensor | None, **kwargs: Unpack[TransformersKwargs]
    ) -> tuple[torch.Tensor | None, torch.Tensor]:
        """Return the mean cross-entropy, or `None` without `labels` (B, T), and the logits (B, T, V)."""
        logits = self.lm_head(hidden_states)
        if labels is None:
            return None, logits
        return self.loss_function(logits=logits, labels=labels, vocab_size=logits.shape[-1], **kwargs), logits
