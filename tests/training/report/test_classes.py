"""Where a classifier errs, with few classes and with thousands, and what is said of it beside its scores."""

import csv
import json
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from transformers.trainer_utils import PredictionOutput

from vanillaformer.scripts import train_classifier
from vanillaformer.training.report.classes import accuracy_intervals, class_records, report_classes
from vanillaformer.training.report.plots import confusion_picture, loss_curve

SMALL = """--preset bert-tiny --set hidden_size=16 num_hidden_layers=1 num_attention_heads=2 --tokenizer_vocab_size 300
    --use_cpu --max_steps 1 --card_example text"""


@pytest.mark.parametrize(
    ("right", "count", "expected"),  # Wilson's intervals, from Brown, Cai and DasGupta (2001)
    [(1, 1, "20.7% to 100.0% (of 1)"), (8, 10, "49.0% to 94.3% (of 10)"), (0, 50, "0.0% to 7.1% (of 50)")],
)
def test_intervals(right: int, count: int, expected: str) -> None:
    metrics = {"eval_accuracy": right / count, "eval_loss": 1.0}
    assert accuracy_intervals(metrics, {"validation": count, "train": 5}) == {"validation": expected}


def test_the_surest_errors_and_the_worst_classes(tmp_path: Path, capsys) -> None:
    scores = {"precision": 0.5, "recall": 0.25, "rows": 3}
    classes = {name: {**scores, "f1": f1} for name, f1 in zip("abcde", (0.9, 0.2, 1.0, 0.3, 0.4))}
    classes["none"] = {"precision": 0.0, "recall": 0.0, "f1": 0.0, "rows": 0}
    rows = [
        {"text": f"text\u2028{n}", "reference": "a", "prediction": "ab"[n > 0], "probability": n / 10}
        for n in range(8)
    ]
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (tmp_path / "predictions_test.jsonl").write_text(lines, encoding="utf-8")
    run: Any = SimpleNamespace(folder=tmp_path, metrics={"test_accuracy": 0.125}, details={"classes": classes})
    report_classes(run)
    assert capsys.readouterr().out.splitlines() == [
        "Test, lowest F1 of a class: b 20.0% (precision 50.0%, recall 25.0%, rows 3), "
        "d 30.0% (precision 50.0%, recall 25.0%, rows 3), e 40.0% (precision 50.0%, recall 25.0%, rows 3)",
        "Test, most confident of 7 errors (all predictions are in predictions_test.jsonl):",
        *(f"  b {n}0.0%, labeled a: text {n}" for n in (7, 6, 5, 4, 3)),
    ]


