"""Where a classifier errs: the scores of each class, and which classes are taken for which."""

from typing import Any

import numpy as np
from sklearn.metrics import precision_recall_fscore_support

NUMBERED = 40
"""Classes of a picture with numbers in it, and of one that shows a part of the classes."""
PICTURED = 150
"""Classes whose whole matrix is drawn and kept in the record; of more, a part is drawn and no matrix is kept."""


def class_scores(labels: Any, chosen: Any, names: list[str]) -> dict[str, dict[str, float]]:
    """Return precision, recall, F1 and number of rows of each class."""
    scores = precision_recall_fscore_support(labels, chosen, labels=range(len(names)), zero_division=0)
    keys = ("precision", "recall", "f1", "rows")
    return {
        name: {key: (int if key == "rows" else float)(values[number]) for key, values in zip(keys, scores)}
        for number, name in enumerate(names)
    }


def pictured_classes(labels: np.ndarray, chosen: np.ndarray, count: int) -> np.ndarray:
    """Return the classes that a picture shows: all, or of more than `PICTURED` those that are most often confused."""
    if count <= PICTURED:
        return np.arange(count)
    wrong = labels != chosen
    errors = sum(np.bincount(side[wrong], minlength=count) for side in (labels, chosen))
    return np.sort(np.argsort(-errors, kind="stable")[:NUMBERED])


def confusion_counts(labels: np.ndarray, chosen: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Return how many rows of each of some classes (C) were taken for each of them: (C, C).

    Scikit-learn's function makes a matrix of all classes first, and with thousands of classes it fills the memory.
    """
    positions = {number: index for index, number in enumerate(classes.tolist())}
    matrix = np.zeros((len(classes), len(classes)), dtype=np.int64)
    for label, predicted in zip(labels.tolist(), chosen.tolist()):
        if label in positions and predicted in positions:
            matrix[positions[label], positions[predicted]] += 1
    return matrix


def part_in_words(count: int) -> str:
    """Say which of `count` classes the picture shows; nothing if it shows all."""
    return "" if count <= PICTURED else f"the {NUMBERED} of {count:,} classes with the most errors"
