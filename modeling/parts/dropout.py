"""Dropout that costs nothing at rate 0 and little on a CPU, and stochastic depth."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


def identity(x: Any) -> Any:
    """Return the input."""
    return x


def build_dropout(rate: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return dropout (Srivastava et al. 2014), at rate 0 a plain function: modules are slow for single tokens."""
    return Dropout(rate) if rate else identity


class Dropout(nn.Dropout):
    """`nn.Dropout` (Srivastava et al. 2014) that draws 16 random bits per element on a CPU, where torch draws 64.

    The rate is rounded to a multiple of 2⁻¹⁶; the elements that remain are divided by the exact probability.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        retained = round((1 - self.p) * 2**16)  # out of 2^16 equally likely numbers
        plain = type(input) is torch.Tensor and input.is_cpu and not torch.compiler.is_compiling()
        plain = plain and not torch._C._are_functorch_transforms_active()  # vmap cannot draw in place
        if not (self.training and 0 < retained < 2**16 and plain):
            return super().forward(input)
        bits = torch.empty(-(-input.numel() // 4), dtype=torch.int64, device=input.device).random_(-(2**63), None)
        numbers = bits.view(torch.int16)[: input.numel()].view(input.shape)  # four in 64 bits
        mask = (numbers < retained - 2**15).to(input.dtype).mul_(2**16 / retained)
        return input * mask


class DropPath(nn.Module):
    """Stochastic depth (Huang et al. 2016): training skips a sublayer, independently for each row of the batch.

    What remains is divided by the probability of remaining, so that the sum has the same expectation.
    """

    def __init__(self, rate: float):
        super().__init__()
        self.rate = rate

    def forward(self, out: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return out
        draws = torch.rand(out.shape[0], *[1] * (out.dim() - 1), device=out.device)
        return out * ((draws >= self.rate).to(out.dtype) / (1 - self.rate))

    def extra_repr(self) -> str:
        return f"rate={self.rate:g}"
