"""Layers left out at random while training."""

from collections.abc import Callable, Iterable

import torch
from torch import nn

from .block import CrossAttentionBlock
from .parts.dropout import keep


class SkippedBlock(CrossAttentionBlock):
    """What runs in place of a block that is left out: (B, T, D) → the same.

    It is a block of either kind and has no parts, so that what records blocks records this one too.
    """

    def __init__(self) -> None:
        nn.Module.__init__(self)

    def forward(self, hidden_states: torch.Tensor, *arguments, **keywords) -> torch.Tensor:
        return hidden_states


class LayerDrop(nn.Module):
    """Leaves out each layer with a probability of its own while training (Fan et al. 2020), and none in evaluation.

    The draw is on the CPU, whose random state a checkpoint has. Unlike dropout it scales nothing: what is left of a
    sum of residual connections is a shallower network.

    Args:
        rate: The probability.
    """

    def __init__(self, rate: float):
        super().__init__()
        self.rate, self.skipped = rate, SkippedBlock()

    def forward(self, layers: Iterable[nn.Module]) -> Iterable[nn.Module]:
        """Return what runs in place of the layers, as many."""
        if not self.training:
            return layers
        layers = list(layers)
        draws = torch.rand(len(layers), device="cpu").tolist()
        return [self.skipped if draw < self.rate else layer for layer, draw in zip(layers, draws)]


def build_layer_drop(rate: float) -> Callable[[Iterable[nn.Module]], Iterable[nn.Module]]:
    """Return layer drop with this rate; at rate 0 a plain function, which returns the layers."""
    return LayerDrop(rate) if rate else keep  # type: ignore[return-value]
