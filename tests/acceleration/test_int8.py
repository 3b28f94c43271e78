"""Layers in int8 compute what their integers say, and models with them answer as before, nearly."""

import copy
import io

import peft
import pytest
import torch
from conversion.natives import MAIN, native_model
from modeling.toys import ALL_KINDS, inputs_of, relative_error, tokens, toy
from refusals import refused
from torch import nn
from transformers.pytorch_utils import Conv1D

from vanillaformer import to_int8
from vanillaformer.acceleration import int8

D, E = 200, 150


@pytest.fixture(autouse=True)
def small_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int8, "MIN_WEIGHTS", 0)


def layer(kind: type = nn.Linear, bias: bool = True) -> nn.Module:
    torch.manual_seed(0)
    made = nn.Linear(D, E, bias=bias) if kind is nn.Linear else Conv1D(E, D)
    if made.bias is not None:
        nn.init.normal_(made.bias)
    return to_int8(nn.Sequential(made))[0]


@pytest.mark.parametrize("steps", [None, 63])
@pytest.mark.parametrize("kind", [nn.Linear, Conv1D])
def test_a_layer_sums_the_integers_of_its_rows_and_weights(kind, steps, monkeypatch):
    steps = steps or int8.input_steps()
    monkeypatch.setattr(int8, "input_steps", lambda: steps)
    made = layer(kind)
    torch.manual_seed(0)
    source = nn.Linear(D, E) if kind is nn.Linear else Conv1D(E, D)
    weight = (source.weight if kind is nn.Linear else source.weight.t()).detach()
    x = torch.randn(7, 3, D) * torch.logspace(-3, 3, 7)[:, None, None]
    x[0, 0] = 0
    largest = x.abs().amax(-1, keepdim=True).clamp(min=1e-30)
    whole = (x * (steps / largest)).round().double()
    scales = weight.abs().amax(1) / 127
    expected = whole @ (weight / scales[:, None]).round().double().t() * scales * largest / steps + made.bias
    torch.testing.assert_close(made(x).double(), expected, rtol=1e-5, atol=1e-5)
    exact = x @ weight.t() + made.bias
    assert (made(x) - exact).norm() < 0.02 * exact.norm()


@pytest.mark.parametrize("bias", [True, False])
def test_the_results_of_a_row_do_not_depend_on_the_others(bias):
    made, x = layer(bias=bias), torch.randn(5, 4, D)
    for shape in ((D,), (1, D), (1, 1, D)):
        assert torch.equal(made(x[2, 3].view(shape)), made(x)[2, 3].view(*shape[:-1], E))
    assert made(x[:0]).shape == (0, 4, E)
    assert made(x.bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize("kind", ["gpt2", "t5", "decoder"])
def test_models_generate_each_text_as_if_it_were_alone(kind):
    model = to_int8(native_model(MAIN[kind]) if kind in MAIN else toy(kind))
    assert not [name for name, each in model.named_modules() if type(each) in (nn.Linear, Conv1D)]
    ids, options = tokens(3, 5), {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None}
    found = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
    assert len(set(map(tuple, found.tolist()))) > 1
    for row, text in zip(found, ids):
        assert torch.equal(model.generate(text[None], attention_mask=torch.ones_like(text)[None], **options)[0], row)


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_logits_of_every_kind_of_model_are_nearly_the_same(kind):
    model = toy(kind)
    inputs = inputs_of(kind, config=model.config)
    with torch.no_grad():
        expected, found = model(**inputs).logits, to_int8(model)(**inputs).logits
        assert torch.equal(copy.deepcopy(model)(**inputs).logits, found)
    assert 0 < relative_error(found, expected) < 0.1


@pytest.mark.parametrize("use_dora", [False, True])
def test_adapters_and_layers_with_hooks_keep_their_weights(use_dora):
    model, calls, ids = toy("decoder"), [], tokens(2, 5)
    hooked = model.get_submodule("model.layers.1.mlp.down_proj")
    hooked.register_forward_hook(lambda *args: calls.append(1))
    config = peft.LoraConfig(target_modules=["q_proj"], init_lora_weights=False, use_dora=use_dora)
    adapted = peft.get_peft_model(model, config).eval()
    exact = adapted(ids).logits
    assert 0 < relative_error(to_int8(adapted)(ids).logits, exact) < 0.1
    assert len(calls) == 2
    names = [name for name, each in adapted.named_modules() if type(each) is nn.Linear]
    assert len(names) == (7 if use_dora else 5)
    exact_names = ("1.mlp.down_proj", "q_proj.base_layer")[: 1 + use_dora]
    assert all("lora_" in name for name in names if not name.endswith(exact_names))


def test_what_it_cannot_do_is_refused():
    refused("to_int8 takes a model, and this is a single linear layer", to_int8, nn.Linear(D, E))
    for reads in (lambda x: x @ layer().weight, lambda x: layer().weight[0], lambda x: layer().weight.to(x)):
        refused("this model reads the weights of linear layers", reads, torch.randn(1, 2, 32))
    refused("int8 is for models in float32 on cpu, and this one is in bfloat16", to_int8, toy("decoder").bfloat16())
    model = to_int8(toy("decoder"))
    for save in (model.state_dict, lambda: torch.save(model, io.BytesIO())):
        refused("layers in int8 are for inference and are not saved", save)
    refused("layers in int8 are for the CPU, but the input is on meta", layer(), torch.randn(2, D, device="meta"))
    refused("layers in int8 have no gradients", layer(), torch.randn(2, D, requires_grad=True))
    assert not any(parameter.requires_grad for parameter in model.parameters())
