"""Other values in places of a model, and the indirect effect of heads."""

import csv
from itertools import permutations

import numpy as np
import pytest
import torch
from modeling.toys import TEXT_CLASSIFIERS, inputs_of, toy
from refusals import refused
from transformers import AutoTokenizer

from vanillaformer.exploration.attribution import against, head_effects
from vanillaformer.exploration.examples import text_example
from vanillaformer.exploration.recording import places, record, stacks, values
from vanillaformer.scripts import explore

from .test_page import TEXT, folder, loaded
from .toys import KINDS, doubled

__all__ = ["folder"]


def clean_and_corrupted(kind: str) -> list[dict[str, torch.Tensor]]:
    """Two inputs of one batch, which differ in what they read (a target is the same)."""
    rows = {name: value for name, value in doubled(inputs_of(kind, 2)).items() if name != "attention_mask"}
    return [
        {name: value[:1] if name.startswith("decoder") else value[row : row + 1] for name, value in rows.items()}
        for row in range(2)
    ]


@pytest.mark.parametrize("fields", [{}, {"block_layout": "parallel"}, {"norm_placement": "post"}])
@pytest.mark.parametrize("kind", KINDS)
def test_putting_everything_in_place_is_reading_the_other_input_and_nothing_changes_nothing(kind, fields):
    """Exactly: the first block's input is all that the model is given; so are all sublayers of all blocks."""
    model = toy(kind, **{"norm_placement": "pre"} | fields).double()
    clean, corrupted = clean_and_corrupted(kind)
    expected, other = record(model, clean), record(model, corrupted)
    assert not torch.equal(expected.logits, other.logits)
    kept = values(model, clean, places(model))
    first = [place for place in kept if place.endswith(".input")]
    parts = [place for place in kept if place.count(".") != 1 or place in first]  # heads and the rest
    for names in (first, list(kept), parts):
        found = record(model, corrupted, {name: kept[name] for name in names})
        assert torch.equal(found.logits, expected.logits)
    assert torch.equal(record(model, corrupted, {name: lambda value: value for name in kept}).logits, other.logits)
    assert torch.equal(record(model, corrupted).logits, other.logits)  # the hooks are gone


def test_a_place_is_what_the_recording_says_it_is_and_later_ones_follow():
    model = toy("decoder").double()
    clean = clean_and_corrupted("decoder")[0]
    plain = record(model, clean)
    found = record(model, clean, {"decoder.0.mlp": lambda value: 2 * value})
    torch.testing.assert_close(found.sublayers["decoder"][1].out, 2 * plain.sublayers["decoder"][1].out)
    assert torch.equal(found.sublayers["decoder"][0].out, plain.sublayers["decoder"][0].out)
    assert not torch.equal(found.hidden_states["decoder"][1], plain.hidden_states["decoder"][1])
    state = torch.zeros_like(plain.hidden_states["decoder"][1])
    assert torch.equal(record(model, clean, {"decoder.0": state}).hidden_states["decoder"][1], state)
    head = values(model, clean, ["decoder.1.self_attn.3"])["decoder.1.self_attn.3"]
    assert head.shape == (*clean["input_ids"].shape, 8)  # head_dim
    refused("'decoder.9' is not a place of .*, such as decoder.input", record, model, clean, {"decoder.9": state})
    refused(r"decoder.0 has the shape .*, its new value \(3,\)", record, model, clean, {"decoder.0": torch.zeros(3)})


@pytest.mark.parametrize("kind", KINDS)
def test_effects_are_those_of_weights_that_were_changed_by_hand(kind):
    """A head of which the output projection reads nothing has no effect, and others have one."""
    model = toy(kind).double()
    clean, corrupted = clean_and_corrupted(kind)
    logits = record(model, clean).logits
    outputs = [(0, int(logits.flatten(0, -2)[0].argmax()))]
    effects = head_effects(model, clean, corrupted, outputs)
    name, stack = next(iter(stacks(model).items()))
    assert np.abs(effects[name]).min() > 0
    attention = stack.layers[0].self_attn
    with torch.no_grad():
        attention.o_proj.weight[:, : attention.head_dim] = 0
    found = head_effects(model, clean, corrupted, outputs)[name]
    assert found[0, 0] == pytest.approx(0, abs=1e-12)
    assert np.abs(found[0, 1:]).min() > 0


def test_labels_of_which_several_hold_have_probabilities_of_their_own():
    several = {"num_labels": 3, "problem_type": "multi_label_classification"}
    model = toy("encoder", TEXT_CLASSIFIERS["encoder"], **several).double()
    clean, corrupted = clean_and_corrupted("encoder")
    effect = head_effects(model, clean, corrupted, [(0, 1)])["encoder"][1, 2]
    place = "encoder.1.self_attn.2"
    edits = ({}, values(model, clean, [place]), {})
    inputs = corrupted, corrupted, clean
    low, found, high = (float(record(model, *each).logits[0, 1].sigmoid().log()) for each in zip(inputs, edits))
    assert effect == pytest.approx((found - low) / (high - low))
    model.config.problem_type = "regression"
    refused("a number, which has no probability", head_effects, model, clean, corrupted, [(0, 0)])


def test_the_program_draws_the_effects_of_two_texts_of_one_length(folder, tmp_path, capsys):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    count = len(tokenizer("a line of words")["input_ids"])
    texts = (" ".join(words) for words in permutations(["a", "line", "of", "words"]))
    other = next(text for text in texts if text[0] != "a" and len(tokenizer(text)["input_ids"]) == count)
    words = [str(folder), "--text", "a line of words", "--figures", "patching", "--output_dir", str(tmp_path / "look")]
    explore.main([*words, "--against", other])
    assert "Share of the answer that one head of the decoder restores" in capsys.readouterr().out
    with (tmp_path / "look/figures/patching_decoder.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["head"] for row in rows] == [f"decoder.{layer}.{head}" for layer in range(2) for head in range(4)]
    for text, message in (("words", r"--against has \d+ tokens, --text \d+"), ("a line of words", "equally likely")):
        refused(message, explore.main, [*words, "--against", text], error=SystemExit)
    refused("it needs a second text", explore.main, words, error=SystemExit)


def test_the_second_text_of_a_translator_has_the_same_prefix():
    opened = loaded("translation")
    opened.model.config.prefix = "a small "
    example = text_example(opened, TEXT)
    assert torch.equal(against(opened, example, TEXT)["input_ids"], example.recording.inputs["input_ids"])
