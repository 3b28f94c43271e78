"""The logit lens ends with the model's answer and is, before that, that of a model of fewer layers."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from modeling.test_pointers import COPYING
from modeling.toys import inputs_of, toy

from exploration.toys import example_of, recorded
from vanillaformer import VanillaDecoderForSequenceClassification, VanillaEncoderForSequenceClassification
from vanillaformer.exploration.lens import class_lens, lens, lens_logits, token_lens
from vanillaformer.exploration.pictures import NotApplicable
from vanillaformer.exploration.recording import record

PARALLEL = {"decoder_start_token_id": 2, "pad_token_id": 0, "eos_token_id": 3}
CASES = {
    "pre": ("decoder", {"norm_placement": "pre"}), "post": ("decoder", {"norm_placement": "post"}),
    "capped": ("decoder", {"final_logit_softcapping": 5.0, "logit_scale": 0.5}),
    "masked": ("encoder", {}), "translation": ("encoder_decoder", {}), "copying": ("encoder_decoder", COPYING),
    "ctc": ("encoder_decoder", {"decoding": "ctc", **PARALLEL}),
    "images": ("image_encoder", {}),
    "stages": ("image_encoder",
               {"depths": [1, 1], "use_cls_token": False, "image_pooling": "mean", "position_embedding_type": "none"}),
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


CLASSIFIERS = {"encoder": VanillaEncoderForSequenceClassification, "decoder": VanillaDecoderForSequenceClassification}


@pytest.mark.parametrize(("kind", "model_class"), CLASSIFIERS.items())
def test_classes_have_probabilities_over_the_layers(kind, model_class):
    found = record(toy(kind, model_class, num_labels=3).double(), inputs_of(kind, 1))
    values = class_lens(found)
    np.testing.assert_allclose(values[-1], found.logits[0].softmax(-1), rtol=1e-6)
    np.testing.assert_allclose(values.sum(axis=1), 1, rtol=1e-6)
    assert not np.allclose(values[0], values[1])
    assert lens(example_of(found))[0].rows[-1][0] == 2


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
    targets = ids.clone() if kind == "encoder" else torch.cat([ids[1:], torch.tensor([-100])])
    if kind == "encoder":
        targets[0] = 2
    example = example_of(found, targets)
    example.answers = names.__getitem__
    example.tokens[stack] = [names[token] for token in ids.tolist()]
    words = [names[token] or "␣" for token in ids.tolist()]
    if kind == "encoder":
        wanted = [f"{words[0]} → ␣", *words[1:]]
    else:
        wanted = [*(f"{old} → {new}" for old, new in pairwise(words)), words[-1]]
    for drawing in lens(example):
        assert [each.get_text() for each in drawing.figure.axes[0].get_yticklabels()] == wanted


def test_without_a_head_or_a_stream_there_is_no_lens():
    for model in (toy("recurrent_encoder_decoder"), toy("encoder").model):
        kind = "recurrent_encoder_decoder" if hasattr(model, "lm_head") else "encoder"
        with pytest.raises(NotApplicable, match="no layers with a stream, or no head"):
            next(lens_logits(record(model, inputs_of(kind, 1))))
