"""The position-wise feed-forward layer and its activation; `FEED_FORWARDS` is the list of choices."""

import torch
from torch import nn
from transformers.activations import ACT2FN

from vanillaformer.configuration import ACTIVATION_ALIASES, BlockConfig

from .dropout import build_dropout


def build_activation(name: str) -> nn.Module:
    """Return the activation of this name in `ACT2FN`, as one kernel: `gelu_new` is several operations there."""
    return ACT2FN[ACTIVATION_ALIASES.get(name, name)]


class PlainFeedForward(nn.Module):
    """Two linear maps with an activation between (Vaswani et al. 2017, equation 2): `W₂ φ(W₁ x + b₁) + b₂`.

    Shapes: (..., D) → (..., D).
    """

    def __init__(self, config: BlockConfig):
        super().__init__()
        width, inner_width = config.hidden_size, config.intermediate_size
        self.up_proj = nn.Linear(width, inner_width, bias=config.mlp_bias)
        self.act_fn = build_activation(config.hidden_act)
        self.dropout = build_dropout(config.activation_dropout)
        self.down_proj = nn.Linear(inner_width, width, bias=config.mlp_bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.dropout(self.act_fn(self.up_proj(x))))


class GatedFeedForward(PlainFeedForward):
    """Gated linear unit (Shazeer 2020): `W₂ (φ(W_g x) ⊙ W₁ x)`; SwiGLU with `silu`, GEGLU with `gelu`."""

    def __init__(self, config: BlockConfig):
        super().__init__(config)
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=config.mlp_bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.dropout(self.act_fn(self.gate_proj(x)) * self.up_proj(x)))


FEED_FORWARDS: dict[str, type[PlainFeedForward]] = {"plain": PlainFeedForward, "gated": GatedFeedForward}


def build_feed_forward(config: BlockConfig) -> PlainFeedForward:
    """Return the feed-forward layer that `config` selects."""
    return FEED_FORWARDS[config.feed_forward](config)
