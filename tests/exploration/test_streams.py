"""Attributions, the logit lens and the norms of the stream, where each is known."""

import sys
from itertools import pairwise
from operator import attrgetter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from captum.attr import LayerIntegratedGradients
from modeling.axes import PATCHES_ONLY
from modeling.test_pointers import COPYING
from modeling.toys import SOURCE_VOCABULARY, TEXT_CLASSIFIERS, inputs_of, tokens, toy
from refusals import refused

from exploration.toys import KINDS, example_of, recorded
from vanillaformer import VanillaEncoderForSequenceClassification
from vanillaformer.conversion import to_native
from vanillaformer.exploration import attribution
from vanillaformer.exploration.attribution import attributions, filled_masks, neutral_ids, next_tokens, target_tokens
from vanillaformer.exploration.examples import likeliest
from vanillaformer.exploration.lens import class_lens, lens, lens_logits, token_lens
from vanillaformer.exploration.pictures import NotApplicable
from vanillaformer.exploration.recording import Recording, Sublayer, record
from vanillaformer.exploration.stream import contributions, residual_factors, stream, stream_norms, sublayers

IDS = tokens(1, 6)
INPUTS = {"input_ids": IDS}
NEUTRAL = torch.zeros_like(IDS)
GPT2 = {"num_key_value_heads": 4, "head_dim": 6, "attention_bias": True, "position_embedding_type": "learned"}


def check_complete(model, inputs, found):
    """The attributions of an output add up to how far its logit is from that of the neutral text."""
    with torch.no_grad():
        logits, neutral = (model(**inputs | {"input_ids": ids}).logits[0] for ids in (IDS, NEUTRAL))
    for row, (position, token) in enumerate(found.outputs):
        place = (position, token) if logits.ndim == 2 else token
        expected = float(logits[place] - neutral[place])
        assert found.values[row].sum() - expected == pytest.approx(found.deltas[row], abs=1e-9)
        assert abs(found.deltas[row]) < 0.02 * np.abs(found.values[row]).sum()


@pytest.mark.parametrize("overrides", [{}, {"max_ngram": 2, "ngram_buckets": 11}], ids=["tokens", "n-grams"])
def test_of_a_class(overrides):
    model = toy("encoder", VanillaEncoderForSequenceClassification, num_labels=3, **overrides).double()
    found = attributions(model, INPUTS, NEUTRAL, attribution.chosen_class(model, INPUTS))
    assert (found.values.shape, found.outputs) == ((1, 6), [(0, int(model(input_ids=IDS).logits.argmax()))])
    check_complete(model, INPUTS, found)


def test_of_the_next_tokens_and_of_none_before():
    model = toy("decoder").double()
    with torch.inference_mode():  # as the page in the browser runs
        found = attributions(model, INPUTS, NEUTRAL, next_tokens(INPUTS, first=3))
    assert found.outputs == list(zip([2, 3, 4], IDS[0, 3:].tolist()))
    assert (found.values[:, -1] == 0).all()
    assert (found.values[0, 3:] == 0).all()
    check_complete(model, INPUTS, found)
    refused("first=0: of 6 tokens only those from 1 to 5", next_tokens, INPUTS, first=0)


@pytest.mark.parametrize("overrides", [{}, {"share_encoder_decoder_embeddings": True, "decoder_vocab_size": None}])
@pytest.mark.parametrize("kind", ["encoder_decoder", "recurrent_encoder_decoder"])
def test_of_every_target_token(kind, overrides):
    model = toy(kind, **overrides).double()
    inputs = {"input_ids": IDS, "decoder_input_ids": tokens(1, 4, 29, seed=3)}
    found = attributions(model, inputs, NEUTRAL, target_tokens(model, inputs), steps=150)
    assert found.values.shape == (3, 6)
    check_complete(model, inputs, found)
    refused("decoding='mask_predict'", target_tokens, toy("encoder_decoder", decoding="mask_predict"), inputs)


def test_of_masked_tokens():
    model = toy("encoder").double()
    found = attributions(model, INPUTS, NEUTRAL, filled_masks(model, INPUTS, int(IDS[0, 2])), steps=150)
    assert [position for position, _ in found.outputs] == (IDS[0] == IDS[0, 2]).nonzero().flatten().tolist()
    check_complete(model, INPUTS, found)
    refused("no mask token", filled_masks, model, INPUTS, SOURCE_VOCABULARY)


