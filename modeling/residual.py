"""Where the norm and the residual sum stand around a sublayer; `RESIDUALS` is the list of choices.

A block calls `before(x)` to get the sublayer's input and `after(x, out)` to join its output with the stream.
"""

import torch
from torch import nn

from vanillaformer.configuration import BlockConfig

from .dropout import build_dropout
from .norms import build_norm


class Residual(nn.Module):
    """Base of the placements: owns the sublayer's norm and the dropout on its output.

    Shapes: all (..., D).
    """

    needs_final_norm = True
    """Whether the stack's output is an un-normalised sum, so that the stack ends with a norm of its own."""

    def __init__(self, config: BlockConfig):
        super().__init__()
        self.norm = build_norm(config)
        self.dropout = build_dropout(config.dropout)

    def before(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sublayer's input, given the stream `x`."""
        raise NotImplementedError

    def after(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Return the new stream, given the old one and the sublayer's output."""
        raise NotImplementedError


class PostNorm(Residual):
    """Post-LN (Vaswani et al. 2017): `norm(x + f(x))`."""

    needs_final_norm = False

    def before(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def after(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return self.norm(x + self.dropout(out))


class PreNorm(Residual):
    """Pre-LN (Radford et al. 2019; Xiong et al. 2020): `x + f(norm(x))`."""

    def before(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x)

    def after(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return x + self.dropout(out)


class NoResidual(Residual):
    """The ablation without the residual sum: `f(norm(x))`."""

    def before(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x)

    def after(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return self.dropout(out)


RESIDUALS: dict[str, type[Residual]] = {"post": PostNorm, "pre": PreNorm, "no_residual": NoResidual}


def build_residual(config: BlockConfig) -> Residual:
    """Return a sublayer's residual connection as `config` places it."""
    return RESIDUALS[config.norm_placement](config)


def build_final_norm(config: BlockConfig) -> nn.Module:
    """Return the norm at the end of a stack, or the identity where the last block has normalised already."""
    return build_norm(config) if RESIDUALS[config.norm_placement].needs_final_norm else nn.Identity()
