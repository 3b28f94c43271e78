"""Classifiers that start from a saved one: with its classes, in another order, and with others."""

from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

from vanillaformer.training.arguments import ModelArguments
from vanillaformer.training.models import build_model

SIZES = ["hidden_size=16", "num_hidden_layers=1", "num_attention_heads=2"]
PARTS = {
    "bert-tiny": ("classification", ["wide_max_ngram=1", "wide_buckets=64", "vocab_size=30"]),
    "gpt-tiny": ("classification", ["vocab_size=30", "pad_token_id=0"]),
    "vit-mini": ("image_classification", []),
}


def saved(preset: str, folder: Path, labels: list[str]) -> torch.nn.Module:
    task, more = PARTS[preset]
    arguments = ModelArguments(preset=preset, overrides=[*SIZES, *more])
    model = build_model(task, arguments, seed=1, labels=labels)
    if hasattr(model, "wide"):
        torch.nn.init.normal_(model.wide.ngram_logits.weight)  # as fitted
    model.save_pretrained(folder)
    return model.eval()


def started(preset: str, folder: Path, labels: list[str]) -> torch.nn.Module:
    arguments = ModelArguments(model_name_or_path=str(folder))
    return build_model(PARTS[preset][0], arguments, seed=2, labels=labels).eval()


def inputs(preset: str) -> dict[str, torch.Tensor]:
    if preset == "vit-mini":
        return {"pixel_values": torch.randn(2, 3, 32, 32)}
    return {"input_ids": torch.tensor([[5, 6, 7], [8, 5, 5]])}


@pytest.mark.parametrize("preset", PARTS)
def test_the_same_classes_in_another_order_keep_their_logits(preset: str, tmp_path: Path, capsys) -> None:
    old = saved(preset, tmp_path, ["pos", "neg", "mid"])
    capsys.readouterr()
    new = started(preset, tmp_path, ["mid", "neg", "pos"])
    assert "has the same classes in another order" in capsys.readouterr().out
    assert new.config.id2label == {0: "mid", 1: "neg", 2: "pos"}
    with torch.inference_mode():
        batch = inputs(preset)
        logits = {name: model(**batch).logits for name, model in (("old", old), ("new", new))}
    assert torch.equal(logits["new"], logits["old"][:, [2, 1, 0]])


@pytest.mark.parametrize("preset", PARTS)
@pytest.mark.parametrize("labels", [["a", "b", "c"], ["neg", "pos"], ["mid", "neg", "new", "pos"]])
def test_other_classes_have_a_new_output_layer(preset: str, labels: list[str], tmp_path: Path, capfd) -> None:
    old = saved(preset, tmp_path, ["mid", "neg", "pos"]).state_dict()
    capfd.readouterr()
    new = started(preset, tmp_path, labels)
    captured = capfd.readouterr()
    assert "has other classes (mid, neg, pos): the output layer is new" in captured.out
    assert "LOAD REPORT" not in captured.out + captured.err
    assert list(new.config.id2label.values()) == labels
    head = {name for name in old if name.startswith(("classifier.", "score.", "wide."))}
    assert head
    for name, value in new.state_dict().items():
        if name in head:
            assert len(labels) in value.shape
            assert value.shape != old[name].shape or not value.any() or not torch.equal(value, old[name])
        else:
            assert torch.equal(value, old[name]), name
    again = started(preset, tmp_path, labels).state_dict()
    assert all(torch.equal(value, again[name]) for name, value in new.state_dict().items())  # by the seed


def test_numbers_name_the_classes_of_a_model_without_names(tmp_path: Path, capsys) -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = BertForSequenceClassification(BertConfig(vocab_size=30, **sizes, num_labels=2)).eval()
    model.save_pretrained(tmp_path)
    batch = inputs("bert-tiny")
    with torch.inference_mode():
        assert torch.equal(started("bert-tiny", tmp_path, ["0", "1"])(**batch).logits, model(**batch).logits)
        swapped = started("bert-tiny", tmp_path, ["1", "0"])(**batch).logits
    assert torch.equal(swapped, model(**batch).logits[:, [1, 0]])
    assert "another order" in capsys.readouterr().out
    started("bert-tiny", tmp_path, ["neg", "pos"])
    assert "has other classes (0, 1)" in capsys.readouterr().out
    named = started("bert-tiny", tmp_path, ["LABEL_0", "LABEL_1"])  # by the data too
    assert named.config.id2label == {0: "LABEL_0", 1: "LABEL_1"}
    with torch.inference_mode():
        assert torch.equal(named(**batch).logits, model(**batch).logits)


@pytest.mark.parametrize("kind", ["regression", "multi_label_classification"])
def test_a_model_of_another_problem_learns_one_class_for_each_row(kind: str, tmp_path: Path) -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    count = 1 if kind == "regression" else 2
    config = BertConfig(vocab_size=30, **sizes, num_labels=count, problem_type=kind)
    BertForSequenceClassification(config).save_pretrained(tmp_path)
    labels = torch.tensor([0, 1])
    found = started("bert-tiny", tmp_path, ["neg", "pos"])(**inputs("bert-tiny"), labels=labels)
    assert torch.equal(found.loss, torch.nn.functional.cross_entropy(found.logits, labels))
