"""Class labels of any form as ids with names."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from datasets import ClassLabel, DatasetDict

from vanillaformer.hub.reporting import report

from .rows import SplitRows, distinct_cells


def label_names(dataset: DatasetDict) -> list[str]:
    """Return the names of the classes of classification data, by id."""
    feature = next(iter(dataset.values())).features.get("label")
    if not isinstance(feature, ClassLabel):
        raise ValueError(f"column 'label' holds {feature}, not a ClassLabel: load the data with load_data")
    return list(feature.names)


def encode_labels(splits: Mapping[str, SplitRows]) -> dict[str, SplitRows]:
    """Turn the column `label` of every split into a `ClassLabel` with the classes of the training split.

    Labels may be a `ClassLabel` already, or strings, integers or booleans; whitespace around strings is removed, and
    the names are sorted (as numbers, when all are). A test split of a Hub data set whose labels are withheld (all -1)
    is left out.

    Raises:
        ValueError: For a row with a missing label, a kind of label not listed above, or a label that does not occur
            in the training split, unless such rows are skipped; or for fewer than two classes.
    """
    if "test" in splits and _names(splits["test"])[2] == [-1]:
        report("The test split has no labels: it is left out.")
        splits = {split: rows for split, rows in splits.items() if split != "test"}
    train = with_labels(splits["train"], None)
    feature = train.rows.features["label"]
    names = feature.names if isinstance(feature, ClassLabel) else _sorted(filter(None, _names(train)[0]))
    if len(names) < 2:
        found = f"all labels have one value only, {names[0]!r}" if names else "there is no label"
        raise ValueError(f"{train.name}: {found}: nothing to classify")
    encoded = {split: with_labels(rows, names) for split, rows in {**splits, "train": train}.items()}
    for split, part in encoded.items():
        if not len(part.rows):
            raise ValueError(f"{split} data: no row has one of the labels {', '.join(names[:20])}")
    return encoded


def with_labels(split: SplitRows, names: Sequence[str] | None) -> SplitRows:
    """Return the rows whose label is one of the names, with its number; without names, those whose label can be one.

    Raises:
        ValueError: Naming the first other row, unless such rows are skipped.
    """
    found, number_of, labels = _names(split)

    def problem(row: int) -> str:
        name, label = found[number_of[row]], labels[number_of[row]]
        if name is not None:
            return f"label {name!r} does not occur in the training data, which has {', '.join((names or [])[:20])}"
        feature = split.rows.features["label"]
        if isinstance(feature, ClassLabel):
            return f"label {label!r} is not one of the {feature.num_classes} classes"
        return f"{label!r} is not a label (a name or an integer is)"

    index: dict[str | None, int] = {name: number for number, name in enumerate(found if names is None else names)}
    ids = np.array([-1 if name is None else index.get(name, -1) for name in found], dtype=np.int64)[number_of]
    split = split.without(ids < 0, problem)
    if names is None:
        return split
    spaced = np.array([isinstance(label, str) and label != label.strip() for label in labels], dtype=bool)
    if (padded := spaced[number_of[ids >= 0]]).any():
        first = labels[number_of[ids >= 0][padded.argmax()]]
        share = split.share(int(padded.sum()))
        split.report("padded", f"whitespace around the labels of {share} is removed, as in {first!r}.")
    rows, feature = split.rows.remove_columns("label"), ClassLabel(names=list(names))
    return split.with_rows(rows.add_column("label", ids[ids >= 0], feature=feature))


def _names(split: SplitRows) -> tuple[list[str | None], np.ndarray, list[Any]]:
    """Return the names of the distinct labels, None where one is missing, the number of each row's, and the labels."""
    labels, number_of = distinct_cells(split.rows, "label")
    feature = split.rows.features["label"]
    if isinstance(feature, ClassLabel):
        known = range(feature.num_classes)
        return [feature.names[label] if label in known else None for label in labels], number_of, labels
    texts = [str(label).strip() if isinstance(label, str | int) else None for label in labels]
    return [text or None for text in texts], number_of, labels


def _sorted(names: Iterable[str]) -> list[str]:
    def key(name: str) -> tuple[Any, ...]:
        return (0, int(name)) if re.fullmatch(r"-?\d{1,99}", name) else (1, name)

    found = sorted(set(names))
    return sorted(found, key=key) if all(key(name)[0] == 0 for name in found) else found
