"""Attributions: they are complete, captum's own on native models, and where nothing is read they are 0."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from captum.attr import LayerIntegratedGradients
from modeling.toys import SOURCE_VOCABULARY, tokens, toy

from exploration.toys import example_of
from vanillaformer import VanillaEncoderForSequenceClassification
from vanillaformer.conversion import to_native
from vanillaformer.exploration import attribution
from vanillaformer.exploration.attribution import attributions, filled_masks, neutral_ids, next_tokens, target_tokens
from vanillaformer.exploration.pictures import NotApplicable
from vanillaformer.exploration.recording import record

IDS = tokens(1, 6)
NEUTRAL = torch.zeros_like(IDS)
GPT2 = {"num_key_value_heads": 4, "head_dim": 6, "attention_bias": True, "position_embedding_type": "learned"}


def difference(model, inputs, position, token):
    """How far the logit is from that of the neutral text."""
    with torch.no_grad():
        both = [model(**{**inputs, "input_ids": ids}).logits[0] for ids in (IDS, NEUTRAL)]
    one, other = (logits[position, token] if logits.ndim == 2 else logits[token] for logits in both)
    return float(one - other)


def check_complete(model, inputs, found):
    for row, (position, token) in enumerate(found.outputs):
        expected = difference(model, inputs, position, token)
        assert found.values[row].sum() - expected == pytest.approx(found.deltas[row], abs=1e-9)
        assert abs(found.deltas[row]) < 0.02 * np.abs(found.values[row]).sum()


@pytest.mark.parametrize("overrides", [{}, {"max_ngram": 2, "ngram_buckets": 11}], ids=["tokens", "n-grams"])
def test_of_a_class(overrides):
    model = toy("encoder", VanillaEncoderForSequenceClassification, num_labels=3, **overrides).double()
    inputs = {"input_ids": IDS}
    found = attributions(model, inputs, NEUTRAL, attribution.chosen_class(model, inputs))
    assert (found.values.shape, found.outputs) == ((1, 6), [(0, int(model(input_ids=IDS).logits.argmax()))])
    check_complete(model, {"input_ids": IDS}, found)


def test_of_the_next_tokens_and_of_none_before():
    model = toy("decoder").double()
    inputs = {"input_ids": IDS}
    with torch.inference_mode():  # as the page in the browser runs
        found = attributions(model, inputs, NEUTRAL, next_tokens(inputs, first=3))
    assert found.outputs == list(zip([2, 3, 4], IDS[0, 3:].tolist()))
    assert (found.values[:, -1] == 0).all()
    assert (found.values[0, 3:] == 0).all()
    check_complete(model, {"input_ids": IDS}, found)
    with pytest.raises(ValueError, match="first=0: of 6 tokens those from 1 to 5"):
        next_tokens(inputs, first=0)


@pytest.mark.parametrize("overrides", [{}, {"share_encoder_decoder_embeddings": True, "decoder_vocab_size": None}])
@pytest.mark.parametrize("kind", ["encoder_decoder", "recurrent_encoder_decoder"])
def test_of_every_target_token(kind, overrides):
    model = toy(kind, **overrides).double()
    inputs = {"input_ids": IDS, "decoder_input_ids": tokens(1, 4, 29, seed=3)}
    found = attributions(model, inputs, NEUTRAL, target_tokens(model, inputs), steps=150)
    assert found.values.shape == (3, 6)
    check_complete(model, inputs, found)
    with pytest.raises(ValueError, match="decoding='mask_predict'"):
        target_tokens(toy("encoder_decoder", decoding="mask_predict"), inputs)


def test_of_masked_tokens():
    model = toy("encoder").double()
    inputs = {"input_ids": IDS}
    found = attributions(model, inputs, NEUTRAL, filled_masks(model, inputs, int(IDS[0, 2])), steps=150)
    assert [position for position, _ in found.outputs] == (IDS[0] == IDS[0, 2]).nonzero().flatten().tolist()
    check_complete(model, inputs, found)
    with pytest.raises(ValueError, match="no mask token"):
        filled_masks(model, inputs, SOURCE_VOCABULARY)


def test_they_are_those_of_captum_for_the_same_model_of_transformers():
    model = toy("decoder", **GPT2).double()
    native = to_native(model, "gpt2").double().eval()
    layer = LayerIntegratedGradients(lambda ids: native(ids).logits[:, -2], native.transformer.wte)
    expected = layer.attribute(IDS, baselines=NEUTRAL, target=int(IDS[0, -1]), n_steps=50).sum(dim=-1)
    for each in (model, native):
        found = attributions(each, {"input_ids": IDS}, NEUTRAL, next_tokens({"input_ids": IDS}))
        np.testing.assert_allclose(found.values, expected.detach().numpy(), rtol=1e-6, atol=1e-9)


def test_a_neutral_text_keeps_special_tokens_and_an_empty_answer_has_no_attributions():
    tokenizer = SimpleNamespace(pad_token_id=None, unk_token_id=1, eos_token_id=3, all_special_ids=[3, 2])
    assert neutral_ids(torch.tensor([[2, 7, 8, 3]]), tokenizer).tolist() == [[2, 1, 1, 3]]
    example = example_of(record(toy("encoder_decoder"), {"input_ids": IDS, "decoder_input_ids": IDS[:, :1]}))
    example.tokenizer = SimpleNamespace(pad_token_id=0, unk_token_id=1, eos_token_id=3, all_special_ids=[3])
    with pytest.raises(NotApplicable, match="the answer has no tokens"):
        attribution.token_attributions(example)


def test_without_captum_the_error_names_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "captum.attr", None)
    with pytest.raises(ImportError, match=r"attributions need captum: pip install 'vanillaformer\[explore\]'"):
        attributions(toy("decoder"), {"input_ids": IDS}, NEUTRAL, [(0, 5)])
