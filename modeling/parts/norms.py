"""Normalization over the last axis; the dictionary `NORMS` is the list of choices."""

from typing import cast

import torch
from torch import nn

from vanillaformer.configuration import BlockConfig


class LayerNorm(nn.LayerNorm):
    """LayerNorm (Ba et al. 2016): `weight * (x - mean(x)) / sqrt(var(x) + eps) + bias`, over the last axis."""

    def __init__(self, width: int, eps: float = 1e-5, weight: bool = True, bias: bool = True):
        super().__init__(width, eps, elementwise_affine=weight, bias=bias)
        if bias and not weight:  # torch has no such norm
            self.bias = nn.Parameter(torch.zeros(width))


class UnitOffsetLayerNorm(LayerNorm):
    """LayerNorm that multiplies by 1 + weight, the weight starting at 0: weight decay pulls it toward 1."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.layer_norm(x, self.normalized_shape, 1.0 + self.weight, self.bias, self.eps)

    def initial_values(self) -> dict[str, torch.Tensor]:
        return {"weight": torch.zeros(self.normalized_shape)}


class RMSNorm(nn.Module):
    """RMSNorm (Zhang and Sennrich 2019): `weight * x / sqrt(mean(x²) + eps) + bias`, over the last axis.

    It is computed in float32 or more.
    """

    def __init__(self, width: int, eps: float = 1e-6, weight: bool = True, bias: bool = False):
        super().__init__()
        self.width = width
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width)) if weight else None
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def normalize(self, x: torch.Tensor) -> torch.Tensor:
        """Return `x` divided by its root mean square, in float32 or more."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        return wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.normalize(x).to(x.dtype)
        scaled = normed if self.weight is None else self.weight * normed
        return scaled if self.bias is None else scaled + self.bias

    def extra_repr(self) -> str:
        return f"{self.width}, eps={self.eps}, weight={self.weight is not None}, bias={self.bias is not None}"


class UnitOffsetRMSNorm(RMSNorm):
    """RMSNorm that multiplies by 1 + weight, the weight starting at 0, in float32 or more (Gemma)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = cast(nn.Parameter, self.weight)  # a config with the unit offset has weights
        normed = self.normalize(x)
        scaled = (normed * (1.0 + weight.to(normed.dtype))).to(x.dtype)
        return scaled if self.bias is None else scaled + self.bias

    def initial_values(self) -> dict[str, torch.Tensor]:
        return {"weight": torch.zeros(self.width)}


class NormPerHead(nn.Module):
    """A norm over each head's width, with a weight per head and no bias (StableLM, Cohere).

    Shapes: (B, H, T, K) → (B, H, T, K).
    """

    def __init__(self, config: BlockConfig, heads: int):
        super().__init__()
        self.unit = float(config.norm_unit_offset)
        self.norm = NORMS[config.norm](config.head_dim, eps=config.norm_eps, weight=False, bias=False)
        self.weight = nn.Parameter(torch.full((heads, config.head_dim), 1.0 - self.unit))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.unit + self.weight).unsqueeze(1) * self.norm(x)  # (H, 1, K)

    def initial_values(self) -> dict[str, torch.Tensor]:
        return {"weight": torch.full(self.weight.shape, 1.0 - self.unit)}


NORMS: dict[str, type[nn.Module]] = {"layer_norm": LayerNorm, "rms_norm": RMSNorm}
UNIT_OFFSET_NORMS: dict[str, type[nn.Module]] = {"layer_norm": UnitOffsetLayerNorm, "rms_norm": UnitOffsetRMSNorm}


def build_norm(config: BlockConfig, width: int | None = None) -> nn.Module:
    """Return the norm that `config` selects, over `width` dimensions, by default D."""
    norm = (UNIT_OFFSET_NORMS if config.norm_unit_offset else NORMS)[config.norm]
    return norm(width or config.hidden_size, eps=config.norm_eps, weight=config.norm_weight, bias=config.norm_bias)