def test_they_are_those_of_captum_for_the_same_model_of_transformers():
    model = toy("decoder", **GPT2).double()
    native = to_native(model, "gpt2").double().eval()
    layer = LayerIntegratedGradients(lambda ids: native(ids).logits[:, -2], native.transformer.wte)
    expected = layer.attribute(IDS, baselines=NEUTRAL, target=int(IDS[0, -1]), n_steps=50).sum(dim=-1)
    for each in (model, native):
        found = attributions(each, INPUTS, NEUTRAL, next_tokens(INPUTS))
        np.testing.assert_allclose(found.values, expected.detach().numpy(), rtol=1e-6, atol=1e-9)


def test_a_neutral_text_keeps_special_tokens_and_an_empty_answer_has_no_attributions():
    tokenizer = SimpleNamespace(pad_token_id=None, unk_token_id=1, eos_token_id=3, all_special_ids=[3, 2])
    assert neutral_ids(torch.tensor([[2, 7, 8, 3]]), tokenizer).tolist() == [[2, 1, 1, 3]]
    example = example_of(record(toy("encoder_decoder"), {"input_ids": IDS, "decoder_input_ids": IDS[:, :1]}))
    example.tokenizer = SimpleNamespace(pad_token_id=0, unk_token_id=1, eos_token_id=3, all_special_ids=[3])
    refused("the answer has no tokens", attribution.token_attributions, example, error=NotApplicable)


def test_without_captum_the_error_names_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "captum.attr", None)
    message = r"attributions need captum: pip install 'vanillaformer\[explore\]'"
    refused(message, attributions, toy("decoder"), INPUTS, NEUTRAL, [(0, 5)], error=ImportError)