def test_a_run_says_which_classes_have_no_rows_and_how_sure_its_accuracy_is(tmp_path: Path, capsys) -> None:
    rows = [(f"word{n} {'good' if n % 2 else 'bad'}", "pos" if n % 2 else "neg") for n in range(60)]
    with (tmp_path / "a.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows, ("so so", "rare")])
    options = f"--train_file {tmp_path}/a.csv --validation_fraction 0.2 --output_dir {tmp_path}/run"
    run = train_classifier.train([*SMALL.split(), *options.split()])
    lines = capsys.readouterr().out.splitlines()
    counts = run.details["data"]["train"]
    assert (counts["classes"], counts["rows of the rarest class"], counts["rows"]) == (3, 1, 49)
    unscored = "1 of 3 classes without rows: rare"
    assert any(line.startswith("Train data: ") and "; 3 classes: neg 24, pos 24, rare 1." in line for line in lines)
    assert any(line.startswith("Validation data: 12 rows; ") and f"; {unscored}." in line for line in lines)
    assert f"Validation data: {unscored}" in lines
    interval = accuracy_intervals(run.metrics, {"validation": 12})["validation"]
    assert f"Validation, 95 % interval of the accuracy: {interval}" in lines
    card = (tmp_path / "run/README.md").read_text()
    assert f"- validation accuracy: 95 % interval {interval}\n" in card
    assert f"- validation data: {unscored}\n" in card
    assert "Scores of 2 classes, lowest F1 first (validation data)" in card
    found = run.details["classes"]
    for name in ("neg", "pos"):
        cells = (f"{found[name][key]:.1%}" for key in ("precision", "recall", "f1"))
        assert f"| {name} | {' | '.join(cells)} | 6 |\n" in card
    assert "| rare |" not in card
    names = json.loads((tmp_path / "run/config.json").read_text())["id2label"]
    assert names == {"0": "neg", "1": "pos", "2": "rare"}


def test_classes_that_the_first_rows_of_a_stream_lack(tmp_path: Path, capsys) -> None:
    names = "abcdefghijklmnopqrstuv"
    rows = [(f"text {n}", names[max(0, n - 9) % len(names)]) for n in range(100)]
    with (tmp_path / "a.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    options = f"--train_file {tmp_path}/a.csv --streaming --max_validation_samples 10 --output_dir {tmp_path}/run"
    run = train_classifier.train([*SMALL.split(), *options.split()])
    assert len(run.details["data"]["validation"]["classes without rows"]) == 21
    lines = capsys.readouterr().out.splitlines()
    listed = "b, c, d, e, f, g, h, i, j, k, l, m, ..."
    assert any(line.endswith(f"; 1 class: a 10; 21 of 22 classes without rows: {listed}.") for line in lines)
    assert f"Validation data: 21 of 22 classes without rows: {listed}" in lines
    assert sum("21 of" in line for line in lines) == 2


@pytest.mark.parametrize(("classes", "numbers"), [(40, 1600), (41, 0), (150, 0)])
def test_size_of_the_picture(classes: int, numbers: int, tmp_path: Path, drawn: list[Figure]) -> None:
    confusion_picture(np.eye(classes, dtype=int), [f"c{i}" for i in range(classes)], tmp_path / "c.png")
    assert (len(drawn[0].axes[0].texts), drawn[0].get_size_inches().tolist()) == (numbers, [21.5, 20.5])


def test_names_that_the_font_lacks(tmp_path: Path, drawn: list[Figure]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        confusion_picture(np.eye(3), ["体育", "x" * 99, "財經"], tmp_path / "c.png")
    ticks = [tick.get_text() for tick in drawn[0].axes[0].get_yticklabels()]
    assert (ticks[0], ticks[2]) == ("class 0", "class 2")
    assert len(ticks[1]) <= 40


@pytest.mark.parametrize(("count", "kept"), [(3, True), (1_000, False)])
def test_record_of_many_classes_stays_small(count: int, kept: bool, tmp_path: Path) -> None:
    labels = np.arange(12) % count
    logits = np.zeros((12, count))
    logits[:, 1] = 1
    run = SimpleNamespace(folder=tmp_path, details={}, failed=[])
    names, texts = {i: str(i) for i in range(count)}, [f"Text {number} " for number in range(12)]
    records = list(class_records(run, names, ("text", texts), PredictionOutput(logits, labels, {}), "test"))
    assert [record["text"] for record in records] == texts
    assert ("confusion_matrix" in run.details) is kept
    assert len(json.dumps(run.details)) < 100 * count + 1_000
    assert (tmp_path / "confusion_matrix.png").exists() is kept


#


HISTORY = [
    {"step": 1, "loss": 4.0},
    {"step": 2, "loss": 2.0},
    {"step": 2, "eval_loss": 2.5, "eval_bleu": 10.0, "eval_exact_match": 40.0},
    {"step": 2, "train_runtime": 1.0},
]


@pytest.fixture
def drawn(monkeypatch) -> list[Figure]:
    """Collect the figures that are saved."""
    figures: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (figures.append(self), save(self, *a, **k))[1])
    return figures


def test_pictures_of_losses_and_of_classes(tmp_path: Path, drawn: list[Figure]) -> None:
    path = loss_curve(HISTORY, tmp_path / "loss.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    left, right = drawn[0].axes
    assert [list(curve.get_ydata()) for curve in left.lines] == [[4.0, 2.0], [2.5]]
    assert [list(curve.get_ydata()) for curve in right.lines] == [[40.0]]
    assert right.get_ylabel() == "exact match (%)"
    loss_curve(HISTORY[:2], tmp_path / "loss.png")
    assert len(drawn[1].axes) == 1
    assert loss_curve([], tmp_path / "empty.png").exists()
    path = confusion_picture(np.array([[3, 1], [0, 0]]), ["yes", "no $"], tmp_path / "confusion.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    axes = drawn[-1].axes[0]
    np.testing.assert_allclose(axes.images[0].get_array(), [[0.75, 0.25], [0, 0]])
    assert [text.get_text() for text in axes.texts] == ["3", "1", "0", "0"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["yes", r"no \$"]
