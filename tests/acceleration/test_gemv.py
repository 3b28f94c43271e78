"""Products with a few rows are those of `torch.nn.functional.linear`, and `generate` uses them while it runs."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from modeling.toys import tokens, toy, with_autocast
from torch import nn
from torch.nn.functional import linear

from vanillaformer.acceleration import gemv
from vanillaformer.acceleration.gemv import MAX_ROWS, TRANSPOSED, WARMUP_CALLS, sum_of_rows, transposed_weights

from .conftest import D, E, fast_layer, quantized_layer

LARGEST = MAX_ROWS[torch.float32]


@pytest.fixture
def used(copies: None, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Whatever can be computed so is; returns the numbers of rows that were."""
    rows: list[int] = []

    def counted(x: torch.Tensor, table: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        rows.append(x.numel() // len(table))
        return sum_of_rows(x, table, bias)

    monkeypatch.setattr(gemv, "sum_of_rows", counted)
    return rows


def multiply(made: nn.Linear, x: torch.Tensor, times: int = WARMUP_CALLS) -> torch.Tensor:
    """Return what a layer gives the last of some times."""
    with torch.no_grad(), transposed_weights(made):
        return [made(x) for _ in range(times)][-1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("inputs", [1, 63, 64, 133, 700])
@pytest.mark.parametrize("shape", [(1,), (), (1, 1), (3, 1), (2, 4), (LARGEST, 1)], ids=str)
def test_it_is_as_exact_as_linear(shape, inputs, bias, dtype):
    generator = torch.Generator().manual_seed(0)
    sizes = (*shape, inputs), (E, inputs), (E,)
    x, weight, b = (torch.randn(size, generator=generator).to(dtype) for size in sizes)
    b = b if bias else None
    exact = linear(x.double(), weight.double(), None if b is None else b.double())
    ours, theirs = sum_of_rows(x, weight.t().contiguous(), b), linear(x, weight, b)
    assert ours.shape == exact.shape
    assert ours.is_contiguous()
    error, usual = ((found - exact).norm() / exact.norm() for found in (ours, theirs))
    assert error <= max(2 * usual, 2e-7)  # in bfloat16 the bias is added to what is rounded


def test_rows_may_have_any_layout_in_memory():
    x, weight = torch.randn(D, 3).t(), torch.randn(E, D)
    torch.testing.assert_close(sum_of_rows(x, weight.t().contiguous(), None), linear(x, weight))


def test_weights_are_read_anew_by_each_call(used):
    model, inputs = toy("decoder").eval(), {"input_ids": torch.tensor([[5, 6, 7]]), "max_new_tokens": 8}
    model.generate(**inputs)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter))
    used.clear()
    assert torch.equal(model.generate(**inputs), copy.deepcopy(model).generate(**inputs))
    assert used


@pytest.mark.parametrize("rows", [1, 9])
@pytest.mark.parametrize("kind", ["decoder", "encoder_decoder"])
def test_autocast_that_begins_in_the_model(kind, rows, used, monkeypatch):
    """As accelerate prepares a model for `bf16=True`: `generate` begins before; and rows become few as texts end."""
    model = with_autocast(toy(kind))
    inputs = {
        "input_ids": tokens(rows, 5), "max_new_tokens": 20, "eos_token_id": list(range(4, 12)), "pad_token_id": 0,
    }  # fmt: skip
    found = model.generate(**inputs)
    assert not used
    monkeypatch.setattr(gemv, "is_faster", lambda *_: False)
    assert torch.equal(found, model.generate(**inputs))


def test_a_dtype_or_weights_that_change_on_the_way(used):
    made, x = fast_layer(), torch.randn(1, D)
    with torch.no_grad(), transposed_weights(made):
        for _ in range(WARMUP_CALLS):
            made(x)
        used.clear()
        other = {"weight": torch.randn(E, D), "bias": torch.randn(E)}
        assert torch.equal(torch.func.functional_call(made, other, (x,)), linear(x, other["weight"], other["bias"]))
        with torch.autocast("cpu", torch.bfloat16):
            assert made(x.bfloat16()).dtype == torch.bfloat16
        with pytest.raises(RuntimeError):
            made(x.double())
        made.weight = nn.Parameter(torch.zeros(E, D))
        assert torch.equal(made(x)[0], made.bias)
    assert not used


def test_copies_end_with_the_call_and_a_call_inside_of_another_has_its_own(used):
    seen = []

    @transposed_weights(fast_layer())
    def fail() -> None:
        seen.append(TRANSPOSED.get())
        raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert seen != [None]
    assert TRANSPOSED.get() is None
    with transposed_weights(fast_layer()):
        outer = TRANSPOSED.get()
        with transposed_weights(fast_layer()):
            assert TRANSPOSED.get() is not outer
        assert TRANSPOSED.get() is outer


def test_a_layer_is_copied_once_it_is_used_often(used):
    x = torch.randn(1, D)
    multiply(fast_layer(), x, WARMUP_CALLS - 1)
    assert not used
    multiply(fast_layer(), x, WARMUP_CALLS + 2)
    assert used == [1] * 3


def autocast() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        multiply(fast_layer(), torch.randn(1, D))


def with_gradients() -> None:
    made, x = fast_layer(), torch.randn(1, D)
    with transposed_weights(made):
        for _ in range(WARMUP_CALLS):
            made(x).sum().backward()
    assert made.weight.grad is not None


def called_often(make: Callable[[nn.Linear], Callable[..., Any]]) -> None:
    made, x = fast_layer(), torch.randn(1, D)
    function = make(made)
    with torch.no_grad(), transposed_weights(made):
        for _ in range(WARMUP_CALLS):
            function(x)


@pytest.mark.parametrize(("case", "call"), {
    "too many rows": lambda: multiply(fast_layer(), torch.randn(LARGEST + 1, D)),
    "no row": lambda: multiply(fast_layer(), torch.randn(0, D)),
    "float64": lambda: multiply(fast_layer(dtype=torch.float64), torch.randn(1, D).double()),
    "float16": lambda: multiply(fast_layer(dtype=torch.float16), torch.randn(1, D).half()),
    "many rows in bfloat16": lambda: multiply(fast_layer(dtype=torch.bfloat16), torch.randn(3, D).bfloat16()),
    "another device": lambda: multiply(fast_layer(device="meta"), torch.randn(1, D, device="meta")),
    "a subclass": lambda: multiply(quantized_layer(), torch.randn(1, D)),
    "autocast": autocast, "gradients": with_gradients,
    "torch.jit.trace": lambda: called_often(lambda made: lambda x: torch.jit.trace(made, x, check_trace=False)),
    "torch.compile": lambda: called_often(lambda made: torch.compile(made, backend="eager", fullgraph=True)),
}.items())  # fmt: skip
def test_all_else_is_left_to_linear(case, call, used):
    multiply(fast_layer(), torch.randn(LARGEST, D))
    assert used.pop() == LARGEST
    call()
    assert not used


SIZES = {"MIN_WEIGHTS": D * E, "MIN_BYTES": 4 * D * E, "MAX_BYTES": 4 * D * E}


@pytest.mark.parametrize("limit", SIZES)
@pytest.mark.parametrize("beyond", [False, True])
def test_sizes_that_pay(limit, beyond, used, monkeypatch):
    monkeypatch.setattr(gemv, limit, SIZES[limit] + beyond * (-1 if limit == "MAX_BYTES" else 1))
    multiply(fast_layer(), torch.randn(1, D))
    assert bool(used) is not beyond


@pytest.mark.parametrize("options", [{"device": "meta"}, {"dtype": torch.float16}], ids=str)
def test_nothing_is_measured_for_models_elsewhere(options, monkeypatch):
    monkeypatch.setattr(gemv, "is_faster", lambda *_: pytest.fail("measured"))
    with transposed_weights(nn.Linear(2**12, 2**12, **options)):
        assert TRANSPOSED.get() is None


def test_copies_of_all_layers_have_a_limit(used, monkeypatch):
    monkeypatch.setattr(gemv, "MAX_BYTES", 2 * 4 * D * E)
    stack = nn.ModuleList([fast_layer() for _ in range(3)])
    with torch.no_grad(), transposed_weights(stack):
        for made in [*stack] * WARMUP_CALLS:
            made(torch.randn(1, D))
    assert len(used) == 2
