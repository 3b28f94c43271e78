"""Norm and residual connection around a sublayer f; `RESIDUALS` is the list of choices.

A block calls `before(x)` for the sublayer's input and `after(x, out)` to add its output to the residual stream x.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from vanillaformer.configuration import BlockConfig

from .dropout import DropPath, build_dropout, identity
from .norms import build_norm


class LayerScale(nn.Module):
    """Layer scale (CaiT, Touvron et al. 2021): `λ ⊙ f(x)`, λ trained from one small value in all dimensions."""

    def __init__(self, config: BlockConfig):
        super().__init__()
        self.initial = float(config.layer_scale_init_value or 0.0)
        self.weight = nn.Parameter(torch.full((config.hidden_size,), self.initial))

    def forward(self, out: torch.Tensor) -> torch.Tensor:
        return self.weight * out

    def initial_values(self) -> dict[str, torch.Tensor]:
        return {"weight": torch.full(self.weight.shape, self.initial)}


def build_factor(config: BlockConfig) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the factor on a sublayer's output: trained ones, a fixed one or none."""
    if config.layer_scale_init_value is not None:
        return LayerScale(config)
    return identity if config.residual_scale == 1.0 else partial(torch.mul, other=config.residual_scale)


class Residual(nn.Module):
    """The sum without a norm: `x + f(x)` (T-Fixup, Huang et al. 2020); the base of the placements.

    Shapes: all (..., D).
    """

    needs_final_norm = False  # whether the output of the last block is not normalized

    def __init__(self, config: BlockConfig, cross_attention: bool = False, layer_idx: int = 0):
        super().__init__()
        self.dropout = build_dropout(config.dropout)
        self.layer_scale = build_factor(config)
        self.drop_path = identity
        if config.drop_path_rate:  # linear from 0 in the first layer to the config's rate in the last
            depth = config.num_hidden_layers
            rate = config.drop_path_rate * layer_idx / (depth - 1) if depth > 1 else config.drop_path_rate
            self.drop_path = DropPath(rate) if rate else identity

    def branch(self, out: torch.Tensor) -> torch.Tensor:
        """Return what the sublayer's output `out` contributes to the sum."""
        return self.drop_path(self.layer_scale(self.dropout(out)))

    def before(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sublayer's input, given the stream `x`."""
        return x

    def after(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Return the new stream, given the old one `x` and the sublayer's output `out`."""
        return x + self.branch(out)


class NormedResidual(Residual):
    """Base of the placements with a norm."""

    def __init__(self, config: BlockConfig, cross_attention: bool = False, layer_idx: int = 0):
        super().__init__(config, cross_attention, layer_idx)
        self.norm = build_norm(config)


class PostNorm(NormedResidual):
    """Post-LN (Vaswani et al. 2017): `norm(x + f(x))`."""

    def after(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return self.norm(x + self.branch(out))


class PreNorm(NormedResidual):
    """Pre-LN (Radford et al. 2019; Xiong et al. 2020): `x + f(norm(x))`."""

    needs_final_norm = True

    def before(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x)


class SandwichNorm(PreNorm):
    """Norms on both sides of the sublayer (CogView, Ding et al. 2021; Gemma 2): `x + norm'(f(norm(x)))`."""

    def __init__(self, config: BlockConfig, cross_attention: bool = False, layer_idx: int = 0):
        super().__init__(config, cross_attention, layer_idx)
        self.out_norm = build_norm(config)

    def after(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return x + self.branch(self.out_norm(out))


class InsideNorm(NormedResidual):
    """Norm of the output, inside the residual connection (OLMo 2, 2025): `x + norm(f(x))`."""

    needs_final_norm = True

    def after(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return x + self.branch(self.norm(out))


class ReZero(Residual):
    """ReZero (Bachlechner et al. 2020): `x + α f(x)`, α trained from 0."""

    def __init__(self, config: BlockConfig, cross_attention: bool = False, layer_idx: int = 0):
        super().__init__(config, cross_attention, layer_idx)
        self.alpha = nn.Parameter(torch.zeros(1))

    def after(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return x + self.alpha * self.branch(out)

    def initial_values(self) -> dict[str, torch.Tensor]:
        return {"alpha": torch.zeros(1)}


class DeepNorm(PostNorm):
    """DeepNorm, post-LN with a weight on the stream (Wang et al. 2022): `norm(α x + f(x))`, α = (2N)^¼ in N layers."""

    def __init__(self, config: BlockConfig, cross_attention: bool = False, layer_idx: int = 0):
        super().__init__(config, cross_attention, layer_idx)
        self.alpha, _ = config.deepnorm_scales(cross_attention)

    def after(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return self.norm(self.alpha * x + self.branch(out))


class AdminResidual(PostNorm):
    """Admin, post-LN with trained factors on the stream (Liu et al. 2020): `norm(ω ⊙ x + f(x))`.

    ω is 1 until `modeling/measured.py` sets it from the variances of the sublayers before this one.
    """

    def __init__(self, config: BlockConfig, cross_attention: bool = False, layer_idx: int = 0):
        super().__init__(config, cross_attention, layer_idx)
        self.omega = nn.Parameter(torch.ones(config.hidden_size))

    def after(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return self.norm(self.omega * x + self.branch(out))

    def initial_values(self) -> dict[str, torch.Tensor]:
        return {"omega": torch.ones_like(self.omega, device="cpu")}


class NoResidual(PreNorm):
    """Ablation without the residual connection: `f(norm(x))`."""

    def after(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return self.branch(out)


RESIDUALS: dict[str, type[Residual]] = {
    "post": PostNorm,
    "pre": PreNorm,
    "sandwich": SandwichNorm,
    "inside": InsideNorm,
    "rezero": ReZero,
    "deepnorm": DeepNorm,
    "admin": AdminResidual,
    "no_norm": Residual,
    "no_residual": NoResidual,
}


def build_residual(config: BlockConfig, cross_attention: bool = False, layer_idx: int = 0) -> Residual:
    """Return the residual connection of one sublayer that `config` selects."""
    return RESIDUALS[config.norm_placement](config, cross_attention, layer_idx)


def build_final_norm(config: BlockConfig) -> nn.Module:
    """Return the norm at the end of a stack, or the identity if the last block ends with one."""
    if config.final_norm or (config.final_norm is None and RESIDUALS[config.norm_placement].needs_final_norm):
        return build_norm(config)
    return nn.Identity()
