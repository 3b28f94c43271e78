"""Class labels of any form as ids with names."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from datasets import ClassLabel, DatasetDict

from vanillaformer.console.reporting import report

from .arrow_files import distinct_cells
from .rows import SplitRows

LISTED = 12
"""Classes that are named in a list."""
WIDTH = 40
"""Characters of a name there."""
NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", re.IGNORECASE)


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
    for problem in doubtful_names(names, len(train.rows)):
        report(f"Warning: {train.name}: {problem}.")
    encoded = {split: with_labels(rows, names) for split, rows in {**splits, "train": train}.items()}
    for split, part in encoded.items():
        if not len(part.rows):
            raise ValueError(f"{split} data: no row has one of the labels {', '.join(names[:20])}")
    return encoded


def classes_in_words(names: Sequence[str], counts: np.ndarray) -> str:
    """Return how many classes have rows and how many rows each has; of many classes the most and the fewest."""
    number, order = int(np.count_nonzero(counts)), np.argsort(-counts, kind="stable")
    chosen: Any = np.flatnonzero(counts) if number <= LISTED else order[[0, number - 1]]
    words = [f"{short_name(names[each])} {counts[each]:,}" for each in chosen]
    return f"{number:,} {'class' if number == 1 else 'classes'}: {(', ' if number <= LISTED else ' to ').join(words)}"


def short_name(name: str) -> str:
    """Return the name of a class on one line, of a long one the beginning."""
    words = " ".join(name.split())
    return words if len(words) <= WIDTH else f"{words[: WIDTH - 4].rstrip()} ..."


def doubtful_names(names: Sequence[str], rows: int) -> Iterator[str]:
    """Say why the labels of so many rows, with these names, may not be what the user takes them for."""
    numbers = [float(name) if NUMBER.fullmatch(name) else None for name in names]
    alike: dict[Any, list[str]] = defaultdict(list)
    for name, number in zip(names, numbers):
        alike[" ".join(name.casefold().split()) if number is None else number].append(name)
    if pairs := [" and ".join(map(repr, group)) for group in alike.values() if len(group) > 1]:
        what = "differ only in letter case, white space or the way a number is written"
        yield f"labels that {what} are classes of their own: {_examples(pairs)}"
    if all(number is not None for number in numbers) and any(number % 1 for number in numbers if number):
        yield f"the labels are numbers ({_examples(names)}), each a class of its own: regression is not offered"
    elif 3 * len(names) > rows:
        yield f"{len(names):,} classes in {rows:,} rows: --label_column may name the wrong column"
    parts = {name: set(filter(None, re.split(r"\s*[|;,]\s*", name))) for name in names}
    known = Counter(part for found in parts.values() for part in found)
    joined = [repr(name) for name, found in parts.items() if len(found) > 1 and any(known[part] > 1 for part in found)]
    joined += [repr(name) for name in names if re.fullmatch(r"\[.*\]|\(.*,.*\)|\{.*\}", name)]
    if joined:
        yield f"labels like {_examples(joined)} look like several in one: each is a class of its own"


def _examples(found: Sequence[str]) -> str:
    return ", ".join(found[:3]) + (", ..." if len(found) > 3 else "")


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
