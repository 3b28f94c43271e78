"""Blocks of token ids cut from the stream of all texts, with no more in memory than a part of it."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from datasets import Dataset, Features, List, Value
from numpy.lib.stride_tricks import sliding_window_view

from ..arrow_files import arrow_file, batch_size

IDS = List(Value("int32"))
"""Token ids, in half the memory and disk that `datasets` would take for them."""


@dataclass(frozen=True)
class Blocks:
    """Cuts the stream of all tokens to blocks.

    Attributes:
        size: Tokens of the stream in a block.
        stride: Tokens from the start of one block to that of the next.
        smallest: Tokens that the last of several blocks needs.
        start: Tokens before each block.
        end: Tokens after each block.
    """

    size: int
    stride: int
    smallest: int = 2
    start: tuple[int, ...] = ()
    end: tuple[int, ...] = ()

    def cut(self, pieces: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        """Yield the blocks (number, length) of a stream that comes in pieces; only the last may be shorter."""
        held, covered, count = np.zeros(0, np.int32), 0, 0  # tokens held, of which so many have been in a block
        for piece in pieces:
            held = np.concatenate([held, piece])
            if len(held) >= self.size:
                blocks = sliding_window_view(held, self.size)[:: self.stride]
                yield self._framed(blocks)
                count += len(blocks)
                held, covered = held[len(blocks) * self.stride :], self.size - self.stride
        if len(held) > covered and (len(held) >= self.smallest or not count):
            yield self._framed(held[None])

    def _framed(self, blocks: np.ndarray) -> np.ndarray:
        frame = (np.tile(np.array(ids, blocks.dtype), (len(blocks), 1)) for ids in (self.start, self.end))
        start, end = frame
        return np.concatenate([start, blocks, end], axis=1)


def cut_blocks(rows: Dataset, blocks: Blocks) -> Dataset:
    """Return the blocks of the concatenation of all `input_ids`, in a file that is mapped into memory."""
    schema = Features({"input_ids": IDS}).arrow_schema
    key = hashlib.blake2b(f"{rows._fingerprint} {blocks}".encode(), digest_size=16).hexdigest()
    return arrow_file(f"blocks-{key}", schema, lambda: _batches(rows, blocks, schema))


def _batches(rows: Dataset, blocks: Blocks, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for found in blocks.cut(chunk.to_numpy() for chunk in value_chunks(rows, "input_ids")):
        bounds = np.arange(len(found) + 1, dtype=np.int32) * found.shape[1]
        yield pa.record_batch([pa.ListArray.from_arrays(bounds, found.ravel())], schema=schema)


def value_chunks(rows: Dataset, column: str) -> Iterator[pa.Array]:
    """Yield the values of a column of lists, as they lie in its file, part after part."""
    if rows._indices is None:
        yield from (chunk.flatten() for chunk in rows.data.column(column).chunks)
        return
    for table in rows.select_columns([column]).with_format("arrow").iter(batch_size(rows)):
        yield from (chunk.flatten() for chunk in table.column(column).chunks)


def flat_values(rows: Dataset, column: str) -> pa.Array:
    """Return the values of a column of lists, one list after the other."""
    return pa.concat_arrays(list(value_chunks(rows, column)))
