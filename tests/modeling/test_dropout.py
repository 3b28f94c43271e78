"""Dropout of numbers, and of layers."""

import math

import pytest
import torch

from vanillaformer.modeling.block import LayerDrop
from vanillaformer.modeling.parts.dropout import Dropout, build_dropout, identity

from .toys import KINDS, inputs_of, labels_of, toy


def kept(rate: float, *shape: int) -> torch.Tensor:
    """Return what dropout keeps of ones, as 0 and 1."""
    return (Dropout(rate)(torch.ones(shape)) != 0).double()


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.3, 0.5, 0.9])
def test_rate(rate: float) -> None:
    torch.manual_seed(0)
    count = 2**22
    assert abs(kept(rate, count).mean() - (1 - rate)) < 5 * math.sqrt(rate * (1 - rate) / count)


@pytest.mark.parametrize("distance", [1, 2, 3, 4, 8])
def test_neighbours_are_independent(distance: int) -> None:
    """The numbers that share a draw are next to each other: their covariance is that of independent ones."""
    torch.manual_seed(0)
    count, rate = 2**22, 0.3
    centred = kept(rate, count) - (1 - rate)
    for lane in range(4):
        first, second = centred[lane:-distance:4], centred[lane + distance :: 4]
        deviation = rate * (1 - rate) / math.sqrt(len(first))
        assert abs((first[: len(second)] * second[: len(first)]).mean()) < 5 * deviation


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5, 7)])
def test_values_and_gradients(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape, dtype=dtype).requires_grad_()
    y = Dropout(0.25)(x)
    y.sum().backward()
    factors = x.grad
    assert (y.dtype, y.shape) == (dtype, x.shape)
    assert torch.equal(y, x * factors)
    assert all(factor in (0, torch.tensor(4 / 3, dtype=dtype).item()) for factor in factors.flatten().tolist())


def test_seed_and_mode_decide_and_the_default_device_does_not() -> None:
    x, layer = torch.ones(1000), Dropout(0.5)
    torch.manual_seed(1)
    first, other = layer(x), layer(x)
    torch.manual_seed(1)
    assert torch.equal(layer(x), first)
    assert not torch.equal(first, other)
    x = torch.randn(10)
    assert build_dropout(0) is identity
    assert identity(x) is x
    assert Dropout(0.5).eval()(x) is x
    x = torch.ones(5, 7)
    with torch.device("meta"):
        dropped = Dropout(0.5)(x)
    assert dropped.device == x.device
    assert set(dropped.unique().tolist()) <= {0.0, 2.0}


@pytest.mark.parametrize(("rate", "factor"), [(1.0, 0), (1e-9, 1)])
def test_extremes(rate: float, factor: float) -> None:
    torch.manual_seed(0)
    assert torch.equal(Dropout(rate)(torch.ones(100)), torch.full((100,), float(factor)))


def test_compiled() -> None:
    torch.manual_seed(0)
    x = torch.ones(2**16)
    # aot_eager: writing and compiling C++ takes half a minute
    share = (torch.compile(Dropout(0.3), fullgraph=True, backend="aot_eager")(x) != 0).double().mean()
    assert abs(share - 0.7) < 5 * math.sqrt(0.21 / 2**16)


@pytest.mark.parametrize("randomness", ["different", "same"])
def test_under_vmap_it_is_torchs(randomness: str) -> None:
    x, rate = torch.ones(4, 64), 0.5
    drop = torch.func.vmap(Dropout(rate), randomness=randomness)(x)
    expected = {0.0, 1 / (1 - rate)}
    assert {number for row in drop.tolist() for number in row} == expected
    assert torch.equal(drop[0], drop[1]) == (randomness == "same")


every_kind = pytest.mark.parametrize("kind", KINDS)
RATE = 0.5


def stacks(model) -> list:
    return [module for module in model.modules() if hasattr(module, "layer_drop")]


def test_no_rate_no_module_and_a_cache_while_training() -> None:
    assert all(stack.layer_drop is identity for stack in stacks(toy("decoder")))
    assert all(isinstance(stack.layer_drop, LayerDrop) for stack in stacks(toy("decoder", layer_drop=0.1)))
    model, inputs = toy("decoder", layer_drop=RATE).train(), inputs_of("decoder")
    torch.manual_seed(0)
    for _ in range(8):
        assert model(**inputs, use_cache=True).logits.isfinite().all()


def test_layers_of_both_stacks_are_left_out_at_the_rate_and_each_for_itself() -> None:
    model, inputs = toy("encoder_decoder", layer_drop=0.3).train(), inputs_of("encoder_decoder")
    layers = [layer for stack in stacks(model) for layer in stack.layers]
    ran, patterns = [], []
    for layer in layers:
        layer.register_forward_hook(lambda module, *_: ran.append(module))
    torch.manual_seed(0)
    with torch.no_grad():
        for _ in range(400):
            ran.clear()
            model(**inputs)
            patterns.append(tuple(layer in ran for layer in layers))
    shares = torch.tensor(patterns).double().mean(dim=0)
    assert ((shares - 0.7).abs() < 0.08).all()  # 3.5 standard deviations
    assert len(set(patterns)) == 2 ** len(layers)


@every_kind
def test_evaluation_and_training_without_rate_are_as_before(kind) -> None:
    plain, dropping, inputs = toy(kind), toy(kind, layer_drop=RATE), inputs_of(kind)
    assert plain.state_dict().keys() == dropping.state_dict().keys()
    torch.manual_seed(0)
    state = torch.get_rng_state()
    assert torch.equal(plain(**inputs).logits, dropping(**inputs).logits)
    plain.train()(**inputs)
    assert torch.equal(torch.get_rng_state(), state)  # nothing was drawn


@every_kind
@pytest.mark.parametrize("checkpointing", [None, True, False], ids=["kept", "reentrant", "recomputed"])
def test_a_layer_that_is_left_out_is_a_recorded_identity_without_gradient(kind, checkpointing, monkeypatch) -> None:
    model, inputs, labels = toy(kind, layer_drop=RATE).train(), inputs_of(kind), labels_of(kind)
    if checkpointing is not None:
        model.gradient_checkpointing_enable({"use_reentrant": checkpointing})
        model.enable_input_require_grads()
    expected = toy(kind)
    for stack in stacks(expected):
        stack.layers = stack.layers[1:]  # of two layers the second
        stack.layer_types = stack.layer_types[1:]
    monkeypatch.setattr(torch, "rand", lambda count, device: torch.linspace(0, 1, count))
    output = model(**inputs, labels=labels, use_cache=False, output_hidden_states=True)
    wanted = expected(**inputs, labels=labels).loss
    assert torch.equal(output.loss, wanted)
    recorded = [value for name, value in output.items() if name.endswith("hidden_states")]
    assert len(recorded) == len(stacks(model))
    for first, second, last in recorded:
        assert torch.equal(first, second)
        assert not torch.equal(second, last)
    for result in (output.loss, wanted):
        result.backward()
    gradients = {name: parameter.grad for name, parameter in expected.named_parameters()}
    for name, parameter in model.named_parameters():
        if "layers.0." in name:
            assert parameter.grad is None, name
        else:
            torch.testing.assert_close(parameter.grad, gradients[name.replace("layers.1.", "layers.0.")], msg=name)
