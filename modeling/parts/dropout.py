"""Dropout that costs nothing where there is none, and little on a CPU."""

from collections.abc import Callable

import torch
from torch import nn

LANES = 4  # random numbers of 16 bits in one of 64


def keep(x: torch.Tensor) -> torch.Tensor:
    """Return the input."""
    return x


def build_dropout(rate: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return dropout (Srivastava et al. 2014) with this rate.

    At rate 0 it is a plain function: the call of a module takes longer than most of what happens to a single token.
    """
    return Dropout(rate) if rate else keep


def is_plain(x: torch.Tensor) -> bool:
    """Whether a tensor lies whole in a CPU's memory, and nobody traces or transforms what becomes of it."""
    if type(x) is not torch.Tensor or x.device.type != "cpu" or torch.compiler.is_compiling():
        return False
    return not torch._C._are_functorch_transforms_active()  # vmap has rules for nn.Dropout, not for numbers in place


class Dropout(nn.Dropout):
    """`nn.Dropout` that draws 16 random bits for a number on a CPU, where torch draws a float64, one by one.

    The rate is met to 2⁻¹⁷; what is kept is divided by the probability it really has.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        kept = round((1 - self.p) * 2**16)  # of 2^16 equally likely numbers
        if not (self.training and 0 < kept < 2**16 and is_plain(input)):
            return super().forward(input)
        bits = torch.empty(-(-input.numel() // LANES), dtype=torch.int64, device=input.device).random_(-(2**63), None)
        numbers = bits.view(torch.int16)[: input.numel()].view(input.shape)
        factors = (numbers < kept - 2**15).to(input.dtype).mul_(2**16 / kept)
        return input * factors
