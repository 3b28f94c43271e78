"""Copied weights, equal logits, losses, gradients and generated tokens: ours against transformers and torch.nn.

`pytest -o junit_family=xunit1 --junitxml=parity.xml` writes the measured errors of each case into the report.
"""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn

from . import references
from .references import D, Reference, carry, copied
from .toys import assert_close, padding, relative_error, tokens

TOLERANCE = 1e-5
B, S, T = 3, 9, 7

REFERENCES: dict[str, Callable[[str], Reference]] = {
    "gpt": references.gpt,
    "gpt2": references.gpt2,
    "llama": references.llama,
    "bert-masked-lm": references.bert_masked_lm,
    "bert-classifier": references.bert_classifier,
    "marian-swish": references.marian,
    "marian-relu": partial(references.marian, activation="relu"),
    "marian-separate-vocabularies": partial(references.marian, shared=False),
}
IMPLEMENTATIONS = ["eager", "sdpa"]


def inputs_for(name: str) -> dict[str, torch.Tensor]:
    """A padded batch with labels; GPT's padding is on the right, where its own code needs no positions."""
    mask = padding(B, S)
    batch = {"input_ids": tokens(B, S, references.VOCABULARY).masked_fill(mask == 0, 0), "attention_mask": mask}
    if name.startswith("bert"):
        batch["token_type_ids"] = torch.arange(S).gt(4).long().expand(B, S)
    if name == "bert-classifier":
        return batch | {"labels": torch.tensor([2, 0, 1])}
    length, vocabulary = (T, references.TARGET_VOCABULARY) if name.startswith("marian") else (S, references.VOCABULARY)
    labels = tokens(B, length, vocabulary, seed=6).masked_fill(padding(B, length) == 0, -100)
    return batch | {"labels": labels}


def gradient_errors(reference: Reference) -> dict[str, float]:
    """Relative error of each parameter's gradient.

    A key bias adds one number to all scores of a query, which softmax ignores: without rotary positions its gradient
    is nothing but rounding, so its error is measured by the value bias.
    """
    theirs = {n: p.grad for n, p in reference.theirs.named_parameters() if p.grad is not None}
    expected = carry(reference.tensors, theirs)
    actual = dict(reference.ours.named_parameters())
    errors = {}
    for name, gradient in expected.items():
        scale = expected[name.replace("k_proj.bias", "v_proj.bias")].double().norm()
        assert scale > 0, f"the reference has no gradient for {name}"
        assert actual[name].grad is not None, f"{name} has no gradient"
        errors[name] = ((actual[name].grad.double() - gradient.double()).norm() / scale).item()
    return errors


def assert_gradients(reference: Reference, record_property) -> None:
    errors = gradient_errors(reference)
    worst = max(errors, key=errors.get)
    record_property("gradients", errors[worst])
    assert errors[worst] <= TOLERANCE, f"gradient of {worst}: relative error {errors[worst]:.2e}"


