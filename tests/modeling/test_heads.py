"""Heads: losses by hand, labels without loss, shifts, token types, classifiers, their pooling, pre-training."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
import transformers
from refusals import refused
from torch import nn
from transformers import AutoModelForPreTraining, AutoModelForSequenceClassification, PreTrainedModel
from transformers.models.bert.modeling_bert import BertForPreTrainingOutput

import vanillaformer as vf
from vanillaformer.modeling.encoder import PreTrainingOutput
from vanillaformer.modeling.parts.pooling import POOLINGS

from . import toys
from .toys import PAD, TEXT_CLASSIFIERS, assert_close, inputs_of, labels_of, shared_toy, step_of_trainer, tokens, toy

every_kind = pytest.mark.parametrize("kind", toys.KINDS)


def terms(kind: str, logits: torch.Tensor, labels: torch.Tensor) -> list[torch.Tensor]:
    """Cross-entropy of each label that counts, token by token; a decoder's logits belong to the next token."""
    if kind == "decoder":
        logits, labels = logits[:, :-1], labels[:, 1:]
    return [
        -logits[row, t].log_softmax(-1)[label] for row, line in enumerate(labels.tolist())
        for t, label in enumerate(line) if label != -100
    ]  # fmt: skip


@every_kind
@pytest.mark.parametrize("items", [None, 37])
def test_the_loss_is_the_mean_over_the_labels_that_count_or_divided_by_the_items_given(kind, items):
    model, labels = shared_toy(kind, {}), labels_of(kind)
    given = {} if items is None else {"num_items_in_batch": torch.tensor(items)}
    output = model(**inputs_of(kind), labels=labels, **given)
    expected = terms(kind, output.logits, labels)
    assert_close(output.loss, torch.stack(expected).sum() / (items or len(expected)), "loss")


@every_kind
def test_without_labels_there_is_no_loss_and_the_same_logits_come_first(kind):
    model, inputs = shared_toy(kind, {}), inputs_of(kind)
    output = model(**inputs)
    assert output.loss is None
    assert torch.equal(model(**inputs, return_dict=False)[0], output.logits)
    assert torch.equal(model(**inputs, labels=labels_of(kind)).logits, output.logits)


@pytest.mark.parametrize("kind", ["encoder_decoder", "decoder"])
def test_training_keeps_no_cache_unless_asked(kind):
    model, inputs, labels = shared_toy(kind, {}), inputs_of(kind), labels_of(kind)
    assert model(**inputs).past_key_values is not None
    assert model(**inputs, labels=labels).past_key_values is None
    assert model(**inputs, labels=labels, use_cache=True).past_key_values is not None


def test_a_decoder_reads_what_stands_before_the_labels():
    model = shared_toy("encoder_decoder", {})
    labels = torch.tensor([[5, 6, 7, -100, -100], [8, 9, 3, 4, -100]])
    shifted = model.prepare_decoder_input_ids_from_labels(labels)
    start = model.config.decoder_start_token_id
    assert shifted.tolist() == [[start, 5, 6, 7, PAD], [start, 8, 9, 3, 4]]
    source = {"input_ids": tokens(2, 6), "attention_mask": toys.padding(2, 6)}
    by_labels, by_hand = model(**source, labels=labels), model(**source, labels=labels, decoder_input_ids=shifted)
    assert torch.equal(by_labels.logits, by_hand.logits)


def test_without_target_inputs_a_shared_vocabulary_reads_the_shifted_source():
    fields = {"decoder_vocab_size": 37, "share_encoder_decoder_embeddings": True}
    model, ids = toy("encoder_decoder", **fields), tokens(2, 5)
    shifted = torch.cat([torch.full((2, 1), model.config.decoder_start_token_id), ids[:, :-1]], dim=1)
    assert torch.equal(model(ids).logits, model(ids, decoder_input_ids=shifted).logits)
    refused("decoder_input_ids", shared_toy("encoder_decoder", {}), ids)


