"""Dropout that costs nothing where there is none."""

from collections.abc import Callable

import torch
from torch import nn


def keep(x: torch.Tensor) -> torch.Tensor:
    """Return the input."""
    return x


def build_dropout(rate: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return dropout (Srivastava et al. 2014) with this rate.

    At rate 0 it is a plain function: the call of a module takes longer than most of what happens to a single token.
    """
    return nn.Dropout(rate) if rate else keep
