"""The distribution over the next target token: that of the output layer, or its mixture with copies of the source.

`POINTERS` is the list of choices.

Shape letters: B batch, T target length, S source length, D model width, V vocabulary; in training, only the N labeled
positions are mixed, (N, ...) in place of (B, T, ...).
"""

from typing import Any

import torch
from torch import nn

from vanillaformer.configuration import BlockConfig

from .dropout import identity


class NoPointer:
    """The output layer's distribution: nothing is read from the source."""

    mix = staticmethod(identity)

    def __init__(self, config: BlockConfig):
        pass

    def __call__(self, *states: torch.Tensor | None) -> tuple[()]:
        return ()


class PointerGenerator(nn.Module):
    """Copy mechanism (See et al. 2017): `p(w) = (1 - g) softmax(z)_w + g Σ_{i: x_i = w} a_i`, z being the logits.

    The attention on the source is `a = softmax(eᵀ W h / √D)` (Luong et al. 2015, "general"), the gate
    `(1 - g, g) = softmax(V [h; Σ a_i e_i] + b)`, with the decoder's state h and the encoder's states e. Source and
    target have one vocabulary.

    Shapes: h (B, T, D), e (B, S, D), source ids and mask (B, S) → gate (B, T, 2), attention and ids (B, T, S).
    """

    def __init__(self, config: BlockConfig):
        super().__init__()
        self.scaling = config.hidden_size**-0.5
        self.query = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.gate = nn.Linear(2 * config.hidden_size, 2)

    def forward(
        self,
        hidden_states: torch.Tensor,
        source_states: torch.Tensor,
        source_ids: torch.Tensor | None,
        source_mask: torch.Tensor | None,
    ) -> tuple[torch.Tensor, ...]:
        """Return log(1 - g) and log g, and the attention on each distinct token, summed at its first position."""
        if source_ids is None:
            raise ValueError(
                "output_distribution='pointer_generator' copies tokens of the source: give input_ids, or "
                "encoder_outputs that the encoder made from them"
            )
        mask = torch.ones_like(source_ids) if source_mask is None else source_mask
        scores = self.query(hidden_states) @ source_states.transpose(1, 2) * self.scaling  # (B, T, S)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        attention = scores.masked_fill(~mask.bool().unsqueeze(1), torch.finfo(scores.dtype).min).softmax(dim=-1)
        context = attention.to(source_states.dtype) @ source_states
        gate = self.gate(torch.cat([hidden_states, context], dim=-1)).to(attention.dtype).log_softmax(dim=-1)
        equal = (source_ids.unsqueeze(2) == source_ids.unsqueeze(1)) & mask.bool().unsqueeze(1)
        first = equal.int().argmax(dim=-1).unsqueeze(1).expand_as(attention)  # among equal tokens that are not padding
        summed = torch.zeros_like(attention).scatter_add(-1, first, attention)
        return gate, summed, source_ids.unsqueeze(1).expand_as(attention)

    @staticmethod
    def mix(logits: torch.Tensor, gate: torch.Tensor, attention: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Return log p (..., V), a fixed point of log-softmax, in place of the logits."""
        log_generate, log_copy = gate.split(1, dim=-1)
        log_p = logits.to(attention.dtype).log_softmax(dim=-1) + log_generate
        copied = attention > torch.finfo(attention.dtype).tiny  # where the logarithm has a finite gradient
        generated = log_p.gather(-1, ids)
        gain = torch.logaddexp(generated, log_copy + attention.where(copied, 1.0).log()) - generated
        return log_p.scatter_add(-1, ids, gain.where(copied, 0.0)).to(logits.dtype)


POINTERS: dict[str, type[Any]] = {"softmax": NoPointer, "pointer_generator": PointerGenerator}