@pytest.mark.parametrize("name", ["decoder_start_token_id", "pad_token_id"])
def test_labels_cannot_be_shifted_without_the_tokens_for_it(name):
    model = toy("encoder_decoder", **{name: None})
    refused(name, model, tokens(1, 3), labels=tokens(1, 3, toys.TARGET_VOCABULARY))


@pytest.mark.parametrize("kind", ["decoder", "encoder"])
def test_token_types_count_and_are_0_unless_given(kind):
    model = shared_toy(kind, {"type_vocab_size": 3})
    ids = tokens(2, 5)
    zeros = torch.zeros_like(ids)
    types = zeros.clone()
    types[:, 3:] = 2
    logits = [model(ids, token_type_ids=t).logits for t in (zeros, types)]
    assert torch.equal(model(ids).logits, logits[0])
    assert not torch.allclose(*logits, atol=1e-2)
    # a decoder's earlier tokens do not see the later types
    assert torch.equal(logits[0][:, :3], logits[1][:, :3]) is (kind == "decoder")
    refused("type_vocab_size=0", shared_toy(kind, {"type_vocab_size": 0}), ids, token_type_ids=zeros)


@every_kind
def test_inputs_are_either_tokens_or_vectors(kind):
    model, inputs = shared_toy(kind, {}), inputs_of(kind)
    vectors = model.get_input_embeddings()(inputs["input_ids"])
    by_vectors = {name: value for name, value in inputs.items() if name != "input_ids"} | {"inputs_embeds": vectors}
    expected = model(**inputs).logits
    assert torch.equal(model(**by_vectors).logits, expected)
    if kind == "encoder_decoder":
        target = {"decoder_inputs_embeds": model.get_decoder().embed_tokens(inputs["decoder_input_ids"])}
        others = {name: value for name, value in inputs.items() if name != "decoder_input_ids"}
        assert torch.equal(model(**others, **target).logits, expected)
    refused("input_ids and inputs_embeds", model, **inputs, inputs_embeds=vectors)
    del by_vectors["inputs_embeds"]
    refused("input_ids and inputs_embeds", model, **by_vectors)


@pytest.mark.parametrize("kind", ["encoder_decoder", "decoder"])
def test_logits_are_kept_for_the_positions_asked(kind):
    model, inputs = shared_toy(kind, {}), inputs_of(kind)
    full = model(**inputs).logits
    assert_close(model(**inputs, logits_to_keep=1).logits, full[:, -1:], "the last position")
    assert_close(model(**inputs, logits_to_keep=3).logits, full[:, -3:], "the last three")
    chosen = torch.tensor([0, 3])
    assert_close(model(**inputs, logits_to_keep=chosen).logits, full[:, chosen], "chosen positions")


def assert_accumulates(make: Callable[[], PreTrainedModel], inputs: dict[str, torch.Tensor], folder: Path) -> None:
    """A head that takes `num_items_in_batch` without dividing by it makes the gradients of two batches too long.

    `test_upstream_traps.py` has language models.
    """
    whole, halves = (step_of_trainer(make(), inputs, size, folder) for size in (4, 2))
    assert_close(halves, whole, "step", 1e-3)


@pytest.mark.parametrize("kind", TEXT_CLASSIFIERS)
@pytest.mark.parametrize(("labels", "num_labels", "loss"), [
    (torch.tensor([2, 0, 1, 1]), 3, nn.functional.cross_entropy),
    (torch.tensor([0.5, -1.0, 2.0, 0.1]), 1, lambda x, y: nn.functional.mse_loss(x.squeeze(-1), y)),
    (torch.tensor([[1.0, 0, 1], [0, 0, 1], [1, 1, 0], [0] * 3]), 3, nn.functional.binary_cross_entropy_with_logits),
], ids=["one of several", "regression", "several of several"])  # fmt: skip
def test_a_text_classifiers_loss_follows_its_labels_and_accumulates(kind, labels, num_labels, loss, tmp_path):
    make = partial(toy, kind, TEXT_CLASSIFIERS[kind], num_labels=num_labels)
    inputs = inputs_of(kind, batch=4) | {"labels": labels}
    output = make()(**inputs)
    assert output.logits.shape == (4, num_labels)
    assert_close(output.loss, loss(output.logits, labels), "loss")
    assert_accumulates(make, inputs, tmp_path)


