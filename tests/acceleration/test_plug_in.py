"""On and off: equal losses, gradients and tokens, for our models and, by `speed_up`, for those of transformers."""

import copy
import pickle
from contextlib import nullcontext
from typing import Any

import accelerate
import pytest
import torch
from conversion.natives import MAIN, Case, native_model
from modeling.axes import TARGET_VOCABULARY
from torch import nn
from transformers import Trainer, TrainingArguments
from transformers.generation import GenerationMixin

from modeling import toys
from vanillaformer import SpeedUp, speed_up
from vanillaformer.acceleration import gemv, shared_sources, switched_off, unfinished_rows
from vanillaformer.acceleration import linear as fast_linear
from vanillaformer.acceleration.plain import is_marked
from vanillaformer.acceleration.plug_in import HOOKS
from vanillaformer.modeling.acceleration import Acceleration, acceleration

from .test_unfinished_rows import END, end_rows

WAYS = {
    "linear": (fast_linear, "onednn_linear"), "gemv": (gemv, "sum_of_rows"), "rows": (unfinished_rows, "_rows_of"),
    "sources": (shared_sources, "attend_in_buckets"),
}  # fmt: skip


@pytest.fixture
def used(fast: None, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Whatever can be computed faster is; returns the ways that were."""
    found: set[str] = set()
    for name, (module, function) in WAYS.items():
        usual = getattr(module, function)

        def noted(*args: Any, name: str = name, usual: Any = usual) -> Any:
            found.add(name)
            return usual(*args)

        monkeypatch.setattr(module, function, noted)
    return found


def loss_and_gradients(model: Any, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    loss = model(**inputs).loss
    loss.backward()
    return {"loss": loss.detach(), **toys.gradients(model)}


def assert_learns_alike(model: Any, inputs: dict[str, torch.Tensor], used: set[str], ways: set[str]) -> None:
    """Assert equal losses and gradients on and off, and the ways that are used."""
    used.clear()
    found = loss_and_gradients(model, inputs)
    assert used == ways
    used.clear()
    with switched_off():
        expected = loss_and_gradients(model, inputs)
    assert not used
    toys.assert_same_gradients(found, expected, 1e-4, 1e-5)


@pytest.mark.parametrize("kind", toys.ALL_KINDS)
@torch.enable_grad()
def test_losses_and_gradients(kind, used):
    model = toys.toy(kind).train()
    inputs = toys.inputs_of(kind) | {"labels": toys.labels_of(kind)}
    if kind != "image_encoder":
        inputs["return_logits"] = False
    assert_learns_alike(model, inputs, used, {"linear"})


def both_ways(model: Any, used: set[str], rows: int, **options: Any) -> set[str]:
    """Assert that tokens are equal on and off; returns the ways that were used."""
    pair, lengths = model.config.is_encoder_decoder, [3, 12, 4, 5, 3, 6, 4, 5, 11, 3, 4, 6]
    inputs = {name: value[:rows] for name, value in toys.ragged(lengths, TARGET_VOCABULARY, left=not pair).items()}
    prompt = 1 if pair else inputs["input_ids"].shape[1]
    allowed = end_rows(prompt, TARGET_VOCABULARY)
    given = {"max_new_tokens": 12, "eos_token_id": END, "pad_token_id": toys.PAD, "prefix_allowed_tokens_fn": allowed}
    found = []
    for off in (False, True):
        torch.manual_seed(0)
        before = set(used)
        with switched_off() if off else nullcontext():
            found.append(model.generate(**inputs, **given, **options))
        assert not off or used == before
    assert torch.equal(*found)
    return used


SEARCHES: dict[str, dict[str, Any]] = {"greedy": {}, "beams": {"num_beams": 2}, "samples": {"do_sample": True}}
# Room for what is generated, and no end that is forced
NATIVE = {"n_positions": 40, "max_position_embeddings": 40, "forced_eos_token_id": None}


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("kind", ["decoder", "encoder_decoder", "recurrent_encoder_decoder"])
def test_tokens(kind, search, used):
    model = toys.toy(kind).eval()
    assert "gemv" in both_ways(model, used, 2, **SEARCHES[search])
    both_ways(model, used, 12, **SEARCHES[search])
    assert ("rows" in used) == (search != "beams" and kind != "recurrent_encoder_decoder")
    assert ("sources" in used) == (kind == "encoder_decoder")


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("name", ["gpt2", "llama", "marian", "t5"])
def test_models_of_transformers(name, search, used):
    model = native_model(Case(name, MAIN[name].config | NATIVE))
    both_ways(model, used, 12, **SEARCHES[search])
    assert not used
    assert speed_up(model) is model
    both_ways(model, used, 2, **SEARCHES[search])
    assert "gemv" in used
    both_ways(model, used, 12, **SEARCHES[search])
    assert used == {"linear", "gemv"} | ({"rows"} if search != "beams" else set())
    words = toys.tokens(2, 4, TARGET_VOCABULARY)
    target = {"decoder_input_ids": words} if model.config.is_encoder_decoder else {}
    inputs = {"input_ids": words, "labels": words, **target}
    assert_learns_alike(model, inputs, used, {"linear"})


def test_a_trainer_speeds_its_model_up(tmp_path):
    model = native_model(Case("gpt2", MAIN["gpt2"].config))
    rows = [{"input_ids": [1, 2, 3], "labels": [1, 2, 3]}] * 2
    args = TrainingArguments(str(tmp_path), max_steps=1, use_cpu=True, report_to=[], save_strategy="no")
    Trainer(model, args, train_dataset=rows, callbacks=[SpeedUp()]).train()
    assert all(map(is_marked, model.modules()))


def test_every_hook_is_replaced_and_put_back():
    assert set(HOOKS) == {name for name in vars(Acceleration) if not name.startswith("_")} == set(vars(acceleration))
    plain = nn.Linear.forward, GenerationMixin._sample
    with switched_off():
        assert not vars(acceleration)
        assert nn.Linear.forward is not plain[0]
        assert GenerationMixin._sample is not plain[1]
    assert (nn.Linear.forward, GenerationMixin._sample) == plain


def test_scripts_and_quantizers_find_torchs_layer():
    model, x = speed_up(nn.Sequential(nn.Linear(4, 3), nn.ReLU())), torch.randn(2, 4)
    torch.testing.assert_close(torch.jit.script(model)(x), model(x))
    assert type(model[0]) is nn.Linear
    assert "forward" not in vars(model[0])
    assert set(model.state_dict()) == {"0.weight", "0.bias"}


# Layers with a faster product are `nn.Linear` in all else: copies, replicas, and what replaces class or functions.
MODEL_KINDS = ("decoder", "encoder_decoder")


def a_layer(model: nn.Module) -> nn.Linear:
    return next(layer for layer in model.modules() if type(layer) is nn.Linear)


class Doubled(nn.Linear):
    def forward(self, input: torch.Tensor, factor: float = 2.0) -> torch.Tensor:
        return factor * super().forward(input)


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("kind", toys.ALL_KINDS)
def test_replicas_of_a_model_compute_with_the_weights_they_are_given(kind):
    """As `nn.DataParallel` makes them for a second device, here torch's meta device: all else fails on it."""
    model = toys.toy(kind)
    replicas = {module: module._replicate_for_data_parallel() for module in model.modules()}
    for module, replica in replicas.items():
        for name, child in module._modules.items():
            setattr(replica, name, None if child is None else replicas[child])
        for name, value in [*module._parameters.items(), *module._buffers.items()]:
            setattr(replica, name, None if value is None else value.to("meta"))
    inputs = {name: value.to("meta") for name, value in toys.inputs_of(kind).items() if name != "attention_mask"}
    assert replicas[model](**inputs).logits.device.type == "meta"


@pytest.mark.usefixtures("fast")
def test_a_layer_is_called_as_its_class_is():
    layer = a_layer(toys.toy("decoder"))
    x = torch.randn(3, layer.in_features)
    expected = layer(x)
    toys.assert_close(layer(input=x), expected, "an argument by the name that torch gives it")
    layer.__class__ = Doubled
    toys.assert_close(layer(x), 2 * expected, "a subclass")
    toys.assert_close(layer(x, factor=3.0), 3 * expected, "a subclass, with its own argument")


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("owner", [nn.Linear, nn.functional], ids=["nn.Linear.forward", "nn.functional.linear"])
@pytest.mark.parametrize("kind", MODEL_KINDS)
def test_functions_of_torch_that_are_replaced_are_called(owner, kind, monkeypatch):
    model, inputs = toys.toy(kind), toys.inputs_of(kind) | {"labels": toys.labels_of(kind)}
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


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("way", ["copy", "pickle"])
def test_copies_of_a_model_are_as_fast_and_compute_with_their_own_weights(way):
    model, inputs = toys.toy("encoder_decoder"), toys.inputs_of("encoder_decoder")
    before = model(**inputs).logits
    other = copy.deepcopy(model) if way == "copy" else pickle.loads(pickle.dumps(model))
    assert all(is_marked(layer) for layer in other.modules() if type(layer) is nn.Linear)
    assert is_marked(other)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert not other(**inputs).logits.any()
    assert torch.equal(model(**inputs).logits, before)


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("kind", MODEL_KINDS)
def test_an_offloaded_model_computes_the_same(kind):
    model = toys.toy(kind)
    inputs = toys.inputs_of(kind) | {"labels": toys.labels_of(kind)}
    row = {name: inputs[name][:1] for name in ("input_ids", "attention_mask")}
    options = {"max_new_tokens": 12, "eos_token_id": None}
    expected = model(**inputs).loss, model.generate(**row, **options)
    moved = accelerate.cpu_offload(copy.deepcopy(model), execution_device=torch.device("cpu"))
    assert a_layer(moved).weight.device.type == "meta"
    toys.assert_close(moved(**inputs).loss, expected[0], "loss")
    toys.assert_close(moved(**inputs, return_logits=False).loss, expected[0], "loss without logits")
    assert torch.equal(moved.generate(**row, **options), expected[1])
