"""Rows that lie in files of their own are those that `datasets` would select."""

import datasets
import numpy as np
import pyarrow as pa
import pytest
from datasets import ClassLabel, Dataset, Features, Value

from vanillaformer.data.caching import arrow_file, select_rows
from vanillaformer.data.splits import text_numbers

FEATURES = Features({"text": Value("string"), "label": ClassLabel(names=["a", "b", "c"])})


def rows_of(count, parts=7, name="rows"):
    rng = np.random.default_rng(count)
    texts = [f"text {number}" for number in rng.integers(count, size=count)]
    table = pa.table({"text": texts, "label": rng.integers(3, size=count)}, schema=FEATURES.arrow_schema)
    return arrow_file(name, table.schema, lambda: table.to_batches(max(1, count // parts)))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("caching", [True, False])
def test_selected_rows(seed, caching):
    rows, rng = rows_of(100, name=f"rows-{seed}"), np.random.default_rng(seed)
    numbers = np.flatnonzero(rng.random(100) < rng.random())
    if not caching:
        datasets.disable_caching()
    try:
        chosen = select_rows(rows, numbers)
    finally:
        datasets.enable_caching()
    assert list(chosen) == list(rows.select(numbers))
    assert chosen.features == rows.features
    assert chosen._indices is None
    assert list(select_rows(rows, numbers[::-1])) == list(chosen)[::-1]


def test_a_selection_is_written_once_and_another_is_another():
    rows = rows_of(50)
    first, again, other = (select_rows(rows, np.array(numbers)) for numbers in ([1, 5], [1, 5], [1, 6]))
    assert first.cache_files == again.cache_files != other.cache_files
    assert list(other) == [rows[1], rows[6]]


def test_an_interrupted_file_is_written_anew():
    def broken():
        yield pa.record_batch({"n": [1]})
        raise KeyboardInterrupt

    schema = pa.schema({"n": pa.int64()})
    with pytest.raises(KeyboardInterrupt):
        arrow_file("broken", schema, broken)
    assert arrow_file("broken", schema, lambda: [pa.record_batch({"n": [2]})])["n"][:] == [2]


@pytest.mark.parametrize("count", [1, 2, 50, 1_000])
def test_numbers_of_texts_are_in_the_order_of_their_first_rows(count):
    rows = rows_of(count, name=f"numbered-{count}")
    texts = rows["text"][:]
    distinct = list(dict.fromkeys(texts))
    assert text_numbers(rows, "text", exact=True).tolist() == [distinct.index(text) for text in texts]
    again = Dataset.from_dict({"text": texts})
    assert text_numbers(again, "text", exact=True).tolist() == text_numbers(rows, "text", exact=True).tolist()
