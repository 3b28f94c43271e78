"""Products by oneDNN are those of `torch.nn.functional.linear`, with all their derivatives; and when they are used."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from modeling.toys import assert_close
from torch import nn
from torch.autograd import forward_ad
from torch.autograd.functional import jacobian
from torch.func import grad, hessian, jvp, vmap
from torch.nn.functional import linear
from torch.utils.flop_counter import FlopCounterMode
from transformers.pytorch_utils import Conv1D

from vanillaformer.acceleration import linear as fast_linear
from vanillaformer.acceleration import speed_up, switched_off
from vanillaformer.acceleration.chunked_loss import chunked_cross_entropy
from vanillaformer.acceleration.gemv import MAX_ROWS, TRANSPOSED, WARMUP_CALLS, transposed_weights
from vanillaformer.acceleration.linear import linear_forward, onednn_is_faster, takes_onednn
from vanillaformer.modeling.parts.dropout import identity

from .conftest import D, E, fast_layer, quantized_layer

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")

ROUNDING = 2e-6  # of sums of some dozens of float32 products


def operands(*shape: int, bias: bool = True) -> list[torch.Tensor]:
    sizes = [(*(shape or (7,)), D), (E, D), *[(E,)] * bias]
    return [torch.randn(size, requires_grad=True) for size in sizes]


def onednn_flops(call: Callable[[], Any]) -> int:
    with FlopCounterMode(display=False) as counter:
        call()
    return sum(count for name, count in counter.get_flop_counts()["Global"].items() if "mkldnn" in str(name))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(), (7,), (2, 5), (2, 1, 3)], ids=str)
def test_value_and_gradients_are_those_of_linear(shape, bias, onednn):
    inputs = operands(*shape, bias=bias)
    ours, theirs = linear_forward(*inputs), linear(*inputs)
    assert takes_onednn(*inputs[:2])
    assert ours.is_contiguous()
    assert not ours._is_view()  # which could not be written to
    assert_close(ours, theirs, "product", ROUNDING)
    slope = torch.randn_like(ours)
    for own, reference in zip(*(torch.autograd.grad(value, inputs, slope) for value in (ours, theirs))):
        assert_close(own, reference, "gradient", ROUNDING)


@pytest.mark.parametrize("rows", [14, 2])
def test_layers_of_gpt2_store_their_weights_by_inputs(rows, fast):
    """Training by oneDNN, and decoding from the weights as they are, without a copy."""
    layer, x = speed_up(Conv1D(E, D)), torch.randn(rows, D)
    both = lambda: (layer(x), *torch.autograd.grad(layer(x).square().sum(), (layer.weight, layer.bias)))  # noqa: E731
    assert onednn_flops(both) == 3 * 2 * rows * D * E
    found = both()
    with torch.no_grad(), transposed_weights(layer):
        decoded = [layer(x) for _ in range(WARMUP_CALLS)][-1]
        copied = TRANSPOSED.get().tables.get(layer, (None, None))[1]
        assert copied is None if rows > MAX_ROWS[torch.float32] else copied.data_ptr() == layer.weight.data_ptr()
    with switched_off():
        expected = both()
    for own, reference in zip((*found, decoded), (*expected, expected[0])):
        assert_close(own, reference, "product or gradient", ROUNDING)


@pytest.mark.parametrize("shape", [(6, 4, D), (2**10,)])
def test_rows_and_bias_may_have_any_layout_in_memory(shape, onednn):
    turned = (torch.randn(width, *shape[:-1]) for width in (shape[-1], E))
    x, slope = (tensor.movedim(0, -1) for tensor in turned)
    inputs = x.requires_grad_(), torch.randn(E, shape[-1], requires_grad=True)
    results = [f(*inputs, torch.arange(2.0 * E)[::2]) for f in (linear_forward, linear)]
    for own, reference in zip(*((result, *torch.autograd.grad(result, inputs, slope)) for result in results)):
        assert_close(own, reference, "value or gradient", ROUNDING)


@pytest.mark.parametrize("frozen", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2)], ids=str)
def test_what_is_frozen_has_no_gradient(frozen, onednn):
    inputs = operands()
    for number in frozen:
        inputs[number].requires_grad_(False)
    linear_forward(*inputs).pow(2).sum().backward()
    assert [value.grad is None for value in inputs] == [number in frozen for number in range(3)]


def second_derivatives(f: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> torch.Tensor:
    (slope,) = torch.autograd.grad(f(*inputs).pow(2).sum(), inputs[:1], create_graph=True)
    return torch.cat([each.flatten() for each in torch.autograd.grad(slope.pow(2).sum(), inputs)])


def rows_at_once(outputs: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return vmap(lambda slope: torch.autograd.grad(outputs, w, slope, retain_graph=True)[0])(torch.eye(len(outputs)))


@pytest.mark.parametrize(("name", "call"), {
    "grad": lambda f, x, w, b: grad(lambda w: f(x, w, b).pow(2).sum())(w),
    "of each row": lambda f, x, w, b: vmap(grad(lambda w, row: f(row, w, b).pow(2).sum()), (None, 0))(w, x),
    "forward": lambda f, x, w, b: jvp(lambda x, w, b: f(x, w, b), (x, w, b), (x.cos(), w.sin(), b.cos()))[1],
    "forward by x": lambda f, x, w, b: jvp(lambda x: f(x, w, b), (x,), (x.cos(),))[1],
    "forward by bias": lambda f, x, w, b: jvp(lambda b: f(x, w, b), (b,), (b.cos(),))[1],
    "many at once": lambda f, x, w, b: jacobian(lambda w: f(x, w, b).pow(2).sum(0), w, vectorize=True),
    "rows at once": lambda f, x, w, b: rows_at_once(f(x, w, b).sum(1), w),
    "second": second_derivatives,
    "hessian": lambda f, x, w, b: hessian(lambda row: f(row, w, b).pow(3).sum())(x[0]),
}.items())  # fmt: skip
def test_functions_of_functions(name, call, onednn):
    x, weight, bias = (value.detach().requires_grad_() for value in operands())
    ours, theirs = (call(function, x, weight, bias) for function in (linear_forward, linear))
    assert_close(ours, theirs, name, 4 * ROUNDING)


def test_forward_derivatives_without_gradients(onednn):
    """Without gradients a function that can be differentiated is not called, unless it has to be."""
    x, weight, bias = (value.detach() for value in operands())
    with torch.no_grad():
        found = jvp(lambda x: linear_forward(x, weight, bias), (x,), (x.cos(),))[1]
        assert_close(found, linear(x.cos(), weight), "jvp", ROUNDING)
        rows = vmap(lambda row: linear_forward(row, weight, bias))(x)
        assert_close(rows, linear(x, weight, bias), "vmap", ROUNDING)
        with forward_ad.dual_level():
            dual = linear_forward(forward_ad.make_dual(x, x.cos()), weight, bias)
            assert_close(forward_ad.unpack_dual(dual).tangent, linear(x.cos(), weight), "dual", ROUNDING)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("frozen", [None, "states", "weight"])
def test_chunks_of_a_loss(frozen, bias, onednn):
    layer, states = nn.Linear(D, E, bias=bias), torch.randn(11, D, requires_grad=True)
    targets = torch.randint(E, (11,))
    if frozen:
        {"states": states, "weight": layer.weight}[frozen].requires_grad_(False)
    inputs = [value for value in (states, *layer.parameters()) if value.requires_grad]
    ours = chunked_cross_entropy(states, layer, targets, identity, {}, 4)
    theirs = nn.functional.cross_entropy(linear(states, layer.weight, layer.bias), targets, reduction="sum")
    assert_close(ours, theirs, "loss", ROUNDING)
    assert onednn_flops(lambda: chunked_cross_entropy(states, layer, targets, identity, {}, 4)) >= 2 * 2 * 11 * D * E
    for own, reference in zip(*(torch.autograd.grad(2.5 * loss, inputs) for loss in (ours, theirs))):
        assert_close(own, reference, "gradient", 2 * ROUNDING)


def taken_within(context: Any) -> bool:
    with context:
        return takes_onednn(torch.randn(7, D), torch.randn(E, D))


def compiled() -> bool:
    found = []

    @torch.compile(backend=lambda module, _: found.append(str(module.graph)) or module.forward, fullgraph=True)
    def function(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return linear_forward(x, weight)

    function(torch.randn(7, D), torch.randn(E, D))
    return "mkldnn" in found[0]


def exported() -> bool:
    with torch.inference_mode():
        program = torch.export.export(nn.Sequential(fast_layer()), (torch.randn(7, D),))
    return "mkldnn" in str(program.graph)


@pytest.mark.parametrize(("case", "taken"), {
    "float64": lambda: takes_onednn(torch.randn(7, D).double(), torch.randn(E, D).double()),
    "bfloat16": lambda: takes_onednn(torch.randn(7, D).bfloat16(), torch.randn(E, D).bfloat16()),
    "weights with gaps": lambda: takes_onednn(torch.randn(7, D), torch.randn(E, 2 * D)[:, ::2]),
    "a subclass": lambda: onednn_flops(lambda: quantized_layer()(torch.randn(7, D))),
    "another device": lambda: takes_onednn(torch.randn(7, D, device="meta"), torch.randn(E, D, device="meta")),
    "autocast": lambda: taken_within(torch.autocast("cpu", torch.bfloat16)),
    "torch's switch": lambda: taken_within(torch.backends.mkldnn.flags(enabled=False, allow_tf32=False)),
    "torch.compile": compiled, "torch.export": exported,
    "torch.jit.trace": lambda: "mkldnn" in str(torch.jit.trace(fast_layer(), torch.randn(7, D)).inlined_graph),
}.items())  # fmt: skip
def test_all_else_is_left_to_linear(case, taken, onednn):
    assert takes_onednn(torch.randn(7, D), torch.randn(E, D))
    assert onednn_flops(lambda: fast_layer()(torch.randn(7, D)))
    assert not taken()


@pytest.mark.parametrize(("grad", "rows"), [(False, 2**6), (True, 2**9)])
def test_small_products_are_left_to_linear(grad, rows, monkeypatch):
    monkeypatch.setattr(fast_linear, "onednn_is_faster", lambda gradients: True)
    weight = torch.randn(2**8, 2**6)
    layer = speed_up(nn.Linear(2**6, 2**8))
    with torch.set_grad_enabled(grad):
        for count, large in ((rows, True), (rows - 1, False)):
            x = torch.randn(count, 2**6)
            assert takes_onednn(x, weight) == large
            assert bool(onednn_flops(lambda: layer(x))) == large  # noqa: B023 - called at once


def test_training_and_inference_are_measured_each_for_itself(monkeypatch):
    """Some processors gain by oneDNN only without gradients."""
    monkeypatch.setattr(fast_linear, "is_faster", lambda name, switch, speed: name == "oneDNN, inference")
    assert not takes_onednn(torch.randn(512, 256), torch.randn(256, 256))
    with torch.no_grad():
        assert takes_onednn(torch.randn(512, 256), torch.randn(256, 256))


def test_a_torch_without_onednn(monkeypatch):
    monkeypatch.setattr(fast_linear, "is_faster", lambda *_: True)
    assert onednn_is_faster(gradients=True)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert not onednn_is_faster(gradients=True)
    assert not onednn_is_faster(gradients=False)
