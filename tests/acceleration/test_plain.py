"""Layers with a faster product are `nn.Linear` in all else: copies, replicas, and what replaces class or functions."""

import copy
import pickle
from typing import Any

import accelerate
import pytest
import torch
from modeling.toys import ALL_KINDS, assert_close, inputs_of, labels_of, toy
from torch import nn

from vanillaformer.acceleration import gemv
from vanillaformer.acceleration import linear as fast_linear
from vanillaformer.acceleration.plain import is_marked

MODEL_KINDS = ("decoder", "encoder_decoder")


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever can be computed faster is."""
    monkeypatch.setattr(fast_linear, "WORK", 0)
    monkeypatch.setattr(fast_linear, "onednn_is_faster", lambda: True)
    monkeypatch.setattr(gemv, "is_faster", lambda *_: True)
    monkeypatch.setattr(gemv, "MIN_BYTES", 0)
    monkeypatch.setattr(gemv, "MIN_WEIGHTS", 0)


def a_layer(model: nn.Module) -> nn.Linear:
    return next(layer for layer in model.modules() if type(layer) is nn.Linear)


class Doubled(nn.Linear):
    def forward(self, input: torch.Tensor, factor: float = 2.0) -> torch.Tensor:
        return factor * super().forward(input)


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_replicas_of_a_model_compute_with_the_weights_they_are_given(kind):
    """As `nn.DataParallel` makes them for a second device, here torch's meta device: all else fails on it."""
    model = toy(kind)
    replicas = {module: module._replicate_for_data_parallel() for module in model.modules()}
    for module, replica in replicas.items():
        for name, child in module._modules.items():
            setattr(replica, name, None if child is None else replicas[child])
        for name, value in [*module._parameters.items(), *module._buffers.items()]:
            setattr(replica, name, None if value is None else value.to("meta"))
    inputs = {name: value.to("meta") for name, value in inputs_of(kind).items() if name != "attention_mask"}
    assert replicas[model](**inputs).logits.device.type == "meta"


def test_a_layer_is_called_as_its_class_is():
    layer = a_layer(toy("decoder"))
    x = torch.randn(3, layer.in_features)
    expected = layer(x)
    assert_close(layer(input=x), expected, "an argument by the name that torch gives it")
    layer.__class__ = Doubled
    assert_close(layer(x), 2 * expected, "a subclass")
    assert_close(layer(x, factor=3.0), 3 * expected, "a subclass, with its own argument")


@pytest.mark.parametrize("owner", [nn.Linear, nn.functional], ids=["nn.Linear.forward", "nn.functional.linear"])
@pytest.mark.parametrize("kind", MODEL_KINDS)
def test_functions_of_torch_that_are_replaced_are_called(owner, kind, monkeypatch):
    model, inputs = toy(kind), inputs_of(kind) | {"labels": labels_of(kind)}
    calls: list[Any] = []
    layers = sum(type(module) is nn.Linear for module in model.modules())
    name = "forward" if owner is nn.Linear else "linear"
    usual = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *args: calls.append(args) or usual(*args))
    model(**inputs, return_logits=False)
    assert len(calls) == layers
    before, row = len(calls), {name: value[:1] for name, value in inputs.items() if name.endswith(("ids", "mask"))}
    row.pop("decoder_input_ids", None)
    model.generate(**row, max_new_tokens=9, eos_token_id=None, use_cache=kind == "decoder")
    assert len(calls) - before >= 9 * (layers // 2)


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))], ids=["copy", "pickle"]
)
def test_copies_of_a_model_are_as_fast_and_compute_with_their_own_weights(copied):
    model, inputs = toy("encoder_decoder"), inputs_of("encoder_decoder")
    before, other = model(**inputs).logits, copied(model)
    assert all(is_marked(layer) for layer in other.modules() if type(layer) is nn.Linear)
    assert is_marked(other)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert not other(**inputs).logits.any()
    assert torch.equal(model(**inputs).logits, before)


@pytest.mark.parametrize("kind", MODEL_KINDS)
def test_an_offloaded_model_computes_the_same(kind):
    model = toy(kind)
    inputs = inputs_of(kind) | {"labels": labels_of(kind)}
    row = {name: inputs[name][:1] for name in ("input_ids", "attention_mask")}
    options = {"max_new_tokens": 12, "eos_token_id": None}
    expected = model(**inputs).loss, model.generate(**row, **options)
    moved = accelerate.cpu_offload(copy.deepcopy(model), execution_device=torch.device("cpu"))
    assert a_layer(moved).weight.device.type == "meta"
    assert_close(moved(**inputs).loss, expected[0], "loss")
    assert_close(moved(**inputs, return_logits=False).loss, expected[0], "loss without logits")
    assert torch.equal(moved.generate(**row, **options), expected[1])
