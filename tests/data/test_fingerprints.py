"""Data is known by its content."""

import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value, concatenate_datasets

from vanillaformer.data.caching import changed_splits, fingerprints

TEXTS = ["the old ship", "", "café \U0001f600", "ab", "c"]


def labeled(names=("neg", "pos"), texts=TEXTS, kind: str = "string") -> Dataset:
    features = Features({"text": Value(kind), "label": ClassLabel(names=list(names))})
    return Dataset.from_dict({"text": texts, "label": [0, 1, 0, 1, 1][: len(texts)]}, features=features)


def of(rows: Dataset) -> dict:
    return fingerprints(DatasetDict(train=rows))["train"]


def test_content_alone_matters() -> None:
    rows = labeled()
    same = [
        labeled(kind="large_string"),
        rows.select_columns(["label", "text"]),
        concatenate_datasets([rows.select(range(2)), rows.select(range(2, 5))]),
        rows.select([4, 3, 2, 1, 0]).select([4, 3, 2, 1, 0]),
    ]
    assert all(of(other) == of(rows) for other in same)
    assert of(rows)["rows"] == 5


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (labeled(names=("aaa", "zzz")), "label names ['neg', 'pos'] then, ['aaa', 'zzz'] now"),
        (labeled(texts=TEXTS[:4]), "rows 5 then, 4 now"),
        (labeled(texts=[*TEXTS[:3], "a", "bc"]), "5 rows of other content"),
        (labeled().select([1, 0, 2, 3, 4]), "5 rows of other content"),
    ],
)
def test_other_data(other: Dataset, difference: str) -> None:
    old = fingerprints(DatasetDict(train=labeled(), validation=labeled()))
    new = fingerprints(DatasetDict(train=other, validation=labeled(), test=labeled()))
    assert changed_splits(old, new) == {"train": difference, "test": "none then, 5 rows now"}


def test_rows_beyond_one_batch(monkeypatch) -> None:
    whole = of(labeled())
    monkeypatch.setattr("vanillaformer.data.caching.batch_size", lambda rows: 2)
    assert of(labeled()) == whole
