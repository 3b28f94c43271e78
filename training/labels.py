"""Class labels, however they are written, as ids with names."""

from collections.abc import Iterable
from typing import Any

from datasets import ClassLabel, Dataset, DatasetDict

from .reporting import report


def label_names(dataset: DatasetDict) -> list[str]:
    """Return the names of the classes of classification data, by id."""
    feature = next(iter(dataset.values())).features.get("label")
    if not isinstance(feature, ClassLabel):
        raise ValueError(f"column 'label' holds {feature}, not a ClassLabel: load the data with load_data")
    return list(feature.names)


def encode_labels(dataset: DatasetDict) -> DatasetDict:
    """Turn the column `label` of every split into a `ClassLabel` with the classes of the training split.

    Labels may be a `ClassLabel` already, or strings, integers or booleans; their names are sorted (as numbers, when
    all are). A test split of a Hub data set whose labels are withheld (all -1) is left out.

    Raises:
        ValueError: For a missing label, a kind of label not listed above, fewer than two classes, a label that does
            not occur in the training split.
    """
    if "test" in dataset and set(dataset["test"]["label"]) == {-1}:
        report("The test split has no labels: it is left out.")
        dataset = DatasetDict({name: rows for name, rows in dataset.items() if name != "test"})
    named = {split: _as_names(split, rows) for split, rows in dataset.items()}
    feature = dataset["train"].features["label"]
    names = feature.names if isinstance(feature, ClassLabel) else _sorted(set(named["train"]))
    if len(names) < 2:
        raise ValueError(f"column 'label' has one value only, {names[0]!r}: nothing to classify")
    return DatasetDict({split: _replace(split, dataset[split], labels, names) for split, labels in named.items()})


def _as_names(split: str, rows: Dataset) -> list[str]:
    """Return each row's label as text."""
    feature, labels = rows.features["label"], list(rows["label"])
    for number, label in enumerate(labels, start=1):
        if label is None or label == "" or not isinstance(label, (str, int)):
            raise ValueError(f"{split} data, row {number}: {label!r} is not a label (a name or an integer is)")
    if not isinstance(feature, ClassLabel):
        return [str(label) for label in labels]
    outside = next((n for n, label in enumerate(labels, start=1) if not 0 <= label < feature.num_classes), None)
    if outside is not None:
        raise ValueError(
            f"{split} data, row {outside}: label {labels[outside - 1]} is not one of the {feature.num_classes} classes"
        )
    return [feature.names[label] for label in labels]


def _sorted(names: Iterable[str]) -> list[str]:
    def key(name: str) -> tuple[Any, ...]:
        return (0, int(name)) if name.lstrip("-").isdecimal() else (1, name)

    found = sorted(names)
    return sorted(found, key=key) if all(key(name)[0] == 0 for name in found) else found


def _replace(split: str, rows: Dataset, labels: list[str], names: list[str]) -> Dataset:
    index = {name: number for number, name in enumerate(names)}
    for number, label in enumerate(labels, start=1):
        if label not in index:
            raise ValueError(
                f"{split} data, row {number}: label {label!r} does not occur in the training data, "
                f"which has {', '.join(names[:20])}"
            )
    encoded = [index[label] for label in labels]
    return rows.remove_columns("label").add_column("label", encoded, feature=ClassLabel(names=names))
