"""What a classifier's scores leave open, for the terminal and the card: their intervals, each class, the errors."""

import heapq
import json
from collections.abc import Iterator, Mapping
from typing import Any

from scipy.stats import binomtest

from vanillaformer.console.reporting import report

from ..run_folder.run import Run
from .predictions import PREFIXES

ERRORS, WORST = 5, 3
"""Errors and classes that are shown in the terminal."""
WIDTH = 100
"""Characters of a text there."""


def accuracy_intervals(metrics: Mapping[str, float], rows: Mapping[str, int]) -> dict[str, str]:
    """Return the 95 % interval of a classifier's accuracy (Wilson 1927) by split, from scores and numbers of rows."""
    found = {}
    for split, prefix in PREFIXES.items():
        share, count = metrics.get(f"{prefix}_accuracy"), rows.get(split)
        if share is not None and count:
            low, high = binomtest(round(share * count), count).proportion_ci(method="wilson")
            found[split] = f"{low:.1%} to {high:.1%} (of {count:,})"
    return found


def class_rows(classes: Mapping[str, Mapping[str, float]]) -> list[tuple[str, ...]]:
    """Return name, precision, recall, F1 and rows of each class that has rows, the lowest F1 first."""
    scored = sorted((entry for entry in classes.items() if entry[1]["rows"]), key=lambda entry: entry[1]["f1"])
    return [
        (name, *(f"{scores[key]:.1%}" for key in ("precision", "recall", "f1")), f"{scores['rows']:,}")
        for name, scores in scored
    ]


def report_classes(run: Run) -> None:
    """Print the intervals of the accuracies, the classes with the lowest F1 and the surest errors."""
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
    for text in surest_errors(run, split):
        report(text)


def surest_errors(run: Run, split: str) -> Iterator[str]:
    """Yield lines on the errors with the highest probabilities among a classifier's predictions of a split."""
    path = run.folder / f"predictions_{split}.jsonl"
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.is_file() else []
    wrong: list[dict[str, Any]] = [row for row in map(json.loads, lines) if row["reference"] != row["prediction"]]
    if wrong:
        yield f"{split.capitalize()}, surest of {len(wrong):,} errors (all predictions are in {path.name}):"
    for row in heapq.nlargest(ERRORS, wrong, key=lambda row: row["probability"]):
        shown = " ".join(row["text" if "text" in row else "image"].split())[:WIDTH]
        yield f"  {row['prediction']} {row['probability']:.1%}, labeled {row['reference']}: {shown}"
