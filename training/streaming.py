"""Training data that is read while training: never whole in memory, nor on disk where it comes from the Hub.

Every process reads all of the stream and takes its part of each batch, so that the batches are the same on any number
of processes. A stream begins anew, in another order, when it has ended; a run that goes on reads past what it has
seen.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any

from datasets import ClassLabel
from datasets import IterableDataset as Stream
from torch.utils.data import IterableDataset, get_worker_info
from transformers import PreTrainedTokenizerBase

from .bad_rows import FILE
from .json_files import cell_of
from .opening import LINES, PROBLEM, ROW
from .preprocessing import Batch, LongTexts, check_stride, encode_causal, encode_masked
from .reporting import report

CHUNK = 1_000
"""Texts that are tokenised together."""


@dataclass
class TextStream:
    """The rows of a split in the task's columns, one after the other, as often as asked for.

    Attributes:
        where: What it is from, in words.
        source: The stream.
        columns: The column of the stream for each of the task.
        skip_bad: Leave out rows that cannot be used; otherwise the first is an error.
        drop_blank: Texts of white space alone are no mistake.
        buffer: Rows among which the next one is drawn; 0 keeps the order.
        seed: Decides all orders.
        names: The classes, once they are known.
        left_out: Texts whose rows are left out, because they are held out.
        reported: Kinds of messages that have been printed.
    """

    where: str
    source: Stream
    columns: dict[str, str]
    skip_bad: bool = False
    drop_blank: bool = False
    buffer: int = 0
    seed: int = 0
    names: list[str] | None = None
    left_out: frozenset[str] = field(default_factory=frozenset)
    reported: set[str] = field(default_factory=set)

    def rows(self, epoch: int = 0) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the rows of an epoch, with what to call each in messages; the first that is left out is reported.

        Raises:
            ValueError: Naming the row, when it cannot be used.
        """
        return ((name, cells) for _, name, cells in self.numbered_rows(epoch))

    def numbered_rows(self, epoch: int = 0) -> Iterator[tuple[int, str, dict[str, Any]]]:
        """Yield the same with the number of rows of the stream that have been read."""
        source, bad = self.source, 0
        if self.buffer:
            source = source.shuffle(seed=self.seed, buffer_size=self.buffer)
            source.set_epoch(epoch)
        for number, row in enumerate(source, start=1):
            cells = {column: cell_of(row, name) for column, name in self.columns.items()}
            problem, name = row.get(PROBLEM) or self._problem(cells), self._row_name(row, number)
            if row.get(LINES, 1) > 1:
                lines = f"{name} has cells with line breaks ({row[LINES]:,} lines)"
                self._report_first("lines", f"{lines}: is its quotation mark closed in the right place?")
            if problem:
                if not self.skip_bad:
                    raise ValueError(f"{self.where}, {name}: {problem}; --bad_rows skip leaves such rows out")
                bad += 1
                self._report_first("bad", f"{name} is bad and left out, as are others like it: {problem}.")
            elif not self._unwanted(cells):
                yield number, name, cells
        if bad:
            self._report_first("count", f"{bad:,} of {number:,} rows are bad and left out.")

    def _report_first(self, kind: str, message: str) -> None:
        """Report something that is true of every epoch once."""
        if kind not in self.reported:
            self.reported.add(kind)
            report(f"{self.where}: {message}")

    def _row_name(self, row: Mapping[str, Any], number: int) -> str:
        """Return what to call a row: by its number in its file, or in the order of reading where there is none."""
        if ROW not in row:
            return f"row {number} as read"
        return f"row {row[ROW]}" + (f" of {row[FILE]}" if FILE in row else "")

    def _problem(self, cells: dict[str, Any]) -> str | None:
        for column, cell in cells.items():
            if column == "label":
                known = self.names is None or self._name(cell) in self.names
                if not (cell.strip() if isinstance(cell, str) else isinstance(cell, int)):
                    return f"{cell!r} is not a label (a name or an integer is)"
                if not known:
                    return f"label {cell!r} is not one of the {len(self.names or ())} known"
            elif not isinstance(cell, str):
                return f"the {column} is {'empty' if cell is None else 'not text'}"
            elif not cell.strip() and not self.drop_blank:
                return f"the {column} is empty"
        return None

    def _name(self, label: Any) -> str | None:
        """Return the name of a label; ids of a stream that knows its classes have one."""
        feature = (self.source.features or {}).get(self.columns["label"])
        if isinstance(feature, ClassLabel):
            return feature.names[label] if isinstance(label, int) and 0 <= label < feature.num_classes else None
        return str(label).strip()

    def label_id(self, label: Any) -> int:
        """Return the id of a label of the classes."""
        return (self.names or []).index(self._name(label) or "")

    def _unwanted(self, cells: dict[str, Any]) -> bool:
        text = next(iter(cells.values()))
        return text in self.left_out or not text.strip()


