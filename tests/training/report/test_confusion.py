"""Where a classifier errs, with few classes and with thousands."""

import json
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from datasets import Dataset
from matplotlib.figure import Figure
from sklearn.metrics import confusion_matrix
from transformers.trainer_utils import PredictionOutput

from vanillaformer.training.report.confusion import confusion_counts, part_in_words, pictured_classes
from vanillaformer.training.report.plots import confusion_picture
from vanillaformer.training.report.predictions import _classes


def test_counts_are_scikit_learns() -> None:
    rng = np.random.default_rng(0)
    labels, chosen = rng.integers(0, 9, 200), rng.integers(0, 9, 200)
    assert pictured_classes(labels, chosen, 9).tolist() == [*range(9)]
    for classes in (np.arange(9), np.array([1, 4, 7])):
        assert (
            confusion_counts(labels, chosen, classes).tolist()
            == confusion_matrix(labels, chosen, labels=classes).tolist()
        )


def test_of_many_classes_those_with_the_most_errors_are_drawn() -> None:
    labels = np.repeat(np.arange(1_000), 3)
    chosen = labels.copy()
    chosen[3 * 700 : 3 * 700 + 2] = 20
    chosen[3 * 41] = 5
    drawn = pictured_classes(labels, chosen, 1_000)
    assert len(drawn) == 40
    assert {5, 20, 41, 700} <= set(drawn.tolist())
    assert part_in_words(1_000) == "the 40 of 1,000 classes with the most errors"
    assert part_in_words(150) == ""


@pytest.mark.parametrize(("classes", "numbers"), [(40, 1600), (41, 0), (150, 0)])
def test_size_of_the_picture(classes: int, numbers: int, tmp_path: Path, monkeypatch) -> None:
    figures: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: figures.append(self))
    confusion_picture(np.eye(classes, dtype=int), [f"c{i}" for i in range(classes)], tmp_path / "c.png")
    assert len(figures[0].axes[0].texts) == numbers
    assert figures[0].get_size_inches().tolist() == [21.5, 20.5]


def test_names_that_the_font_lacks(tmp_path: Path, monkeypatch) -> None:
    figures, save = [], Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (figures.append(self), save(self, *a, **k))[1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        confusion_picture(np.eye(3), ["体育", "x" * 99, "財經"], tmp_path / "c.png", numbers=[4, 7, 9])
    ticks = [tick.get_text() for tick in figures[0].axes[0].get_yticklabels()]
    assert (ticks[0], ticks[2]) == ("class 4", "class 9")
    assert len(ticks[1]) <= 40


@pytest.mark.parametrize(("count", "kept"), [(3, True), (1_000, False)])
def test_record_of_many_classes_stays_small(count: int, kept: bool, tmp_path: Path) -> None:
    labels = np.arange(12) % count
    logits = np.zeros((12, count))
    logits[:, 1] = 1
    run = SimpleNamespace(folder=tmp_path, details={}, failed=[])
    trainer = SimpleNamespace(
        model=SimpleNamespace(config=SimpleNamespace(id2label={i: str(i) for i in range(count)}))
    )
    rows = Dataset.from_dict({"text": [f"Text {number} " for number in range(12)]})
    records = list(_classes(run, trainer, rows, PredictionOutput(logits, labels, {}), "test"))
    assert [record["text"] for record in records] == rows["text"]
    assert ("confusion_matrix" in run.details) is kept
    assert len(json.dumps(run.details)) < 100 * count + 1_000
    assert (tmp_path / "confusion_matrix.png").exists()
