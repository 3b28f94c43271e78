"""Normalisation over the model width; the dictionary `NORMS` is the list of choices."""

import torch
from torch import nn

from vanillaformer.configuration import BlockConfig


class LayerNorm(nn.LayerNorm):
    """LayerNorm (Ba et al. 2016): `weight * (x - mean(x)) / sqrt(var(x) + eps) + bias`, over the last axis.

    Shapes: (..., D) → (..., D).
    """


class RMSNorm(nn.Module):
    """RMSNorm (Zhang and Sennrich 2019): `weight * x / sqrt(mean(x²) + eps)`, over the last axis, in float32.

    Shapes: (..., D) → (..., D).
    """

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x32 = x.to(torch.float32)
        x32 = x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * x32.to(x.dtype)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, eps={self.eps}"


NORMS = {"layer_norm": LayerNorm, "rms_norm": RMSNorm}


def build_norm(config: BlockConfig) -> nn.Module:
    """Return the norm that `config` names, over the model width."""
    return NORMS[config.norm](config.hidden_size, eps=config.norm_eps)