class StreamedRows(IterableDataset):
    """Tokenised rows without an end: the epochs of a stream one behind the other.

    Args:
        texts: The stream.
        encode: From a batch of texts to rows, or to pieces of the stream that `blocks` cuts.
        blocks: How to cut blocks, if rows are blocks.
        long_texts: What to do about rows whose texts had to be cut.
    """

    def __init__(
        self,
        texts: TextStream,
        encode: Callable[[Batch], Batch],
        blocks: "Blocks | None" = None,
        long_texts: LongTexts = "cut",
    ):
        self.texts, self.encode, self.blocks, self.long_texts = texts, encode, blocks, long_texts

    def __iter__(self) -> Iterator[dict[str, Any]]:
        workers = get_worker_info()
        if workers is not None and workers.num_workers > 1:
            raise ValueError(
                f"--dataloader_num_workers {workers.num_workers}: a stream can be read by one worker only"
            )
        for epoch in count():
            empty = True
            for row in self.epoch_rows(epoch):
                empty = False
                yield row
            if empty:
                raise ValueError(f"{self.texts.where}: --streaming finds no rows to train on")

    def epoch_rows(self, epoch: int) -> Iterator[dict[str, Any]]:
        """Yield the rows of one epoch."""
        made = (row for chunk in _chunks(self.texts.rows(epoch)) for row in self._encoded(chunk))
        return made if self.blocks is None else self.blocks.cut(made)

    def _encoded(self, chunk: list[tuple[str, dict[str, Any]]]) -> Iterator[dict[str, Any]]:
        columns = {name: [cells[name] for _, cells in chunk] for name in chunk[0][1]}
        encoded = dict(self.encode(columns))
        if "label" in columns:
            encoded["labels"] = [self.texts.label_id(label) for label in columns["label"]]
        cuts = [name for name in encoded if name.endswith("_cut")]
        for place, (row_name, _) in enumerate(chunk):
            long = [name.removesuffix("_cut") for name in cuts if encoded[name][place]]
            if long and self.long_texts == "error":
                raise ValueError(
                    f"{self.texts.where}, {row_name}: the {long[0]} has too many tokens; --long_texts cut "
                    "or skip, or a larger --max_length, --max_source_length, --max_target_length"
                )
            if not (long and self.long_texts == "skip"):
                yield {name: values[place] for name, values in encoded.items() if name not in cuts}


@dataclass(frozen=True)
class Blocks:
    """Cuts the stream of all tokens to blocks, as `causal_blocks` and `masked_blocks` do.

    Attributes:
        size: Tokens of the stream in a block.
        stride: Tokens from the start of one block to that of the next.
        smallest: Tokens that an epoch's last block needs.
        start: What is put before each block.
        end: What is put behind it.
    """

    size: int
    stride: int
    smallest: int = 2
    start: tuple[int, ...] = ()
    end: tuple[int, ...] = ()

    def cut(self, rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield blocks of the `input_ids` of rows."""
        held: list[int] = []
        old = 0  # how many of those held have been in a block
        for row in rows:
            held += row["input_ids"]
            starts = range(0, len(held) - self.size + 1, self.stride)
            for place in starts:
                yield self._framed(held[place : place + self.size])
            if starts:
                held = held[starts[-1] + self.stride :]
                old = self.size - self.stride
        if len(held) > old and len(held) >= self.smallest:
            yield self._framed(held)

    def _framed(self, ids: list[int]) -> dict[str, Any]:
        return {"input_ids": [*self.start, *ids, *self.end]}


def stream_blocks(
    texts: TextStream,
    tokenizer: PreTrainedTokenizerBase,
    block_size: int,
    *,
    block_stride: int | None = None,
    masked: bool,
) -> StreamedRows:
    """Return the blocks of a language model, made while training."""
    if not masked:
        encode = encode_causal(tokenizer, block_size)
        return StreamedRows(texts, encode, Blocks(block_size, check_stride(block_stride, block_size)))
    encode, size = encode_masked(tokenizer, block_size), block_size - 2
    frame = {"start": (tokenizer.cls_token_id,), "end": (tokenizer.sep_token_id,)}
    return StreamedRows(texts, encode, Blocks(size, check_stride(block_stride, size), smallest=1, **frame))


def _chunks(rows: Iterator[Any]) -> Iterator[list[Any]]:
    while chunk := list(islice(rows, CHUNK)):
        yield chunk
