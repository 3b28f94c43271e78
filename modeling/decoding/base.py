"""Autoregressive decoding, and the hooks that all decodings have.

Shape letters: B batch, S length of the source, T of the target, D model width.
"""

from typing import Any

import torch
from torch import nn

from vanillaformer.configuration import VanillaEncoderDecoderConfig

from ..seq2seq import shift_right
from ..stack import CrossDecoderStack

DecoderInputs = dict[str, torch.Tensor | None]
"""The arguments of the model's forward pass that begin with `decoder_`: ids or embeddings, and the mask."""


class Autoregressive(nn.Module):
    """Autoregressive decoding (Vaswani et al. 2017): `p(y | x) = Π p(y_t | y_<t, x)`, searched by transformers.

    Also the base of the other ways: the hooks that the model calls.
    """

    decoder_class: type[CrossDecoderStack] = CrossDecoderStack

    def __init__(self, config: VanillaEncoderDecoderConfig):
        super().__init__()
        self.config = config

    def first_inputs(self, labels: torch.Tensor) -> torch.Tensor:
        """Return the decoder's input ids (B, T) for labels (B, T), which data collators ask for."""
        return shift_right(labels, self.config)

    def inputs_for(self, labels: torch.Tensor, given: DecoderInputs) -> DecoderInputs:
        """Return the decoder's inputs of a pass with labels (B, T), those that are `given` among them."""
        if given["decoder_input_ids"] is None and given["decoder_inputs_embeds"] is None:
            return given | {"decoder_input_ids": self.first_inputs(labels)}
        return given

    def loss_and_logits(
        self,
        model: Any,
        hidden_states: torch.Tensor,
        labels: torch.Tensor | None,
        inputs: DecoderInputs,
        source: tuple[torch.Tensor, torch.Tensor | None],
        *pointers: torch.Tensor,
        **kwargs: Any,
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Return the loss, `None` without labels (B, T), and the logits of the decoder's states (B, T, D).

        `source` are the encoder's states (B, S, D) and the mask of the source (B, S), `None` without padding; the
        rest are arguments of the model's own `loss_and_logits`.
        """
        return model.loss_and_logits(hidden_states, labels, *pointers, **kwargs)
