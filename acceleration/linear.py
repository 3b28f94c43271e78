"""Linear layers on a CPU in float32, by the faster of torch's two libraries.

`torch.nn.functional.linear` multiplies float32 matrices with MKL. On many processors oneDNN, torch's other library, is
up to twice as fast. Both sum in float32, in different orders.

Shape letters: D inputs, E outputs.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch._C._functorch import is_legacy_batchedtensor
from torch.nn.functional import linear
from torch.utils.flop_counter import register_flop_formula
from transformers.pytorch_utils import Conv1D

from .autotune import is_faster, speedup
from .gemv import TRANSPOSED, few_rows_forward
from .plain import MARK, is_computed_now, is_plain

SWITCH = "VANILLAFORMER_ONEDNN"
"""Environment variable: 0 for never, 1 for always; otherwise oneDNN is used where it was measured to be faster."""
NARROW = 32  # features below which oneDNN's gradients of weights corrupt memory: seen with the AVX2 kernels
WORK = {False: 2**20, True: 2**23}
"""Multiplications from which oneDNN pays off, without and with gradients: its overhead is 5 µs and 100 µs."""

PLAIN_FORWARD, PLAIN_CONV1D = nn.Linear.forward, Conv1D.forward


def faster_forward(self: nn.Linear, input: torch.Tensor) -> torch.Tensor:
    """Return `W x + b`, (..., D) → (..., E): the `forward` of `nn.Linear`, faster for marked layers."""
    if torch.jit.is_scripting():  # the only branch that TorchScript compiles
        return torch.nn.functional.linear(input, self.weight, self.bias)
    else:
        return apply_layer(self, input)


def apply_layer(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    if MARK in layer.__dict__ and type(x) is torch.Tensor and x.is_cpu and is_computed_now():
        # Small products skip the slower checks: there are dozens for every generated token
        pays = TRANSPOSED.get() is not None or x.numel() * layer.out_features >= WORK[False]
        if pays and is_plain(layer, x):
            found = few_rows_forward(layer, x)
            return linear_forward(x, layer.weight, layer.bias) if found is None else found
    return PLAIN_FORWARD(layer, x)


def faster_conv1d(self: Conv1D, x: torch.Tensor) -> torch.Tensor:
    """The same for transformers' `Conv1D` (GPT-2), whose weights (D, E) are stored by inputs."""
    if MARK in vars(self) and is_plain(self, x):
        found = few_rows_forward(self, x)
        if found is not None:
            return found
        if takes_onednn(x, self.weight.t()):
            return linear_forward(x, self.weight.t(), self.bias)
    return PLAIN_CONV1D(self, x)


def linear_forward(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Return `W x + b`, like `torch.nn.functional.linear`: (..., D), (E, D) and (E) → (..., E)."""
    if not takes_onednn(x, weight):
        return linear(x, weight, bias)
    # Calling an autograd function takes as long as a small product
    return (OneDNNLinear.apply if torch.is_grad_enabled() else onednn_linear)(x, weight, bias)


def takes_onednn(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Return whether oneDNN computes a product of plain tensors: large, in float32 on a CPU, and eager."""
    return (
        is_computed_now()
        and x.numel() * len(weight) >= WORK[torch.is_grad_enabled()]
        and x.device.type == "cpu"
        and x.dtype == weight.dtype == torch.float32
        and (weight.is_contiguous() or weight.t().is_contiguous())
        and not torch.is_autocast_enabled("cpu")
        and bool(torch.backends.mkldnn.enabled)  # torch's own switch
        and onednn_is_faster(torch.is_grad_enabled())
    )


class OneDNNLinear(torch.autograd.Function):
    """See `linear_forward`. Second derivatives are computed by MKL."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return onednn_linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        return onednn_backward(grad_output, x, weight, ctx.needs_input_grad)


def onednn_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Return `W x + b` by the operation that torch's compiler uses, as it takes plain tensors without copying them."""
    bias = None if bias is None else bias.contiguous()  # others are read wrong
    found = torch.ops.mkldnn._linear_pointwise.default(x.contiguous(), weight, bias, "none", [], "")
    return found.data  # not a view, as for inputs of three axes: autograd forbids writing to it


def linear_backward(
    grad_output: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, needed: tuple[bool, ...]
) -> tuple[torch.Tensor | None, ...]:
    """Return the gradients of x (..., D), W (E, D) and b, if needed, from that of the output (..., E)."""
    by_x = grad_output @ weight if needed[0] else None
    rows = grad_output.reshape(-1, len(weight))
    by_weight = rows.T @ x.reshape(len(rows), -1) if needed[1] else None
    return by_x, by_weight, rows.sum(0) if needed[2] else None


def onednn_backward(
    grad_output: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, needed: tuple[bool, ...]
) -> tuple[torch.Tensor | None, ...]:
    unsupported = is_legacy_batchedtensor(grad_output) or not is_computed_now() or min(weight.shape) < NARROW
    if torch.is_grad_enabled() or unsupported:  # second derivatives, several gradients at once, or narrow
        return linear_backward(grad_output, x, weight, needed)
    by_x = onednn_linear(grad_output, weight.t(), None) if needed[0] else None
    if not any(needed[1:]):
        return by_x, None, None
    wanted = (False, *needed[1:])
    matrices = (value.reshape(-1, value.shape[-1]).to_mkldnn() for value in (x, grad_output))
    found = torch.ops.aten.mkldnn_linear_backward(*matrices, weight, wanted)
    return by_x, *(value if asked else None for value, asked in zip(found[1:], needed[1:]))


def forward_flops(x: Any, weight: Any, *_: Any, **__: Any) -> int:
    """Return the FLOPs of a product from the shapes of its operands."""
    return 2 * math.prod(x) * weight[0]


if torch.backends.mkldnn.is_available():  # `torch.utils.flop_counter` does not know these operations
    register_flop_formula(torch.ops.mkldnn._linear_pointwise)(forward_flops)


@register_flop_formula(torch.ops.aten.mkldnn_linear_backward)
def backward_flops(x: Any, grad_output: Any, weight: Any, needed: Any, **_: Any) -> int:
    """Return the FLOPs of its gradients: one product for x, one for W."""
    return 2 * math.prod(x) * weight[0] * sum(needed[:2])


# ------------------------------------------------------------------------------------------------ which one is faster
def onednn_is_faster(gradients: bool) -> bool:
    """Return whether oneDNN is used for products with gradients, or without: some processors gain only without."""
    name = "oneDNN" if gradients else "oneDNN, inference"
    return bool(torch.backends.mkldnn.is_available()) and is_faster(name, SWITCH, partial(speed, gradients))


def speed(gradients: bool) -> float:
    """Return the speedup of oneDNN over MKL: of large products with gradients, or of small ones without."""
    draw = partial(torch.randn, generator=torch.Generator().manual_seed(0), dtype=torch.float32, device="cpu")
    x, weight, grad_output = draw(512, 768, requires_grad=True), draw(768, 768, requires_grad=True), draw(512, 768)

    def train(multiply: Callable[..., torch.Tensor]) -> Any:
        return torch.autograd.grad(multiply(x, weight, None), (x, weight), grad_output)

    def infer(multiply: Callable[..., torch.Tensor]) -> Any:
        return [multiply(rows, weight, None) for rows in (x[:16].detach(), x[:64].detach()) * 4]

    compute, way = (train, OneDNNLinear.apply) if gradients else (torch.no_grad()(infer), onednn_linear)
    return speedup(partial(compute, linear), partial(compute, way), 6)