def test_a_token_classifiers_gradients_accumulate(tmp_path):
    labels = labels_of("encoder", batch=4)
    labels[labels > 0] %= 5
    make = partial(toy, "encoder", vf.VanillaEncoderForTokenClassification, num_labels=5)
    assert_accumulates(make, inputs_of("encoder", batch=4) | {"labels": labels}, tmp_path)


def test_a_decoder_classifies_rows_and_batches_alike_if_it_knows_the_padding():
    """As GPT-2 is used: the end token pads. transformers reads the classifier off before the first of them."""
    model = toy("decoder", vf.VanillaDecoderForSequenceClassification, num_labels=3, pad_token_id=3, eos_token_id=3)
    row = torch.tensor([[5, 9, 7, 3]])
    padded = torch.tensor([[5, 9, 7, 3, 3, 3], [6, 8, 4, 5, 9, 3]])
    together = model(padded, attention_mask=torch.tensor([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]])).logits
    assert_close(together[:1], model(row).logits, "the padded row")
    assert_close(together[:1], model(row[:, :3]).logits, "the row without its end token")
    model = toy("decoder", vf.VanillaDecoderForSequenceClassification, num_labels=3, pad_token_id=None)
    assert model(tokens(1, 4)).logits.shape == (1, 3)
    refused("padding", model, tokens(2, 4))


@every_kind
def test_labels_shifted_by_the_caller_are_scored_whatever_else_is_asked_for(kind):
    model, inputs, labels = shared_toy(kind, {}), inputs_of(kind), labels_of(kind)
    # as for a part of a row, whose last token is followed by one that `labels` does not have
    shifted = torch.cat([labels[:, 1:], labels[:, :1]], dim=1)
    expected = model(**inputs, labels=labels, shift_labels=shifted).loss
    assert_close(model(**inputs, labels=labels, shift_labels=shifted, labeled_only=True).loss, expected, "loss")
    alone = model(**inputs, labels=labels).loss
    if kind == "decoder":
        logits = model(**inputs).logits
        by_hand = nn.functional.cross_entropy(logits.flatten(0, 1), shifted.flatten())
        assert_close(expected, by_hand, "loss of the shifted labels")
        assert abs(float(alone - expected)) > 1e-3
        smooth = nn.functional.cross_entropy(logits.flatten(0, 1), shifted.flatten(), label_smoothing=0.1)
        given = model(**inputs, labels=labels, shift_labels=shifted, label_smoothing=0.1).loss
        assert_close(given, smooth, "smoothed loss")
    else:  # whose labels stand at their own position: transformers' losses pass over the others
        assert_close(expected, alone, "loss")


# Of the states (T, D) of one row's tokens
OF_ONE_ROW = {
    "first": lambda rows: rows[0], "last": lambda rows: rows[-1],
    "mean": lambda rows: rows.mean(0), "max": lambda rows: rows.amax(0),
}  # fmt: skip


@pytest.mark.parametrize("mask", [
    [[1, 1, 1, 1], [1, 1, 1, 1]], [[1, 1, 0, 0], [1, 1, 1, 0]], [[0, 0, 1, 1], [0, 1, 1, 1]],
    [[1, 0, 0, 0], [0, 0, 0, 1]],
], ids=["full", "right", "left", "one token"])  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.long, torch.bool, torch.float])
@pytest.mark.parametrize("name", POOLINGS)
def test_a_pooling_is_that_of_each_row_without_padding(name, mask, dtype):
    mask = torch.tensor(mask)
    states = torch.randn(2, 4, 6) - 5  # all negative: a maximum over padding zeros would show
    states[mask == 0] = 100.0  # and so would padding that is counted
    pooled, half = (POOLINGS[name](given, mask.to(dtype)) for given in (states, states.half()))
    assert half.dtype == torch.float16
    assert torch.isfinite(half).all()
    for row in range(2):
        assert_close(pooled[row], OF_ONE_ROW[name](states[row][mask[row] == 1]), f"row {row}", 1e-6)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(("kind", "pooling"), [*(("encoder", name) for name in POOLINGS), ("decoder", "last")])
