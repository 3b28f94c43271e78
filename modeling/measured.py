"""Initializations of a new model that depend on data: Admin, DT-Fixup and GradInit."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from .base import VanillaPreTrainedModel
from .parts.initialization import VALUE_MAPS
from .parts.residual import AdminResidual
from .stack import Stack

SUBLAYERS = ("self_attn", "cross_attn", "mlp")
Batch = Mapping[str, torch.Tensor]


@contextmanager
def evaluating(model: nn.Module) -> Iterator[ExitStack]:
    """Turn dropout off inside the `with` block, and yield a stack for hooks that end with it."""
    with ExitStack() as exit_stack:
        exit_stack.callback(model.train, model.training)
        model.eval()
        yield exit_stack


@torch.no_grad()
def profile_admin(model: VanillaPreTrainedModel, **batch: torch.Tensor) -> dict[str, float]:
    """Set ω of each sublayer i to `√(1 + Σ_{j<i} Var[f_j])`, from one forward pass with ω = 1 on `batch`.

    This is Admin's profiling pass (Liu et al. 2020, section 4.3). f_j are the outputs of the sublayers in the same
    stack, and 1 is the variance of the normalized embeddings. Call it once, on a new model, before training; the
    factors are parameters and are saved. Returns them by the name of the residual connection.
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

    with evaluating(model) as hooks:
        for stack_name, stack in model.named_modules():
            for block in stack.layers if isinstance(stack, Stack) else []:
                for name in filter(partial(hasattr, block), SUBLAYERS):
                    hook = partial(record, stack_name, getattr(block, f"{name}_residual"))
                    hooks.enter_context(getattr(block, name).register_forward_hook(hook))
        model(**batch)
    return variances


@torch.no_grad()
def scale_by_inputs(model: VanillaPreTrainedModel, batches: Iterable[Batch]) -> dict[str, float]:
    """Multiply the value, output and feed-forward maps of each stack by `(4 N μ²)^-½ = N^-½ / 2μ` (Xu et al. 2021).

    N is the number of blocks, μ the largest norm of a vector in a stack's input, and 4 the number of a block's maps:
    two in each of two sublayers. (The authors have 4 μ² + 2 μ + 2 where attention also reads relations.)
    The paper has no decoders with cross-attention: their three sublayers make it 6 here.
    Call it once, on a new model, before training, with batches of the training data: the paper takes all of it.
    Returns the factor of each map by the parameter's name.
    """
    if model.config.initialization != "dt_fixup":
        raise ValueError(f"scaling needs initialization='dt_fixup', got {model.config.initialization!r}")
    longest = max(longest_input(model, batch) for batch in batches)
    factors: dict[str, float] = {}
    for stack_name, stack in model.named_modules():
        if isinstance(stack, Stack):
            first: Any = stack.layers[0]
            maps = 2 * first.sublayers * len(stack.layers)
            for name, parameter in stack.layers.named_parameters(f"{stack_name}.layers".lstrip(".")):
                if name.endswith(VALUE_MAPS):
                    factors[name] = maps**-0.5 / longest
                    parameter.mul_(factors[name])
    return factors


def longest_input(model: VanillaPreTrainedModel, batch: Batch) -> float:
    """Return the largest norm of a vector in the input of a stack's first block."""
    lengths: list[float] = []

    def record(module: Any, inputs: tuple[Any, ...]) -> None:
        lengths.append(inputs[0].norm(dim=-1).max().item())

    with evaluating(model) as hooks:
        for stack in model.modules():
            if isinstance(stack, Stack):
                hooks.enter_context(stack.layers[0].register_forward_pre_hook(record))
        model(**batch)
    return max(lengths)


def learn_scales(
    model: VanillaPreTrainedModel,
    batches: Iterable[Batch],
    *,
    step_size: float = 1e-3,
    max_gradient: float = 1e3,
    rate: float = 1e-2,
    min_scale: float = 0.01,
) -> dict[str, float]:
    """Multiply each parameter tensor by a scale m, learned for `min_m L(S'; θ_m - η sign(g))` with `‖g‖₁ ≤ γ`.

    The first step of training then lowers the loss most (GradInit, Zhu et al. 2021).
    θ_m are the scaled parameters and g is the gradient of L(S; θ_m): the loss is that after the first step of Adam.
    Each batch is one step of algorithm 1: on the norm where it is above γ, else on the loss, each by an Adam of its
    own. S and S' share half of their rows. Call it once, on a new model, before training; for translation, the
    authors' code takes 780 batches and a rate of 0.0025. Returns the scales by the parameters' names.

    η is `step_size`, γ is `max_gradient`, and `rate` the learning rate of the scales, which are at least `min_scale`.
    """
    weights = {name: weight.detach() for name, weight in model.named_parameters() if weight.requires_grad}
    scales = {name: torch.ones((), device=weight.device, requires_grad=True) for name, weight in weights.items()}
    for_norm, for_loss = (torch.optim.Adam(scales.values(), lr=rate, betas=(0.9, 0.98)) for _ in range(2))
    with evaluating(model):
        for batch in batches:
            first, second = overlapping(batch)
            scaled = {name: scales[name].to(weight.dtype) * weight for name, weight in weights.items()}
            loss, leaves = loss_of(model, scaled, first), tuple(scaled.values())
            found = torch.autograd.grad(loss, leaves, create_graph=True, allow_unused=True, materialize_grads=True)
            gradients = dict(zip(scaled, found))
            norm = torch.stack([gradient.abs().sum() for gradient in gradients.values()]).sum()
            if norm > max_gradient:
                optimizer, objective = for_norm, norm
            else:
                stepped = {name: scaled[name] - step_size * gradients[name].detach().sign() for name in scaled}
                optimizer, objective = for_loss, loss_of(model, stepped, second)
            optimizer.zero_grad()
            objective.backward()
            optimizer.step()
            with torch.no_grad():
                for scale in scales.values():
                    scale.clamp_(min=min_scale)
    with torch.no_grad():
        for name, weight in weights.items():
            weight.mul_(scales[name])
    return {name: scale.item() for name, scale in scales.items()}


def overlapping(batch: Batch) -> tuple[Batch, Batch]:
    """Return two parts of a batch, each of two thirds of its rows: half of one are in the other, too."""
    rows = len(next(iter(batch.values())))
    parts = slice(rows - rows // 3), slice(rows // 3, None)
    first, second = ({name: value[part] for name, value in batch.items()} for part in parts)
    return first, second


def loss_of(model: VanillaPreTrainedModel, parameters: Batch, batch: Batch) -> torch.Tensor:
    """Return the loss with other parameters than the model's, which can be differentiated twice."""
    with sdpa_kernel(SDPBackend.MATH):  # the fused kernels have first derivatives only
        return functional_call(model, dict(parameters), kwargs=dict(batch))["loss"]
