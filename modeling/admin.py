"""Admin's profiling pass (Liu et al. 2020, section 4.3), which sets the factors on the residual stream by a batch."""

from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import nn

from .base import VanillaPreTrainedModel
from .parts.residual import AdminResidual
from .stack import Stack

SUBLAYERS = ("self_attn", "cross_attn", "mlp")


@torch.no_grad()
def profile_admin(model: VanillaPreTrainedModel, **batch: torch.Tensor) -> dict[str, float]:
    """Set ω of each sublayer i to `√(1 + Σ_{j<i} Var[f_j])`, from one forward pass with ω = 1 on `batch`.

    f_j are the outputs of the sublayers in the same stack, and 1 is the variance of the normalized embeddings. Call it
    once, on a new model, before training; the factors are parameters and are saved. Returns them by the name of the
    residual connection.
    """
    names = {module: name for name, module in model.named_modules() if isinstance(module, AdminResidual)}
    if not names:
        raise ValueError(f"profiling needs norm_placement='admin', got {model.config.norm_placement!r}")
    for residual in names:
        nn.init.ones_(residual.omega)
    variances = output_variances(model, batch)
    factors = {}
    for stack_variances in variances.values():
        total = 1.0
        for residual, variance in stack_variances:
            factors[names[residual]] = total**0.5
            residual.omega.fill_(total**0.5)
            total += variance
    return factors


def output_variances(model: nn.Module, batch: dict[str, Any]) -> dict[str, list[tuple[AdminResidual, float]]]:
    """Return, for each stack, its residual connections in order with the variance of their sublayer's output."""
    variances: dict[str, list[tuple[AdminResidual, float]]] = {}

    def record(stack: str, residual: AdminResidual, module: nn.Module, inputs: Any, output: Any) -> None:
        out = output[0] if isinstance(output, tuple) else output
        variances.setdefault(stack, []).append((residual, out.float().var(unbiased=False).item()))

    with ExitStack() as until_the_end:
        until_the_end.callback(model.train, model.training)
        model.eval()
        for stack_name, stack in model.named_modules():
            for block in stack.layers if isinstance(stack, Stack) else []:
                for name in filter(partial(hasattr, block), SUBLAYERS):
                    hook = partial(record, stack_name, getattr(block, f"{name}_residual"))
                    until_the_end.enter_context(getattr(block, name).register_forward_hook(hook))
        model(**batch)
    return variances