CASES = {
    "pre": ("decoder", {"norm_placement": "pre"}), "post": ("decoder", {"norm_placement": "post"}),
    "capped": ("decoder", {"final_logit_softcapping": 5.0, "logit_scale": 0.5}),
    "masked": ("encoder", {}), "translation": ("encoder_decoder", {}), "copying": ("encoder_decoder", COPYING),
    "ctc": ("encoder_decoder", {"decoding": "ctc"}), "images": ("image_encoder", {}),
    "stages": ("image_encoder", PATCHES_ONLY | {"depths": [1, 1], "position_embedding_type": "none"}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_last_logits_are_the_models_and_the_others_those_of_its_first_layers(case):
    kind, fields = CASES[case]
    found = recorded(kind, 2, **fields)
    logits = list(lens_logits(found))
    assert torch.equal(logits[-1], found.logits)
    if case == "stages":
        return
    model = found.model
    stack = model.base_model if kind != "encoder_decoder" else model.model.decoder
    stack.layers = stack.layers[:1]
    if kind == "image_encoder":
        stack.stages = [stack.stages[0]._replace(depth=1)]
    assert len(logits) == 3
    torch.testing.assert_close(logits[1], record(model, found.inputs).logits, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("kind", "model_class"), TEXT_CLASSIFIERS.items())
def test_classes_have_probabilities_over_the_layers(kind, model_class):
    found = record(toy(kind, model_class, num_labels=3).double(), inputs_of(kind, 1))
    values = class_lens(found)
    np.testing.assert_allclose(values[-1], found.logits[0].softmax(-1), rtol=1e-6)
    np.testing.assert_allclose(values.sum(axis=1), 1, rtol=1e-6)
    assert not np.allclose(values[0], values[1])
    assert lens(example_of(found))[0].rows[-1][0] == 2


def test_classes_in_words_are_those_of_generate():
    for problem, logits, words in (
        ("single_label_classification", [0.0, 0.0, 9.0], "c (100.0%)"),
        ("multi_label_classification", [2.0, -2.0, 1.0], "a (88.1%), c (73.1%)"),
        ("regression", [-2.5], "-2.5000"),
    ):
        model = SimpleNamespace(config=SimpleNamespace(problem_type=problem))
        assert likeliest(Recording(model, {}, logits=torch.tensor([logits])), dict(enumerate("abc"))) == words


def test_rank_and_probability_are_those_of_the_right_token():
    found = recorded("decoder")
    targets = torch.cat([found.inputs["input_ids"][0, 1:], torch.tensor([-100])])
    result = token_lens(found, targets)
    probabilities = found.logits[0].softmax(-1)
    order = probabilities.argsort(-1, descending=True)
    assert result.token.shape == (3, 7)
    np.testing.assert_array_equal(result.token[-1], order[:, 0])
    np.testing.assert_allclose(result.probability[-1], probabilities.max(-1).values, rtol=1e-5)
    for place, token in enumerate(targets[:-1].tolist()):
        assert result.right_rank[-1, place] == order[place].tolist().index(token) + 1
        assert result.right_probability[-1, place] == pytest.approx(probabilities[place, token].item(), rel=1e-5)
    assert (result.right_rank[:, -1] == 0).all()
    assert np.isnan(result.right_probability[:, -1]).all()
    table, ranks = lens(example_of(found, targets))
    assert len(table.rows) == 21
    assert ranks.rows[-1][0] == 2


@pytest.mark.parametrize("kind", ["decoder", "encoder_decoder", "encoder"])
def test_rows_name_the_token_that_is_right_also_a_space_and_a_repeated_one(kind):
    """ "" is how a token that is a space is decoded; a masked language model names only what it fills in."""
    found = recorded(kind)
    ids = found.inputs["decoder_input_ids" if kind == "encoder_decoder" else "input_ids"][0]
    names = {int(token): f"w{token}" for token in range(ids.max() + 9)} | {2: ""}
    stack = "encoder" if kind == "encoder" else "decoder"
    ids[2] = 2
    ids[4] = ids[3]
    words = [names[token] or "␣" for token in ids.tolist()]
    if kind == "encoder":
        targets, wanted = torch.cat([torch.tensor([2]), ids[1:]]), [f"{words[0]} → ␣", *words[1:]]
    else:
        targets = torch.cat([ids[1:], torch.tensor([-100])])
        wanted = [*(f"{old} → {new}" for old, new in pairwise(words)), words[-1]]
    example = example_of(found, targets)
    example.answers = names.__getitem__
    example.tokens[stack] = [names[token] for token in ids.tolist()]
    for drawing in lens(example):
        assert [each.get_text() for each in drawing.figure.axes[0].get_yticklabels()] == wanted


def test_without_a_head_or_a_stream_there_is_no_lens():
    recurrent = record(toy("recurrent_encoder_decoder"), inputs_of("encoder_decoder", 1))
    for found in (recurrent, record(toy("encoder").model, INPUTS)):
        refused("no layers with a stream, or no head", next, lens_logits(found), error=NotApplicable)


def test_share_and_cosine_of_vectors_that_are_known():
    kept, added = torch.tensor([[[3.0, 4.0], [0.0, 1.0]]]), torch.tensor([[[-6.0, -8.0], [3.0, 0.0]]])
    sublayer = Sublayer(0, "mlp", kept, 2 * added, kept, added)
    found = contributions(Recording(None, {}, sublayers={"decoder": [sublayer]}))["decoder"]
    assert found.sublayers == [(0, "mlp")]
    assert (found.x, found.out, found.added) == ([3.0], [13.0], [6.5])
    assert (found.share, found.cosine) == (pytest.approx([(10 / 15 + 3 / 4) / 2]), pytest.approx([(-1 + 0) / 2]))


def test_a_model_without_residual_connections_keeps_nothing_and_a_new_rezero_model_adds_nothing():
    for placement, share in (("no_residual", 1.0), ("rezero", 0.0)):
        model = toy("decoder", norm_placement=placement)
        for name, factor in model.named_parameters():
            if name.endswith("alpha"):
                factor.data.zero_()
        found = contributions(record(model, {"input_ids": torch.tensor([[5, 6, 7, 8]])}))["decoder"]
        np.testing.assert_allclose(found.share, share)


@pytest.mark.parametrize("kind", KINDS)
def test_norms_are_those_of_the_states_and_pictures_have_a_bar_for_every_sublayer(kind):
    found = recorded(kind)
    for name, layers in stream_norms(found).items():
        expected = [np.linalg.norm(state, axis=-1) for state in found.hidden_states[name]]
        np.testing.assert_allclose(layers, expected, rtol=1e-5)
    example = example_of(found)
    parts = 5 if kind == "encoder_decoder" else 2
    assert sum(len(drawing.rows) for drawing in sublayers(example)) == 2 * 2 * parts
    assert len(stream(example)) == len(found.hidden_states)


@pytest.mark.parametrize(("fields", "name", "factor"), [
    ({"norm_placement": "rezero"}, "α on the sublayer (ReZero)", "alpha"),
    ({"norm_placement": "admin"}, "ω on the stream (Admin)", "omega"),
    ({"norm_placement": "deepnorm"}, "α on the stream (DeepNorm, fixed)", "alpha"),
    ({"layer_scale_init_value": 0.1}, "λ on the sublayer (layer scale)", "layer_scale.weight"),
])  # fmt: skip
def test_factors_are_the_parameters(fields, name, factor):
    model = toy("decoder", **fields)
    (found,) = residual_factors(model)["decoder"]
    assert found.name == name
    assert found.sublayers == [(0, "self_attn"), (0, "mlp"), (1, "self_attn"), (1, "mlp")]
    expected = torch.as_tensor(attrgetter(factor)(model.model.layers[1].mlp_residual)).detach().numpy()
    assert found.mean[-1] == pytest.approx(expected.mean())
    assert (found.smallest[-1], found.largest[-1]) == pytest.approx((expected.min(), expected.max()))