@pytest.mark.parametrize("attention", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", REFERENCES)
def test_transformers_logits_loss_and_gradients(name, attention, record_property):
    reference = copied(REFERENCES[name]("eager" if name == "gpt" else attention))
    reference.ours.set_attn_implementation(attention)
    inputs = inputs_for(name)
    theirs, ours = reference.theirs(**inputs), reference.ours(**inputs)
    real = slice(None) if theirs.logits.shape[1] != S else inputs["attention_mask"] == 1
    error = relative_error(ours.logits[real], theirs.logits[real])
    record_property("logits", error)
    assert error <= TOLERANCE, f"logits: relative error {error:.2e}"
    assert_close(ours.loss, theirs.loss, "loss", TOLERANCE)
    theirs.loss.backward()
    ours.loss.backward()
    assert_gradients(reference, record_property)


@pytest.mark.parametrize("name", [name for name in REFERENCES if name != "bert-classifier"])
def test_the_loss_is_divided_by_the_tokens_of_all_accumulated_batches(name):
    """`num_items_in_batch`, which Trainer gives when it accumulates gradients; not every reference takes it."""
    reference = copied(REFERENCES[name]("eager" if name == "gpt" else "sdpa"))
    inputs = inputs_for(name)
    logits, labels = reference.theirs(**inputs).logits, inputs["labels"]
    if not name.startswith(("bert", "marian")):
        logits, labels = logits[:, :-1], labels[:, 1:]
    expected = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum") / 50
    assert_close(reference.ours(**inputs, num_items_in_batch=torch.tensor(50)).loss, expected, "loss", TOLERANCE)


@pytest.mark.parametrize("name", [name for name in REFERENCES if not name.startswith("bert")])
def test_transformers_greedy_tokens(name):
    reference = copied(REFERENCES[name]("eager" if name == "gpt" else "sdpa"))
    prompt = tokens(2, 5, references.VOCABULARY)
    settings = {"max_new_tokens": 8, "do_sample": False, "attention_mask": torch.ones_like(prompt), "pad_token_id": 0}
    settings["no_repeat_ngram_size"] = 2  # random weights like to repeat one token
    theirs = reference.theirs.eval().generate(prompt, **settings)
    ours = reference.ours.eval().generate(prompt, **settings)
    assert len(set(theirs.flatten().tolist())) > 3, "the reference repeats itself: nothing is compared"
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", [name for name in REFERENCES if name.startswith("marian")])
@pytest.mark.parametrize("length_penalty", [0.6, 1.4])
def test_marian_beam_search(name, length_penalty):
    reference = copied(REFERENCES[name]("sdpa"))
    mask = padding(2, 6)
    source = tokens(2, 6, references.VOCABULARY).masked_fill(mask == 0, 0)
    settings = {"num_beams": 4, "num_return_sequences": 2, "max_new_tokens": 9, "length_penalty": length_penalty}
    settings |= {
        "attention_mask": mask,
        "return_dict_in_generate": True,
        "output_scores": True,
        "bad_words_ids": [[0]],
    }
    theirs = reference.theirs.eval().generate(source, **settings)
    ours = reference.ours.eval().generate(source, **settings)
    assert torch.equal(ours.sequences, theirs.sequences)
    assert_close(ours.sequences_scores, theirs.sequences_scores, "beam scores", TOLERANCE)


@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_the_sinusoidal_table_is_marians(side):
    reference = references.marian("sdpa")
    theirs = reference.theirs.get_submodule(f"model.{side}").embed_positions.weight
    ours = reference.ours.get_submodule(f"model.{side}").embeddings.positions.table
    assert_close(ours, theirs, "table", 1e-6)


def embedded(length: int, seed: int) -> torch.Tensor:
    return torch.randn(B, length, D, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("attention", IMPLEMENTATIONS)
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("placement", ["post", "pre"])
def test_torch_encoder_states_and_gradients(placement, activation, attention, record_property):
    reference = copied(references.torch_encoder(attention, placement, activation))
    x, mask = embedded(S, 7), padding(B, S)
    theirs = reference.theirs(x, src_key_padding_mask=mask == 0)
    ours = reference.ours(inputs_embeds=x, attention_mask=mask).last_hidden_state
    compare_states(reference, ours[mask == 1], theirs[mask == 1], record_property)


@pytest.mark.parametrize("attention", IMPLEMENTATIONS)
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("placement", ["post", "pre"])
def test_torch_transformer_states_and_gradients(placement, activation, attention, record_property):
    reference = copied(references.torch_transformer(attention, placement, activation))
    source, target, mask, target_mask = embedded(S, 7), embedded(T, 8), padding(B, S), padding(B, T)
    theirs = reference.theirs(
        source,
        target,
        tgt_mask=nn.Transformer.generate_square_subsequent_mask(T, dtype=torch.bool),
        src_key_padding_mask=mask == 0,
        memory_key_padding_mask=mask == 0,
        tgt_key_padding_mask=target_mask == 0,
    )
    ours = reference.ours(
        inputs_embeds=source, attention_mask=mask, decoder_inputs_embeds=target, decoder_attention_mask=target_mask
    ).last_hidden_state
    compare_states(reference, ours[target_mask == 1], theirs[target_mask == 1], record_property)


def compare_states(reference: Reference, ours: torch.Tensor, theirs: torch.Tensor, record_property) -> None:
    error = relative_error(ours, theirs)
    record_property("logits", error)
    assert error <= TOLERANCE, f"states: relative error {error:.2e}"
    weights = torch.randn(theirs.shape, generator=torch.Generator().manual_seed(9))
    (theirs * weights).sum().backward()
    (ours * weights).sum().backward()
    assert_gradients(reference, record_property)
