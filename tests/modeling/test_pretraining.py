"""The two heads of BERT's pre-training: losses by hand, accumulation, and what follows."""

import pytest
import torch
import transformers
from torch import nn
from transformers import AutoModelForPreTraining, AutoModelForSequenceClassification, PreTrainedModel
from transformers.models.bert.modeling_bert import BertForPreTrainingOutput

import vanillaformer
from vanillaformer.modeling.encoder import PreTrainingOutput

from .toys import assert_close, inputs_of, labels_of, step_of_trainer, tokens, toy

PAIRS = torch.tensor([1, 0, 1])


def pretraining(**fields) -> PreTrainedModel:
    return toy("encoder", vanillaformer.VanillaEncoderForPreTraining, **fields)


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
    model, inputs, labels = pretraining(), inputs_of("encoder"), labels_of("encoder")
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
    assert model(**inputs, next_sentence_label=PAIRS, num_items_in_batch=items).loss == (
        model(**inputs, next_sentence_label=PAIRS).loss
    )


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


def rows_with(masked: list[int]) -> dict[str, torch.Tensor]:
    """Rows with so many masked tokens each."""
    ids, labels = tokens(len(masked), 7), tokens(len(masked), 7, seed=4)
    for row, count in enumerate(masked):
        labels[row, count:] = -100
    return {"input_ids": ids, "labels": labels, "next_sentence_label": torch.arange(len(masked)) % 3 % 2}


@pytest.mark.parametrize("masked", [[3, 3, 3, 3], [5, 1, 2, 4], [6, 6, 2, 2]])
def test_accumulated_gradients_are_those_of_batches_weighted_by_their_masked_tokens(masked, tmp_path):
    """Where the means over tokens and pairs cannot both be exact, the one over the tokens is."""
    rows, model = rows_with(masked), pretraining()
    for first in (0, 2):
        part = {key: value[first : first + 2] for key, value in rows.items()}
        (sum(masked[first : first + 2]) / sum(masked) * model(**part).loss).backward()
    expected = torch.cat([-p.grad.flatten() for p in model.parameters()])
    assert_close(step_of_trainer(pretraining(), rows, 2, tmp_path), expected, "step", 1e-4)


def shared(model: PreTrainedModel, renamed: dict[str, str], *more: str) -> dict[str, torch.Tensor]:
    """The stack and the named parts, under the names another class has for them."""
    kept = {}
    for name, value in model.state_dict().items():
        part = name.split(".")[0]
        if part == "model" or part in more:
            kept[renamed.get(part, part) + name.removeprefix(part)] = value
    return kept


def assert_holds(model: PreTrainedModel, expected: dict[str, torch.Tensor]) -> None:
    state = model.state_dict()
    assert len(expected) > 10
    for name, value in expected.items():
        assert torch.equal(state[name], value), f"{name} is not what was saved"


def test_a_masked_language_model_takes_all_it_has_and_it_goes_on_from_one(tmp_path):
    model, inputs = pretraining(), inputs_of("encoder")
    model.save_pretrained(tmp_path)
    loaded, info = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"], "what is left out on purpose is not worth a warning"
    assert torch.equal(loaded.eval()(**inputs).logits, model(**inputs).prediction_logits)
    model, inputs = toy("encoder", vanillaformer.VanillaEncoderForMaskedLM), inputs_of("encoder")
    model.save_pretrained(tmp_path)
    loaded, info = AutoModelForPreTraining.from_pretrained(tmp_path, output_loading_info=True)
    assert {key.split(".")[0] for key in info["missing_keys"]} == {"pooler", "seq_relationship"}
    assert torch.equal(loaded.eval()(**inputs).prediction_logits, model(**inputs).logits)


def test_a_classifier_goes_on_from_the_pooler_not_from_the_token_head_and_it_from_a_classifier(tmp_path):
    model = pretraining()
    model.save_pretrained(tmp_path / "pretrained")
    options = {"num_labels": 5, "output_loading_info": True}
    loaded, info = AutoModelForSequenceClassification.from_pretrained(tmp_path / "pretrained", **options)
    assert info["missing_keys"] == {"classifier.weight", "classifier.bias"}
    assert_holds(loaded, shared(model, {"pooler": "pooler"}, "pooler"))
    assert not torch.equal(loaded.pooler.dense.weight, model.transform.dense.weight)
    model = toy("encoder", vanillaformer.VanillaEncoderForSequenceClassification, num_labels=5)
    model.save_pretrained(tmp_path / "classifier")
    loaded, info = AutoModelForPreTraining.from_pretrained(tmp_path / "classifier", output_loading_info=True)
    missing = {".".join(key.split(".")[:-1]) for key in info["missing_keys"]}
    assert missing - {"lm_head"} == {"transform.dense", "transform.norm", "seq_relationship"}
    assert_holds(loaded, shared(model, {"pooler": "pooler"}, "pooler"))
