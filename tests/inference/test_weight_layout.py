"""Weights stored by inputs are the same weights, and give the same tokens."""

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from vanillaformer import VanillaDecoderForCausalLM, VanillaEncoderDecoderForConditionalGeneration, preset
from vanillaformer.inference import generation
from vanillaformer.inference.arguments import GenerateArguments
from vanillaformer.inference.tasks import continue_prompts, prepare_for_one_row, translate
from vanillaformer.inference.weight_layout import store_by_inputs

MODELS = {"gpt-tiny": VanillaDecoderForCausalLM, "transformer-tiny": VanillaEncoderDecoderForConditionalGeneration}


@pytest.mark.parametrize("name", MODELS)
def test_values_and_tokens_stay(name):
    torch.manual_seed(0)
    fields = {"hidden_size": 32, "num_attention_heads": 4, "vocab_size": 90}
    model = MODELS[name](preset(name, **fields)).eval()
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.3)
    arranged = copy.deepcopy(model)
    store_by_inputs(arranged)
    for (path, ours), theirs in zip(arranged.named_parameters(), model.parameters(), strict=True):
        assert torch.equal(ours, theirs), path
        assert ours.is_contiguous() != ("proj.weight" in path or "embed_tokens" in path), path
    assert arranged.lm_head.weight is arranged.get_output_embeddings().weight
    ids = torch.randint(4, 90, (3, 7))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "max_new_tokens": 12, "eos_token_id": None}
    assert torch.equal(arranged.generate(**inputs), model.generate(**inputs))


def test_other_layers_and_types_are_left_alone():
    table, half = nn.Embedding(8, 4), nn.Linear(4, 8, dtype=torch.bfloat16)
    store_by_inputs(nn.Sequential(table, half))
    assert table.weight.is_contiguous()
    assert half.weight.is_contiguous()


@pytest.mark.parametrize(
    ("texts", "batch_size", "one"), [(["a"], 32, True), (["a", "b"], 1, True), (["a", "b"], 2, False)]
)
def test_generate_prepares_for_one_text_at_a_time(texts, batch_size, one, monkeypatch):
    prepared = []
    monkeypatch.setattr(generation, "prepare_for_one_row", lambda *given: prepared.append(given))
    monkeypatch.setattr(generation, "load", lambda _: ("model", "function", True))
    monkeypatch.setattr(generation, "run", lambda *_, **__: iter(()))
    generation.generate_texts(GenerateArguments("folder", text=texts, batch_size=batch_size))
    assert prepared == ([("model", "function")] if one else [])


@pytest.mark.parametrize(("name", "stored"), [("gpt-tiny", True), ("transformer-tiny", False)])
def test_only_language_models_are_prepared(name, stored):
    model = MODELS[name](preset(name, hidden_size=32, num_attention_heads=4, vocab_size=90))
    loaded = SimpleNamespace(model=model)
    prepare_for_one_row(loaded, {"gpt-tiny": continue_prompts, "transformer-tiny": translate}[name])
    assert model.lm_head.weight.is_contiguous() != stored
