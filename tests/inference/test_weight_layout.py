"""Weights stored by inputs are the same weights, and give the same tokens."""

import copy

import pytest
import torch
from torch import nn

from vanillaformer import VanillaDecoderForCausalLM, VanillaEncoderDecoderForConditionalGeneration, preset
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
