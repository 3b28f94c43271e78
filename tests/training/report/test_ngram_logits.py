"""The linear classifier beside a classifier's stack: against scikit-learn's own, and in a run."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.svm import LinearSVC
from transformers import pipeline

from vanillaformer.scripts import train_classifier
from vanillaformer.training.report.ngram_logits import linear_svm

WORDS = ("red", "green", "blue", "small", "large", "old", "new")


def texts(count: int, classes: int) -> tuple[list[str], np.ndarray]:
    """Texts of random words, each with a few more of a word that tells its class."""
    draw = np.random.default_rng(0)
    labels = np.arange(count) % classes
    rows = [" ".join([*draw.choice(WORDS, 6), *draw.choice([WORDS[label], WORDS[-1]], 3)]) for label in labels]
    return rows, labels


@pytest.mark.parametrize("classes", [2, 4])
def test_it_is_the_svm_of_scikit_learn(classes: int) -> None:
    rows, labels = texts(80, classes)
    counts = TfidfVectorizer(binary=True, norm=None)
    rarity = counts.fit_transform(rows)
    present = csr_matrix((rarity > 0).astype(float))
    sizes = np.asarray(present.sum(axis=1))
    svm = linear_svm(csr_matrix(present / np.sqrt(sizes)), labels, classes)
    assert svm is not None
    features = rarity.toarray() / np.sqrt(sizes)
    features *= np.sqrt(sizes.sum() / rarity.power(2).sum())
    expected = LinearSVC(random_state=0).fit(features, labels).decision_function(features)
    logits = (present / np.sqrt(sizes)) @ svm.table + svm.bias
    actual = logits[:, 1] - logits[:, 0] if classes == 2 else logits
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-6)


def test_classes_without_a_text_are_never_predicted_and_one_class_is_no_choice() -> None:
    rows, labels = texts(60, 3)
    ngrams = csr_matrix(TfidfVectorizer().fit_transform(rows))
    svm = linear_svm(ngrams, labels * 2, 6)  # 1, 3 and 5 are missing
    assert svm is not None
    assert set((ngrams @ svm.table + svm.bias).argmax(axis=1)) <= {0, 2, 4}
    assert linear_svm(ngrams, np.zeros(60, int), 2) is None


def test_a_run_adds_it_with_the_scales_of_the_validation_data(tmp_path: Path, capfd) -> None:
    rows, labels = texts(240, 2)
    for name, part in {"train": slice(120), "validation": slice(120, 240)}.items():
        lines = (json.dumps({"text": text, "label": str(label)}) for text, label in zip(rows[part], labels[part]))
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    run = train_classifier.train(
        f"--train_file {tmp_path}/train.jsonl --validation_file {tmp_path}/validation.jsonl "
        f"--output_dir {tmp_path}/run "
        "--set hidden_size=16 num_hidden_layers=1 num_attention_heads=2 wide_max_ngram=1 wide_buckets=997 "
        "--max_steps 2 --use_cpu --max_length 16 --tokenizer_algorithm word".split()
    )
    scores = run.details["ngram_logits"]
    assert "A linear classifier on n-grams of up to 1 tokens is added to the logits" in capfd.readouterr().out
    assert scores["svm"] > scores["stack"]  # two steps teach nothing
    assert run.metrics["eval_accuracy"] == pytest.approx(scores["both"])
    assert scores["both"] == pytest.approx(scores["svm"], abs=0.02)
    assert 0 < run.details["calibration"]["temperature"] == pytest.approx(1, abs=1e-3)  # it is done already
    assert "cheng2016wide" in (tmp_path / "run" / "README.md").read_text("utf-8")
    classify = pipeline("text-classification", str(tmp_path / "run"), device="cpu")
    assert {classify(text)[0]["label"] for text in ("red red red", "green green green")} == {"0", "1"}
    assert torch.isfinite(classify.model.wide.ngram_logits.weight).all()
