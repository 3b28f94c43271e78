"""Counts by part against the model's own parameters, torch's FLOP counter and the papers' figures."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from vanillaformer import PRESETS, VanillaRecurrentEncoderDecoderConfig, preset
from vanillaformer.modeling.counts import count_flops, count_parameters

from .toys import ALL_KINDS, TARGET_VOCABULARY, attending, every_value, few_toys, shared_toy, tokens, toy_config

MODELS = dict(ALL_KINDS.values())


@few_toys()
def test_parameters_are_the_models(kind, overrides):
    config = toy_config(kind, **overrides)
    assert sum(count_parameters(config).values()) == MODELS[type(config)](config).num_parameters()


@pytest.mark.parametrize("name", PRESETS)
def test_parameters_of_presets_are_the_models(name):
    config = preset(name)
    with torch.device("meta"):
        expected = MODELS[type(config)](config).num_parameters()
    assert sum(count_parameters(config).values()) == expected


@every_value()
def test_flops_are_torchs(kind, overrides):
    model = shared_toy(kind, overrides)
    batch, length, source_length = 2, 5, 7
    inputs = {"input_ids": tokens(batch, length)}
    if kind == "encoder_decoder":
        target = tokens(batch, length, TARGET_VOCABULARY)
        inputs = {"input_ids": tokens(batch, source_length), "decoder_input_ids": target}
    with attending(model, "eager"), FlopCounterMode(display=False) as counter, torch.no_grad():
        model(**inputs, use_cache=False) if kind != "encoder" else model(**inputs)
    counted = count_flops(model.config, batch, length, source_length)
    assert sum(counted.values()) == counter.get_total_flops()


def test_the_parts_of_the_papers_base_model():
    """Vaswani et al. 2017: 65 million, of which the table of 37000 tokens is 19."""
    counts = count_parameters(preset("transformer-base"))
    assert counts["embeddings"] == 37000 * 512
    assert counts["attention"] == 18 * 4 * 512 * 512
    assert counts["feed-forward"] == 12 * (2 * 512 * 2048 + 2048 + 512)
    assert counts["norms"] == 30 * 2 * 512
    assert counts["positions"] == counts["head"] == 0


def test_the_operations_of_the_parts_by_formula():
    config = preset("transformer-base")
    counts, d, (source, target) = count_flops(config, 2, 5, 7), 512, (2 * 7, 2 * 5)
    # 6 blocks a side: 4 projections of each token, in cross-attention 2 of either side's
    assert counts["attention projections"] == 6 * 2 * d * d * (4 * source + 4 * target + 2 * target + 2 * source)
    assert counts["attention scores"] == 6 * 4 * d * 2 * (7 * 7 + 5 * 5 + 5 * 7)
    assert counts["feed-forward"] == 6 * 4 * d * 2048 * (source + target)
    assert counts["head"] == 2 * d * 37000 * target


def test_the_operations_of_a_recurrent_model_by_formula():
    config = VanillaRecurrentEncoderDecoderConfig(vocab_size=90, hidden_size=32, cross_attention="general")
    counts, d, (source, target) = count_flops(config, 2, 5, 7), 32, (2 * 7, 2 * 5)
    # Three gates read the token and the state; the encoder has two directions of half the width; the bridge is last
    gates = 3 * (source * 2 * (d * d // 2 + d * d // 4) + target * 2 * d * d)
    assert counts["recurrence"] == 2 * gates + 2 * 2 * d * d
    assert counts["attention projections"] == 2 * target * (d * d + 2 * d * d)
    assert counts["attention scores"] == 2 * 2 * target * 7 * d
    assert counts["head"] == 2 * target * d * 90
