"""Attention of a recurrent decoder to the states of the encoder; `CROSS_ATTENTIONS` is the list of choices.

Shape letters: B batch, T target length, S source length, D width of the decoder, E width of the encoder.
"""

from typing import NamedTuple

import torch
from torch import nn

from vanillaformer.configuration import VanillaRecurrentEncoderDecoderConfig


class Memory(NamedTuple):
    """Source of a decoder: states (B, S, E), their keys (B, S, ...), and the mask (B, S), 0 on padding."""

    states: torch.Tensor
    keys: torch.Tensor
    mask: torch.Tensor | None


class NoAttention(nn.Module):
    """No attention: the states of the decoder are its output."""

    def __init__(self, config: VanillaRecurrentEncoderDecoderConfig):
        super().__init__()

    def keys(self, states: torch.Tensor) -> torch.Tensor:
        """Return the part of the scores that depends on the source only, (B, S, E) → (B, S, ...)."""
        return states

    def forward(self, queries: torch.Tensor, memory: Memory) -> tuple[torch.Tensor, torch.Tensor | None]:
        return queries, None


class GlobalAttention(NoAttention):
    """Attention of a recurrent decoder (Luong et al. 2015): `tanh(W [Σ_s a_s e_s; h])`, a = softmax of the scores.

    Shapes: states h (B, T, D), memory → (B, T, D), weights a (B, T, S).
    """

    def __init__(self, config: VanillaRecurrentEncoderDecoderConfig):
        super().__init__(config)
        self.o_proj = nn.Linear(config.encoder_width + config.hidden_size, config.hidden_size, bias=False)

    def scores(self, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Return the scores (B, T, S) of states (B, T, D) and keys (B, S, ...)."""
        raise NotImplementedError

    def forward(self, queries: torch.Tensor, memory: Memory) -> tuple[torch.Tensor, torch.Tensor | None]:
        scores = self.scores(queries, memory.keys)
        if memory.mask is not None:
            scores = scores.masked_fill(memory.mask[:, None] == 0, torch.finfo(scores.dtype).min)
        weights = scores.softmax(dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(queries.dtype)
        context = weights @ memory.states
        return torch.tanh(self.o_proj(torch.cat([context, queries], dim=-1))), weights


class DotAttention(GlobalAttention):
    """`score(h, e) = h · e`, of encoder and decoder states of one width."""

    def scores(self, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        return queries @ keys.transpose(1, 2)


class GeneralAttention(GlobalAttention):
    """`score(h, e) = h W e` (Luong et al. 2015)."""

    def __init__(self, config: VanillaRecurrentEncoderDecoderConfig):
        super().__init__(config)
        self.q_proj = nn.Linear(config.hidden_size, config.encoder_width, bias=False)

    def scores(self, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        return self.q_proj(queries) @ keys.transpose(1, 2)


class AdditiveAttention(GlobalAttention):
    """`score(h, e) = v · tanh(W h + U e)` (Bahdanau et al. 2015); it needs memory for B·T·S·D numbers.

    In the paper, h is the state before the step. Here it is the state after it, as for the other scores, so that the
    steps do not wait for each other; with input feeding, the next step has what the paper's has.
    """

    def __init__(self, config: VanillaRecurrentEncoderDecoderConfig):
        super().__init__(config)
        self.q_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.k_proj = nn.Linear(config.encoder_width, config.hidden_size, bias=False)
        self.score_proj = nn.Linear(config.hidden_size, 1, bias=False)

    def keys(self, states: torch.Tensor) -> torch.Tensor:
        return self.k_proj(states)

    def scores(self, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        return self.score_proj(torch.tanh(self.q_proj(queries)[:, :, None] + keys[:, None])).squeeze(-1)


CROSS_ATTENTIONS: dict[str, type[NoAttention]] = {
    "none": NoAttention,
    "dot": DotAttention,
    "general": GeneralAttention,
    "additive": AdditiveAttention,
}
