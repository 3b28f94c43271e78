"""Class labels, however they are written, as ids with names."""

import re
from collections.abc import Iterable
from typing import Any

import numpy as np
from datasets import ClassLabel, Dataset, DatasetDict

from .bad_rows import RowCheck
from .reporting import report


def label_names(dataset: DatasetDict) -> list[str]:
    """Return the names of the classes of classification data, by id."""
    feature = next(iter(dataset.values())).features.get("label")
    if not isinstance(feature, ClassLabel):
        raise ValueError(f"column 'label' holds {feature}, not a ClassLabel: load the data with load_data")
    return list(feature.names)


def encode_labels(dataset: DatasetDict, check: RowCheck | None = None) -> DatasetDict:
    """Turn the column `label` of every split into a `ClassLabel` with the classes of the training split.

    Labels may be a `ClassLabel` already, or strings, integers or booleans; blanks around strings are removed, and
    the names are sorted (as numbers, when all are). A test split of a Hub data set whose labels are withheld (all -1)
    is left out.

    Args:
        dataset: The splits.
        check: What to do about rows with a missing label, a kind of label not listed above, or a label that does not
            occur in the training split; by default the first is an error.

    Raises:
        ValueError: For such a row, unless they are skipped; or for fewer than two classes.
    """
    check = check or RowCheck()
    if "test" in dataset and all(label == -1 for label in _labels(dataset["test"])):
        report("The test split has no labels: it is left out.")
        dataset = DatasetDict({name: rows for name, rows in dataset.items() if name != "test"})
    known = {split: _without_unreadable(check, split, rows) for split, rows in dataset.items()}
    feature = dataset["train"].features["label"]
    names = feature.names if isinstance(feature, ClassLabel) else _sorted(set(_as_names(known["train"])))
    if len(names) < 2:
        found = f"one value only, {names[0]!r}" if names else "no label"
        raise ValueError(f"column 'label' has {found}: nothing to classify")
    return DatasetDict({split: _encode(check, split, rows, names) for split, rows in known.items()})


def _without_unreadable(check: RowCheck, split: str, rows: Dataset) -> Dataset:
    """Leave out rows whose label is none."""
    feature, labels = rows.features["label"], _labels(rows)
    if not isinstance(feature, ClassLabel):
        bad = [not (label.strip() if isinstance(label, str) else isinstance(label, int)) for label in labels]
        text = "{!r} is not a label (a name or an integer is)"
    else:
        bad = [label is None or not 0 <= label < feature.num_classes for label in labels]
        text = f"label {{!r}} is not one of the {feature.num_classes} classes"
    return check.drop(split, f"{split} data", rows, np.array(bad), lambda index: text.format(labels[index]))


def _as_names(rows: Dataset) -> list[str]:
    """Return each row's label as text without blanks around it."""
    feature = rows.features["label"]
    if isinstance(feature, ClassLabel):
        return [feature.names[label] for label in _labels(rows)]
    return [str(label).strip() for label in _labels(rows)]


def _labels(rows: Dataset) -> list[Any]:
    """Return the labels as they are written: all at once, which `datasets` does not do when asked for a list."""
    if type(rows.features["label"]).__name__ == "Json":  # of several types
        return list(rows["label"])
    return rows.with_format("arrow")["label"].to_pylist()


def _sorted(names: Iterable[str]) -> list[str]:
    def key(name: str) -> tuple[Any, ...]:
        return (0, int(name)) if re.fullmatch(r"-?\d{1,99}", name) else (1, name)

    found = sorted(names)
    return sorted(found, key=key) if all(key(name)[0] == 0 for name in found) else found


def _encode(check: RowCheck, split: str, rows: Dataset, names: list[str]) -> Dataset:
    """Replace names by ids, and leave out rows with a name that is not among them."""
    index, labels = {name: number for number, name in enumerate(names)}, _as_names(rows)
    blanks = [label for label in _labels(rows) if isinstance(label, str) and label != label.strip()]
    if blanks:
        report(
            f"{split} data: blanks around {len(blanks):,} of {len(rows):,} labels are removed, as in {blanks[0]!r}."
        )
    listed = ", ".join(names[:20])
    rows = check.drop(
        split,
        f"{split} data",
        rows,
        np.array([label not in index for label in labels]),
        lambda row: f"label {labels[row]!r} does not occur in the training data, which has {listed}",
    )
    if not len(rows):
        raise ValueError(f"{split} data: no row has one of the labels {listed}")
    encoded = [index[label] for label in labels if label in index]
    return rows.remove_columns("label").add_column("label", encoded, feature=ClassLabel(names=names))
