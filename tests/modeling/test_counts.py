"""Counts by part against the model's own parameters, torch's FLOP counter and the papers' figures."""

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertForSequenceClassification, GPT2ForSequenceClassification

from vanillaformer import PRESETS, VanillaRecurrentEncoderDecoderConfig, preset
from vanillaformer.modeling.counts import TextFlops, count_flops, count_parameters, polynomial_terms, text_flops

from .toys import ALL_KINDS, TARGET_VOCABULARY, attending, every_value, few_toys, shared_toy, tokens, toy_config, toys

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


@toys(times=1)
def test_flops_are_torchs(kind, overrides):
    model, inputs = shared_toy(kind, overrides), {"input_ids": tokens(2, 5)}
    if kind == "encoder_decoder":
        inputs = {"input_ids": tokens(2, 7), "decoder_input_ids": tokens(2, 5, TARGET_VOCABULARY)}
    with attending(model, "eager"), FlopCounterMode(display=False) as counter, torch.no_grad():
        model(**inputs)
    assert sum(count_flops(model.config, 2, 5, 7).values()) == counter.get_total_flops()


@every_value()
def test_flops_of_texts_of_any_lengths(kind, overrides):
    model, lengths = shared_toy(kind, overrides), np.array([(5, 9, 14), (7, 4, 20)], dtype=np.float64)
    sums = polynomial_terms(lengths).sum(axis=1)
    pairs = [(int(length), int(source)) for length, source in lengths.T]
    expected = sum(sum(count_flops(model.config, 1, *pair).values()) for pair in pairs)
    assert TextFlops(model).of(sums, sums) == expected


@pytest.mark.parametrize("model_class", [BertForSequenceClassification, GPT2ForSequenceClassification])
def test_flops_of_native_models(model_class):
    """GPT-2 cannot be computed without numbers: it is estimated from its matrices."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    sizes |= {"vocab_size": 99, "pad_token_id": 0}
    config = model_class.config_class(**sizes, attn_implementation="eager")
    model, ids = model_class(config).eval(), torch.full((2, 12), 7)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(ids)
    sums = polynomial_terms(np.array([(12.0, 12.0), (0.0, 0.0)])).sum(axis=1)
    counted = text_flops(model).of(sums, sums)
    assert counted == pytest.approx(counter.get_total_flops(), rel=0 if "Bert" in model_class.__name__ else 0.05)


@pytest.mark.parametrize(("name", "millions"), [("transformer-base", 63), ("transformer-big", 214)])
def test_the_parts_of_the_papers_models(name, millions):
    """Vaswani et al. 2017: 65 and 213 million, with "approximately" 37000 tokens; the sum here is of the equations."""
    config = preset(name)
    counts, d, inner = count_parameters(config), config.hidden_size, config.intermediate_size
    assert counts["embeddings"] == 37000 * d  # one table for source, target and output
    assert counts["attention"] == 18 * 4 * d * d  # whose projections have no biases, feed-forward layers do
    assert (counts["feed-forward"], counts["norms"]) == (12 * (2 * d * inner + inner + d), 30 * 2 * d)
    assert counts["positions"] == counts["head"] == 0
    assert round(sum(counts.values()) / 1e6) == millions


def test_the_operations_of_the_parts_by_formula():
    counts, d, (source, target) = count_flops(preset("transformer-base"), 2, 5, 7), 512, (2 * 7, 2 * 5)
    # 6 blocks a side: 4 projections of each token, in cross-attention 2 of either side's
    assert counts["attention projections"] == 6 * 2 * d * d * (4 * source + 4 * target + 2 * target + 2 * source)
    assert counts["attention scores"] == 6 * 4 * d * 2 * (7 * 7 + 5 * 5 + 5 * 7)
    assert (counts["feed-forward"], counts["head"]) == (6 * 4 * d * 2048 * (source + target), 2 * d * 37000 * target)
    config = VanillaRecurrentEncoderDecoderConfig(vocab_size=90, hidden_size=32, cross_attention="general")
    counts, d, (source, target) = count_flops(config, 2, 5, 7), 32, (2 * 7, 2 * 5)
    # Three gates read the token and the state; the encoder has two directions of half the width; the bridge is last
    gates = 3 * (source * 2 * (d * d // 2 + d * d // 4) + target * 2 * d * d)
    assert counts["recurrence"] == 2 * gates + 2 * 2 * d * d
    assert counts["attention projections"] == 2 * target * (d * d + 2 * d * d)
    assert (counts["attention scores"], counts["head"]) == (2 * 2 * target * 7 * d, 2 * target * d * 90)
