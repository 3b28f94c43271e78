"""Errors of a classifier: intervals of its accuracy, the scores of each class, the confusion matrix."""

import heapq
import json
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from datasets import Dataset
from scipy.stats import binomtest
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support
from transformers.trainer_utils import PredictionOutput

from vanillaformer.console.reporting import optional, report

from ..metrics.compute import labels_and_predictions
from ..metrics.scores import PREFIXES
from ..run_folder.run import Run
from .plots import confusion_picture

PICTURED = 150
"""Maximum number of classes whose confusion matrix is drawn and kept in the record."""
ERRORS, WORST = 5, 3  # errors and classes that are shown in the terminal
WIDTH = 100  # characters of a text in the terminal


def class_records(
    run: Run, id2label: Mapping[int, str], inputs: tuple[str, Dataset], output: PredictionOutput, split: str
) -> Iterator[dict[str, Any]]:
    """Yield input, reference, prediction and its probability for each row of a split.

    A classifier's errors are in `run.details` too (`classes`), and for up to `PICTURED` classes in `confusion_matrix`
    there and `confusion_matrix.png`. `inputs` are the name of an input in a record, and all inputs.
    """
    labels, logits = labels_and_predictions(output)
    names = [id2label[number] for number in range(logits.shape[-1])]
    chosen = logits.argmax(axis=-1)
    scores = precision_recall_fscore_support(labels, chosen, labels=range(len(names)), zero_division=0)
    run.details["classes"] = {name: scores_of_class(*values) for name, values in zip(names, zip(*scores))}
    if len(names) <= PICTURED:
        matrix = confusion_matrix(labels, chosen, labels=range(len(names)))
        run.details["confusion_matrix"] = matrix.tolist()
        with optional("confusion_matrix.png", run.failed):
            confusion_picture(matrix, names, run.folder / "confusion_matrix.png", title=f"{split} data")
    best = torch.as_tensor(logits).float().softmax(dim=-1).max(dim=-1).values.tolist()
    key, texts = inputs
    for text, label, predicted, value in zip(texts, labels, chosen, best):
        yield {key: text, "reference": names[label], "prediction": names[predicted], "probability": round(value, 6)}


def scores_of_class(precision: Any, recall: Any, f1: Any, rows: Any) -> dict[str, float]:
    return {"precision": float(precision), "recall": float(recall), "f1": float(f1), "rows": int(rows)}


def accuracy_intervals(metrics: Mapping[str, float], rows: Mapping[str, int]) -> dict[str, str]:
    """Return the 95 % interval of a classifier's accuracy (Wilson 1927) by split, from scores and numbers of rows."""
    intervals = {}
    for split, prefix in PREFIXES.items():
        share, count = metrics.get(f"{prefix}_accuracy"), rows.get(split)
        if share is not None and count:
            low, high = binomtest(round(share * count), count).proportion_ci(method="wilson")
            intervals[split] = f"{low:.1%} to {high:.1%} (of {count:,})"
    return intervals


def class_rows(classes: Mapping[str, Mapping[str, float]]) -> list[tuple[str, ...]]:
    """Return name, precision, recall, F1 and rows of each class that has rows, the lowest F1 first."""
    scored = sorted((entry for entry in classes.items() if entry[1]["rows"]), key=lambda entry: entry[1]["f1"])
    return [
        (name, *(f"{scores[key]:.1%}" for key in ("precision", "recall", "f1")), f"{scores['rows']:,}")
        for name, scores in scored
    ]


def report_classes(run: Run) -> None:
    """Print the intervals of the accuracies, the classes with the lowest F1 and the most confident errors."""
    for split, words in accuracy_intervals(run.metrics, run.details.get("rows", {})).items():
        report(f"{split.capitalize()}, 95 % interval of the accuracy: {words}")
    split = "test" if "test_accuracy" in run.metrics else "validation"
    worst = [
        f"{name} {f1} (precision {precision}, recall {recall}, rows {rows})"
        for name, precision, recall, f1, rows in class_rows(run.details.get("classes", {}))[:WORST]
        if f1 != "100.0%"
    ]
    if worst:
        report(f"{split.capitalize()}, lowest F1 of a class: {', '.join(worst)}")
    path = run.folder / f"predictions_{split}.jsonl"
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.is_file() else []
    wrong: list[dict[str, Any]] = [row for row in map(json.loads, lines) if row["reference"] != row["prediction"]]
    if wrong:
        report(f"{split.capitalize()}, most confident of {len(wrong):,} errors (all predictions are in {path.name}):")
    for row in heapq.nlargest(ERRORS, wrong, key=lambda row: row["probability"]):
        shown = " ".join(row["text" if "text" in row else "image"].split())[:WIDTH]
        report(f"  {row['prediction']} {row['probability']:.1%}, labeled {row['reference']}: {shown}")


def accepted_in_words(calibration: Mapping[str, Any]) -> str:
    """Return how many validation rows remain, and how many of them are right, if uncertain labels are rejected."""
    return "; ".join(
        f"at least {threshold}: {kept['rows']:.1%} of the rows"
        + ("" if kept["accuracy"] is None else f", accuracy {kept['accuracy']:.1%}")
        for threshold, kept in calibration["accepted"].items()
    )
