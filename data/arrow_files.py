"""Rows as Arrow files among those that `datasets` keeps, mapped into memory."""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
from datasets import Dataset
from datasets.fingerprint import generate_random_fingerprint, get_temporary_cache_files_directory

FOLDER = "vanillaformer"
SAMPLE, SAMPLE_BYTES = 20_000, 10_000_000
"""Most texts in a sample, and about the most bytes."""
BATCH_BYTES = 2**20
"""Text that is worked on together: what a tokenizer makes of it takes 70 times as much memory."""


def arrow_file(name: str, schema: pa.Schema, tables: Callable[[], Iterable[pa.Table | pa.RecordBatch]]) -> Dataset:
    """Return the rows of a file of the cache, which is written first if it is not there."""
    folder = Path(datasets.config.HF_DATASETS_CACHE) / FOLDER if datasets.is_caching_enabled() else None
    folder = folder or Path(get_temporary_cache_files_directory())
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.arrow"
    if not path.is_file():
        unfinished = path.with_suffix(f".{os.getpid()}")
        try:
            with pa.ipc.new_stream(str(unfinished), schema) as file:
                for part in tables():
                    file.write(part)
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
    return Dataset.from_file(str(path))


def batch_size(rows: Dataset) -> int:
    """Return how many rows to read at once: 1,000, or as many long ones as have about `BATCH_BYTES`."""
    return max(1, min(1_000, BATCH_BYTES * rows.data.num_rows // max(1, rows.data.nbytes)))


def select_rows(rows: Dataset, numbers: np.ndarray) -> Dataset:
    """Return the rows of the given numbers in a separate file, where they are in order and lie in files.

    `Dataset.select` would hold the numbers in memory, and copy row by row whenever rows are read.
    """
    if not len(numbers):  # `Dataset.select` leaves some tables without columns, or with all their rows
        return Dataset(rows.features.arrow_schema.empty_table(), fingerprint=generate_random_fingerprint())
    ordered = bool((numbers[1:] > numbers[:-1]).all())
    if not ordered or not rows.cache_files or rows._indices is not None:
        return rows.select(numbers)
    if len(numbers) == 1 + numbers[-1] - numbers[0]:
        return rows.select(range(numbers[0], numbers[-1] + 1))

    def parts() -> Iterable[pa.RecordBatch]:
        start = 0
        for batch in rows.data.table.to_batches():
            here = numbers[slice(*np.searchsorted(numbers, [start, start + len(batch)]))]
            if len(here):
                yield batch.take(pa.array(here - start))
            start += len(batch)

    key = hashlib.blake2b(numbers.astype(np.int64).tobytes(), key=rows._fingerprint.encode(), digest_size=16)
    return arrow_file(f"rows-{key.hexdigest()}", rows.features.arrow_schema, parts)


def arrow_column(rows: Dataset, column: str) -> pa.ChunkedArray:
    """Return a column of chosen rows: at once, where `datasets` makes a table of each row first."""
    cells = rows.data.column(column)
    return cells if rows._indices is None else cells.take(rows._indices.column(0))


def distinct_cells(rows: Dataset, column: str) -> tuple[list[Any], np.ndarray]:
    """Return the distinct cells of a column in the order of their first rows, and the number of each row's cell."""
    cells = arrow_column(rows, column)
    if pa.types.is_string(cells.type):
        cells = cells.cast(pa.large_string())  # distinct texts may have more than 2 GiB
    chunks = cells.dictionary_encode(null_encoding="encode").chunks  # which share a dictionary
    numbers = [np.array([], dtype=np.int32), *(chunk.indices.to_numpy() for chunk in chunks)]
    return (chunks[0].dictionary.to_pylist() if chunks else []), np.concatenate(numbers)


class TextColumn:
    """The texts of a column, to be iterated any number of times; in memory is one batch of them.

    `datasets` gives the cells of a column one by one, which takes as long as training a tokenizer on them.
    """

    def __init__(self, rows: Dataset, column: str):
        self.rows, self.column = rows.select_columns([column]).with_format("arrow"), column

    def __len__(self) -> int:
        return len(self.rows)

    def sample(self) -> list[str]:
        """Return texts from all over the column, whose order may be by length: all of them if they are few."""
        share = min(1.0, SAMPLE_BYTES * self.rows.data.num_rows / max(1, self.rows.data.nbytes) / max(1, len(self)))
        count = min(SAMPLE, max(1, int(share * len(self))))
        numbers = np.linspace(0, len(self) - 1, min(count, len(self))).round().astype(int)
        return self.rows.select(numbers).with_format("arrow")[self.column].to_pylist()

    def __iter__(self) -> Iterator[str]:
        for table in self.rows.iter(batch_size(self.rows)):
            yield from table[self.column].to_pylist()
