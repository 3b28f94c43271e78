"""Class labels, however they are written, as ids with names."""

import re
from collections.abc import Iterable
from typing import Any

import numpy as np
from datasets import ClassLabel, Dataset, DatasetDict

from vanillaformer.hub.reporting import report

from .bad_rows import RowCheck, distinct_cells


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
    if "test" in dataset and distinct_cells(dataset["test"], "label")[0] == [-1]:
        report("The test split has no labels: it is left out.")
        dataset = DatasetDict({name: rows for name, rows in dataset.items() if name != "test"})
    known = {split: _without_unreadable(check, split, rows) for split, rows in dataset.items()}
    feature = dataset["train"].features["label"]
    names = feature.names if isinstance(feature, ClassLabel) else _sorted(set(_names_and_rows(known["train"])[0]))
    if len(names) < 2:
        found = f"one value only, {names[0]!r}" if names else "no label"
        raise ValueError(f"column 'label' has {found}: nothing to classify")
    return DatasetDict({split: _encode(check, split, rows, names) for split, rows in known.items()})


def _without_unreadable(check: RowCheck, split: str, rows: Dataset) -> Dataset:
    """Leave out rows whose label is none."""
    feature = rows.features["label"]
    labels, number_of = distinct_cells(rows, "label")
    if not isinstance(feature, ClassLabel):
        bad = [not (label.strip() if isinstance(label, str) else isinstance(label, int)) for label in labels]
        text = "{!r} is not a label (a name or an integer is)"
    else:
        bad = [label is None or not 0 <= label < feature.num_classes for label in labels]
        text = f"label {{!r}} is not one of the {feature.num_classes} classes"
    bad_rows = np.array(bad, dtype=bool)[number_of]
    return check.drop(split, f"{split} data", rows, bad_rows, lambda index: text.format(labels[number_of[index]]))


def _names_and_rows(rows: Dataset) -> tuple[list[str], np.ndarray]:
    """Return the distinct labels as text without blanks around it, and the number of each row's label."""
    labels, number_of = distinct_cells(rows, "label")
    feature = rows.features["label"]
    if isinstance(feature, ClassLabel):
        return [feature.names[label] for label in labels], number_of
    return [str(label).strip() for label in labels], number_of


def _sorted(names: Iterable[str]) -> list[str]:
    def key(name: str) -> tuple[Any, ...]:
        return (0, int(name)) if re.fullmatch(r"-?\d{1,99}", name) else (1, name)

    found = sorted(names)
    return sorted(found, key=key) if all(key(name)[0] == 0 for name in found) else found


def _encode(check: RowCheck, split: str, rows: Dataset, names: list[str]) -> Dataset:
    """Replace names by ids, and leave out rows with a name that is not among them."""
    index, (found, number_of) = {name: number for number, name in enumerate(names)}, _names_and_rows(rows)
    _report_blanks(split, rows)
    listed = ", ".join(names[:20])
    ids = np.array([index.get(name, -1) for name in found], dtype=np.int64)[number_of]
    rows = check.drop(
        split,
        f"{split} data",
        rows,
        ids < 0,
        lambda row: f"label {found[number_of[row]]!r} does not occur in the training data, which has {listed}",
    )
    if not len(rows):
        raise ValueError(f"{split} data: no row has one of the labels {listed}")
    return rows.remove_columns("label").add_column("label", ids[ids >= 0], feature=ClassLabel(names=names))


def _report_blanks(split: str, rows: Dataset) -> None:
    labels, number_of = distinct_cells(rows, "label")
    padded = np.array([isinstance(label, str) and label != label.strip() for label in labels], dtype=bool)[number_of]
    if padded.any():
        first = labels[number_of[padded.argmax()]]
        report(f"{split} data: blanks around {padded.sum():,} of {len(rows):,} labels are removed, as in {first!r}.")
