"""Counts by formula against the model's own parameters and torch's FLOP counter."""

from typing import get_args

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from vanillaformer import PRESETS, preset
from vanillaformer.configuration import options
from vanillaformer.modeling.counts import OWNED, count_flops, count_parameters

from .toys import KINDS, TARGET_VOCABULARY, tokens, toy, toy_config, toys

MODELS = dict(KINDS.values())


def parameters_of(config) -> int:
    with torch.device("meta"):
        return MODELS[type(config)](config).num_parameters()


@toys()
def test_parameters_are_the_models(kind, overrides):
    config = toy_config(kind, **overrides)
    assert sum(count_parameters(config).values()) == parameters_of(config)


@pytest.mark.parametrize("name", PRESETS)
def test_parameters_of_presets_are_the_models(name):
    assert sum(count_parameters(preset(name)).values()) == parameters_of(preset(name))


@toys()
def test_flops_are_torchs(kind, overrides):
    model = toy(kind, **overrides, attn_implementation="eager")
    batch, length, source_length = 2, 5, 7
    inputs = {"input_ids": tokens(batch, length)}
    if kind == "encoder_decoder":
        target = tokens(batch, length, TARGET_VOCABULARY)
        inputs = {"input_ids": tokens(batch, source_length), "decoder_input_ids": target}
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(**inputs, use_cache=False) if kind != "encoder" else model(**inputs)
    counted = count_flops(model.config, batch, length, source_length)
    assert sum(counted.values()) == counter.get_total_flops()


def test_every_placement_says_what_it_owns():
    assert list(OWNED) == list(get_args(options.NormPlacement))


def test_the_parts_of_the_papers_base_model():
    """Vaswani et al. 2017: 65 million, of which the table of 37000 tokens is 19."""
    counts = count_parameters(preset("transformer-base"))
    assert counts["embeddings"] == 37000 * 512
    assert counts["attention"] == 18 * 4 * 512 * 512
    assert counts["feed-forward"] == 12 * (2 * 512 * 2048 + 2048 + 512)
    assert counts["positions"] == counts["head"] == 0