def test_a_text_classifier_without_an_inner_layer_maps_the_pooled_states_of_each_row(kind, pooling, side):
    fields = {"classifier_act": None, "classifier_pooling": pooling} if kind == "encoder" else {}
    model, inputs = toy(kind, TEXT_CLASSIFIERS[kind], num_labels=3, **fields), inputs_of(kind, side=side)
    logits, states = model(**inputs).logits, model.model(**inputs).last_hidden_state
    head = model.classifier if kind == "encoder" else model.score
    for row, mask in enumerate(inputs["attention_mask"] == 1):
        assert_close(logits[row], head(OF_ONE_ROW[pooling](states[row][mask])), f"row {row}")


def test_a_classifier_refuses_a_four_dimensional_mask():
    model = toy("encoder", vf.VanillaEncoderForSequenceClassification)
    refused(r"\(2, 1, 5, 5\)", model, tokens(2, 5), attention_mask=torch.ones(2, 1, 5, 5, dtype=torch.bool))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_mean_of_a_long_text_neither_overflows_nor_loses_count(dtype):
    states = torch.full((2, 4097, 2), 20.0, dtype=dtype)
    mask = torch.ones(2, 4097, dtype=torch.long)
    mask[1, 906:] = 0  # neither this number nor 20 times it is one of bfloat16
    states[1, 906:] = 1000.0
    assert torch.equal(POOLINGS["mean"](states, mask), torch.full((2, 2), 20.0, dtype=dtype))


PAIRS = torch.tensor([1, 0, 1])


def pretraining(**fields) -> PreTrainedModel:
    return toy("encoder", vf.VanillaEncoderForPreTraining, **fields)


def test_the_output_has_transformers_names_and_the_loss_is_the_sum_of_those_whose_labels_are_given():
    assert list(PreTrainingOutput.__dataclass_fields__) == list(BertForPreTrainingOutput.__dataclass_fields__)
    model, inputs = pretraining(), inputs_of("encoder")
    output = model(**inputs, output_hidden_states=True)
    assert output.loss is None
    assert (output.prediction_logits.shape, output.seq_relationship_logits.shape) == ((3, 7, 37), (3, 2))
    assert len(output.hidden_states) == 3
    first, second = model(**inputs, return_dict=False)[:2]
    assert torch.equal(first, output.prediction_logits)
    assert torch.equal(second, output.seq_relationship_logits)
    labels = labels_of("encoder")
    output = model(**inputs, labels=labels, next_sentence_label=PAIRS)
    masked = nn.functional.cross_entropy(output.prediction_logits.flatten(0, 1), labels.flatten())
    paired = nn.functional.cross_entropy(output.seq_relationship_logits, PAIRS)
    assert_close(output.loss, masked + paired, "both")
    assert_close(model(**inputs, labels=labels).loss, masked, "tokens alone")
    assert_close(model(**inputs, next_sentence_label=PAIRS).loss, paired, "pairs alone")
    assert_close(model(**inputs, next_sentence_label=PAIRS[:, None]).loss, paired, "pairs as a column")


@pytest.mark.parametrize("items", [50, torch.tensor(50)])
def test_a_batch_counts_by_its_share_of_the_masked_tokens(items):
    model, inputs, labels = pretraining(), inputs_of("encoder"), labels_of("encoder")
    whole = model(**inputs, labels=labels, next_sentence_label=PAIRS).loss
    part = model(**inputs, labels=labels, next_sentence_label=PAIRS, num_items_in_batch=items).loss
    assert_close(part, whole * labels.ne(-100).sum() / 50, "loss")
    loss = model(**inputs, next_sentence_label=PAIRS).loss
    assert model(**inputs, next_sentence_label=PAIRS, num_items_in_batch=items).loss == loss


