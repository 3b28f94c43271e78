"""Rows as Arrow files among those that `datasets` keeps, mapped into memory: they take none of the process's own."""

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
from datasets import Dataset
from datasets.fingerprint import get_temporary_cache_files_directory

FOLDER = "vanillaformer"
SAMPLE, SAMPLE_BYTES = 20_000, 10_000_000
"""Most texts in a sample, and about the most bytes."""
BATCH_BYTES = 2**20
"""Text that is worked on together: what a tokenizer makes of it takes 70 times as much memory."""


def arrow_file(name: str, schema: pa.Schema, tables: Callable[[], Iterable[pa.Table | pa.RecordBatch]]) -> Dataset:
    """Return the rows of a file of the cache, which is written first if it is not there.

    Args:
        name: Name of the file, which says all that its content depends on. Without caching it is a temporary one.
        schema: Its columns.
        tables: Gives the rows in parts that fit into memory.
    """
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


class TextColumn:
    """The texts of a column, to be iterated any number of times; in memory is one batch of them.

    `datasets` gives the cells of a column one by one, which takes as long as training a tokenizer on them.

    Args:
        rows: The rows.
        column: The column.
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
