"""Linear maps on a CPU in float32, by the faster of the two libraries that torch has for them.

`torch.nn.functional.linear` multiplies float32 matrices by MKL. On many processors oneDNN, torch's other library, is
up to two times as fast. Both sum in float32, each in an order of its own.

Shape letters: D inputs, E outputs.
"""

import math
import statistics
import time
from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import torch
from torch import nn
from torch.nn.functional import linear
from torch.utils.flop_counter import flop_registry, register_flop_formula

from .few_rows import few_rows_product
from .measured import is_faster

SWITCH = "VANILLAFORMER_ONEDNN"
"""Environment variable: 0 for never, 1 for always; otherwise oneDNN is used where it was measured to be faster."""
WORK = 2**22
"""Multiplications for each thread from which oneDNN pays: it takes 30 µs more to begin."""


def speed_up_linear_layers(model: nn.Module) -> None:
    """Give each linear layer of a model the faster product.

    The layers stay `nn.Linear`: programs that quantize, shard or replace layers look for that very class.
    """
    for layer in model.modules():
        if type(layer) is nn.Linear:
            layer.forward = partial(apply_layer, layer)  # type: ignore[method-assign]


def apply_layer(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    """Return a layer's `W x + b`: (..., D) → (..., E)."""
    if is_computed_now():
        if (found := few_rows_product(layer, x)) is not None:
            return found
        if x.numel() * layer.out_features < WORK:
            return linear(x, layer.weight, layer.bias)  # at once: there are dozens of these for every generated token
    return product(x, layer.weight, layer.bias)


def product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Return `W x + b`, like `torch.nn.functional.linear`: (..., D), (E, D) and (E) → (..., E)."""
    if not takes_onednn(x, weight):
        return linear(x, weight, bias)
    # Calling a function that can be differentiated takes as long as a small product
    return OneDNNLinear.apply(x, weight, bias) if is_differentiated() else OneDNNLinear.forward(x, weight, bias)


def takes_onednn(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Tell whether a product is one for oneDNN: large, of plain float32 tensors on a CPU, and computed now."""
    return (
        is_computed_now()
        and x.numel() * len(weight) >= WORK * torch.get_num_threads()
        and x.device.type == "cpu"
        and x.dtype == weight.dtype == torch.float32
        and type(x) is torch.Tensor
        and type(weight) in (nn.Parameter, torch.Tensor)  # neither quantized nor sharded
        and weight.is_contiguous()
        and not torch.is_autocast_enabled("cpu")
        and bool(torch.backends.mkldnn.enabled)  # torch's own switch
        and onednn_is_faster()
    )


def is_computed_now() -> bool:
    """Tell whether shapes are numbers and products are computed, not recorded for a compiler or an export."""
    return not (torch.compiler.is_compiling() or torch.jit.is_tracing())


def is_differentiated() -> bool:
    """Tell whether derivatives may be asked for, backward, forward or by `torch.func`."""
    forward = torch.autograd.forward_ad._current_level >= 0
    return torch.is_grad_enabled() or forward or torch._C._are_functorch_transforms_active()


class OneDNNLinear(torch.autograd.Function):
    """See `product`. Derivatives of derivatives, and those forward, are computed by MKL."""

    @staticmethod
    def forward(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return linear(x.to_mkldnn(), weight, bias).to_dense()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None], output: Any) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.save_for_forward(*inputs[:2])

    @staticmethod
    def backward(ctx: Any, slope: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        return slopes(slope, x, weight, ctx.needs_input_grad)

    @staticmethod
    def jvp(
        ctx: Any, x_slope: torch.Tensor | None, weight_slope: torch.Tensor | None, bias_slope: torch.Tensor | None
    ) -> torch.Tensor:
        x, weight = ctx.saved_tensors
        terms = [None if x_slope is None else linear(x_slope, weight)]
        terms += [None if weight_slope is None else linear(x, weight_slope)]
        terms += [None if bias_slope is None else bias_slope.expand(*x.shape[:-1], -1)]
        return reduce(torch.add, (term for term in terms if term is not None))

    @staticmethod
    def vmap(_: Any, dims: tuple[int | None, ...], *inputs: Any) -> tuple[torch.Tensor, int]:
        return torch.vmap(linear, dims)(*inputs), 0


def slopes(
    slope: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, needed: tuple[bool, ...]
) -> tuple[torch.Tensor | None, ...]:
    """Return the gradients by x, W and b, of those that are needed.

    Args:
        slope: The gradient by the product (..., E).
        x: (..., D).
        weight: (E, D).
        needed: Which of the three.
    """
    if torch.is_grad_enabled():  # which themselves are to be derived
        by_x = slope @ weight if needed[0] else None
        rows = slope.reshape(-1, len(weight))
        by_weight = rows.T @ x.reshape(len(rows), -1) if needed[1] else None
        return by_x, by_weight, rows.sum(0) if needed[2] else None
    found = torch.ops.aten.mkldnn_linear_backward(x.to_mkldnn(), slope.to_mkldnn(), weight, needed)
    by_x, *others = (value if wanted else None for value, wanted in zip(found, needed))
    return None if by_x is None else by_x.to_dense(), *others


def forward_flops(x: Any, weight: Any, *_: Any, **__: Any) -> int:
    """Return the operations of a product from the shapes of its operands."""
    return 2 * math.prod(x) * weight[0]


def backward_flops(x: Any, slope: Any, weight: Any, needed: Any, **_: Any) -> int:
    """Return the operations of its gradients: a product for that by x, one for that by W."""
    return 2 * math.prod(x) * weight[0] * sum(needed[:2])


# `torch.utils.flop_counter` knows only other products. This code may be loaded twice: once more from the Hub.
for operator, formula in (
    (torch.ops.aten.mkldnn_linear, forward_flops),
    (torch.ops.aten.mkldnn_linear_backward, backward_flops),
):
    if operator not in flop_registry:
        register_flop_formula(operator)(formula)


# ------------------------------------------------------------------------------------------------ which one is faster
def onednn_is_faster() -> bool:
    """Tell whether oneDNN is faster on this machine."""
    return bool(torch.backends.mkldnn.is_available()) and is_faster("oneDNN", SWITCH, speed)


def speed() -> float:
    """Return how many times as fast as MKL oneDNN multiplies matrices and computes their gradients."""
    draw = partial(torch.randn, generator=torch.Generator().manual_seed(0))
    x, weight, slope = draw(512, 768, requires_grad=True), draw(768, 768, requires_grad=True), draw(512, 768)

    def seconds(multiply: Callable[..., torch.Tensor]) -> float:
        start = time.perf_counter()
        torch.autograd.grad(multiply(x, weight, None), (x, weight), slope)
        return time.perf_counter() - start

    ratios = [seconds(linear) / seconds(OneDNNLinear.apply) for _ in range(6)]
    return statistics.median(ratios[1:])