@pytest.mark.parametrize("fields", [
    {}, {"classifier_pooling": "mean"}, {"classifier_act": None}, {"classifier_act": "gelu", "classifier_norm": True},
], ids=["bert", "mean", "no layer", "normalized"])  # fmt: skip
def test_the_pair_is_judged_as_a_classifier_of_two_classes_would(fields, tmp_path):
    model, inputs = pretraining(**fields), inputs_of("encoder")
    model.save_pretrained(tmp_path)
    classifier = AutoModelForSequenceClassification.from_pretrained(tmp_path, num_labels=2).eval()
    with torch.no_grad():
        classifier.classifier.weight.copy_(model.seq_relationship.weight)
        classifier.classifier.bias.copy_(model.seq_relationship.bias)
    assert torch.equal(classifier(**inputs).logits, model(**inputs).seq_relationship_logits)


@pytest.mark.parametrize("masked", [[3, 3, 3, 3], [5, 1, 2, 4], [6, 6, 2, 2]])
def test_accumulated_gradients_are_those_of_batches_weighted_by_their_masked_tokens(masked, tmp_path):
    """Where the means over tokens and pairs cannot both be exact, the one over the tokens is."""
    model, rows = pretraining(), {"input_ids": tokens(4, 7), "labels": tokens(4, 7, seed=4)}
    rows["next_sentence_label"] = torch.tensor([0, 1, 0, 0])
    for labels, count in zip(rows["labels"], masked):
        labels[count:] = -100
    for first in (0, 2):
        part = {key: value[first : first + 2] for key, value in rows.items()}
        (sum(masked[first : first + 2]) / sum(masked) * model(**part).loss).backward()
    expected = torch.cat([-p.grad.flatten() for p in model.parameters()])
    assert_close(step_of_trainer(pretraining(), rows, 2, tmp_path), expected, "step", 1e-4)


def assert_shares(model: PreTrainedModel, other: PreTrainedModel) -> None:
    """Assert that stack and pooler are those of another model."""
    state = model.state_dict()
    for name, value in other.state_dict().items():
        if name.startswith(("model.", "pooler.")):
            assert torch.equal(state[name], value), f"{name} is not what was saved"


def test_a_masked_language_model_and_a_pretraining_model_load_each_other(tmp_path):
    model, inputs = pretraining(), inputs_of("encoder")
    model.save_pretrained(tmp_path)
    loaded, info = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"], "what is left out on purpose is not worth a warning"
    assert torch.equal(loaded.eval()(**inputs).logits, model(**inputs).prediction_logits)
    model, inputs = toy("encoder", vf.VanillaEncoderForMaskedLM), inputs_of("encoder")
    model.save_pretrained(tmp_path)
    loaded, info = AutoModelForPreTraining.from_pretrained(tmp_path, output_loading_info=True)
    assert {key.split(".")[0] for key in info["missing_keys"]} == {"pooler", "seq_relationship"}
    assert torch.equal(loaded.eval()(**inputs).prediction_logits, model(**inputs).logits)


def test_a_classifier_and_a_pretraining_model_share_stack_and_pooler(tmp_path):
    model = pretraining()
    model.save_pretrained(tmp_path / "pretrained")
    options = {"num_labels": 5, "output_loading_info": True}
    loaded, info = AutoModelForSequenceClassification.from_pretrained(tmp_path / "pretrained", **options)
    assert info["missing_keys"] == {"classifier.weight", "classifier.bias"}
    assert_shares(loaded, model)
    assert not torch.equal(loaded.pooler.dense.weight, model.transform.dense.weight)
    model = toy("encoder", vf.VanillaEncoderForSequenceClassification, num_labels=5)
    model.save_pretrained(tmp_path / "classifier")
    loaded, info = AutoModelForPreTraining.from_pretrained(tmp_path / "classifier", output_loading_info=True)
    missing = {".".join(key.split(".")[:-1]) for key in info["missing_keys"]}
    assert missing - {"lm_head"} == {"transform.dense", "transform.norm", "seq_relationship"}
    assert_shares(loaded, model)
