"""Class labels, however they are written, as ids with names."""

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
    if "test" in splits and distinct_cells(splits["test"].rows, "label")[0] == [-1]:
        report("The test split has no labels: it is left out.")
        splits = {split: rows for split, rows in splits.items() if split != "test"}
    readable = {split: readable_labels(rows) for split, rows in splits.items()}
    feature = readable["train"].rows.features["label"]
    names = feature.names if isinstance(feature, ClassLabel) else _sorted(set(_names_and_rows(readable["train"])[0]))
    if len(names) < 2:
        found = f"one value only, {names[0]!r}" if names else "no label"
        raise ValueError(f"column 'label' has {found}: nothing to classify")
    encoded = {split: encode(rows, names) for split, rows in readable.items()}
    for split, part in encoded.items():
        if not len(part.rows):
            raise ValueError(f"{split} data: no row has one of the labels {_listed(names)}")
    return encoded


def readable_labels(split: SplitRows) -> SplitRows:
    """Return the rows whose label can be one."""
    feature = split.rows.features["label"]
    labels, number_of = distinct_cells(split.rows, "label")
    if isinstance(feature, ClassLabel):
        bad = [label is None or not 0 <= label < feature.num_classes for label in labels]
        text = f"label {{!r}} is not one of the {feature.num_classes} classes"
    else:
        bad = [not (label.strip() if isinstance(label, str) else isinstance(label, int)) for label in labels]
        text = "{!r} is not a label (a name or an integer is)"
    split = split.without(np.array(bad, dtype=bool)[number_of], lambda index: text.format(labels[number_of[index]]))
    padded = np.array([isinstance(label, str) and "" != label.strip() != label for label in labels], dtype=bool)[
        number_of
    ]
    if padded.any():
        count, first = int(padded.sum()), labels[number_of[padded.argmax()]]
        split.report("padded", f"whitespace around the labels of {split.share(count)} is removed, as in {first!r}.")
    return split


def encode(split: SplitRows, names: Sequence[str]) -> SplitRows:
    """Return rows with ids in place of names, without those whose name is not among the names."""
    found, number_of = _names_and_rows(split)
    index = {name: number for number, name in enumerate(names)}
    ids = np.array([index.get(name, -1) for name in found], dtype=np.int64)[number_of]
    split = split.without(
        ids < 0,
        lambda row: f"label {found[number_of[row]]!r} does not occur in the training data, which has {_listed(names)}",
    )
    rows = split.rows.remove_columns("label")
    return split.with_rows(rows.add_column("label", ids[ids >= 0], feature=ClassLabel(names=list(names))))


def _names_and_rows(split: SplitRows) -> tuple[list[str], np.ndarray]:
    """Return the distinct labels as text without whitespace around it, and the number of each row's label."""
    labels, number_of = distinct_cells(split.rows, "label")
    feature = split.rows.features["label"]
    names = feature.names if isinstance(feature, ClassLabel) else None
    return [str(label).strip() if names is None else names[label] for label in labels], number_of


def _sorted(names: Iterable[str]) -> list[str]:
    def key(name: str) -> tuple[Any, ...]:
        return (0, int(name)) if re.fullmatch(r"-?\d{1,99}", name) else (1, name)

    found = sorted(names)
    return sorted(found, key=key) if all(key(name)[0] == 0 for name in found) else found


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:20])
