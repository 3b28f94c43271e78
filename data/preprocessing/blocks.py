"""Blocks of token ids cut from the stream of all texts, with no more in memory than a part of it."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa
from datasets import Dataset, DatasetDict, Features, List, Value
from numpy.lib.stride_tricks import sliding_window_view
from transformers import PreTrainedTokenizerBase

from vanillaformer.tokenization.control_tokens import text_tokenizer

from ..arrow_files import arrow_file, batch_size
from .tokenizing import Batch, TokenizedSplits, frame, map_splits, token_ids

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
        held, covered, count = np.zeros(0, np.int32), 0, 0  # tokens held, and how many of them were in a block
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


def block_rows(
    dataset: DatasetDict,
    tokenizer: PreTrainedTokenizerBase,
    *,
    block_size: int,
    block_stride: int | None = None,
    masked: bool = False,
    num_proc: int | None = None,
) -> TokenizedSplits:
    """Join the texts to one stream, `<s> text </s>` each, and cut it to `input_ids` of `block_size` tokens.

    For a masked language model each text is ended by [SEP], and a block is `[CLS] ... [SEP]`. No token is lost: the
    end of the stream is a shorter block, which the collators pad.
    """
    join, blocks = block_cutter(tokenizer, block_size, block_stride, masked=masked)
    tokenized = map_splits(dataset, join, num_proc, features={"input_ids": IDS})
    apart = replace(blocks, stride=blocks.size)  # a score is on every token once: only training blocks overlap
    return TokenizedSplits(
        {split: cut_blocks(rows, blocks if split == "train" else apart) for split, rows in tokenized.items()}
    )


def block_cutter(
    tokenizer: PreTrainedTokenizerBase, block_size: int, block_stride: int | None = None, *, masked: bool
) -> tuple[Callable[[Batch], Batch], Blocks]:
    """Return the function from batches of texts to pieces of the stream of tokens, and what cuts blocks from these.

    The arguments are those of `block_rows`.
    """
    if block_size < 2 + masked:
        needed = "a token between [CLS] and [SEP]" if masked else "two tokens, one to see and one to predict"
        raise ValueError(f"block_size={block_size}: a block needs {needed}")
    start, end = frame(tokenizer, masked=masked)
    join = partial(_joined_batch, tokenizer=text_tokenizer(tokenizer), start=[] if masked else start, end=end)
    if not masked:
        return join, Blocks(block_size, check_stride(block_stride, block_size))
    size = block_size - 2
    return join, Blocks(size, check_stride(block_stride, size), smallest=1, start=(*start,), end=(*end,))


def check_stride(stride: int | None, size: int) -> int:
    """Return how far the starts of two blocks of `size` tokens are apart.

    Raises:
        ValueError: Tokens would be left out, or no block would follow.
    """
    if stride is not None and not 1 <= stride <= size:
        raise ValueError(f"block_stride={stride}: from 1 to the {size} tokens of a block")
    return size if stride is None else stride


def _joined_batch(batch: Batch, *, tokenizer: PreTrainedTokenizerBase, start: list[int], end: list[int]) -> Batch:
    return {"input_ids": [[*start, *ids, *end] for ids in token_ids(tokenizer, batch["text"])]}


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
