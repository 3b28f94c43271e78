"""Streams: splits that are read during training, and their first rows, which are loaded before it.

A stream is never whole in memory, nor on disk where it comes from the Hub. Every process reads all of it and takes its
part of each batch, so that the batches are the same on any number of processes. A stream begins again, in another
order, when it has ended; a resumed run skips what it has read.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from math import inf
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value, concatenate_datasets
from datasets.fingerprint import generate_random_fingerprint
from torch.utils.data import IterableDataset

from vanillaformer.console.limits import BUDGETS
from vanillaformer.console.reporting import report

from .arguments import COLUMNS, MARKS, DataArguments, LongTexts
from .files import batched
from .formats import FILE, LINES, PROBLEM, ROW, check_columns, column_names, image_cell, needed_cells
from .preprocessing.tokenizing import Blocks
from .rows import BAD, READ, SplitRows, readable_rows, select_rows, usable_rows, with_labels
from .splits import text_keys, without_leaks
from .tasks import TASKS, TaskName

HELD_OUT = 1_000
"""Rows of validation data (of passages a tenth), where there is none and --max_validation_samples is not given."""


def check_streaming(data_args: DataArguments, training_args: Any) -> None:
    """Check that the options suit a stream, and set those that it needs; a ValueError names the option."""
    if training_args.max_steps <= 0 and all(getattr(training_args, name) is None for name in BUDGETS):
        options = ", ".join(f"--{name}" for name in BUDGETS)
        raise ValueError(f"--streaming needs --max_steps or a budget ({options}): the length of an epoch is not known")
    if training_args.tokens_per_batch is not None:
        raise ValueError(
            f"--tokens_per_batch {training_args.tokens_per_batch}: --streaming does not know the lengths of rows"
        )
    if training_args.dataloader_num_workers > 1:
        raise ValueError(
            f"--dataloader_num_workers {training_args.dataloader_num_workers}: a stream is read by one at most"
        )
    data_args.packing = data_args.packing or False  # the default, None, follows the lengths of all rows
    columns = dict.fromkeys(("split_column", "order_column", "source_prefix", *MARKS))
    fractions = {"test_fraction": 0.0, "validation_fraction": DataArguments.validation_fraction, "split_seed": 0}
    for name, unset in {"packing": False, **fractions, **columns, "hold_out": "random"}.items():
        if getattr(data_args, name) != unset:
            raise ValueError(f"--{name} {getattr(data_args, name)} needs all data at once: not with --streaming")
    if training_args.train_sampling_strategy != "random":
        report(f"--streaming: --train_sampling_strategy {training_args.train_sampling_strategy} is not used.")
        training_args.train_sampling_strategy = "random"  # a stream cannot be grouped by length
    training_args.accelerator_config.dispatch_batches = False  # each process pads its own rows


@dataclass
class TextStream:
    """The rows of a split in the task's columns, in order, for any number of epochs."""

    source: SplitRows  # the split, whose rows are a stream before any check
    task: TaskName
    buffer: int = 0  # size of the shuffle buffer; 0 keeps the order
    seed: int = 0  # seed of the order
    names: list[str] | None = None  # names of the classes, once known
    # Keys of texts whose rows are left out, sorted
    left_out: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint64))

    def __post_init__(self) -> None:
        """Look at the first row; raise ValueError if there is none, or if it lacks a column."""
        first = next(iter(self.source.rows), None)
        if first is None:
            raise ValueError(f"{self.source.name} has no rows")
        check_columns(self.source.name, list(dict.fromkeys(column_names(first))), self.source.columns)

    def batches(self, epoch: int = 0, size: float = inf) -> Iterator[SplitRows]:
        """Yield the usable rows of an epoch in batches of at most `size`, which are read and tokenized together."""
        rows, bad, number = self.source.rows, 0, 0
        if self.buffer:
            rows = rows.shuffle(seed=self.seed, buffer_size=self.buffer)
            rows.set_epoch(epoch)
        for chunk in batched(enumerate(rows, start=1), _size, size):
            batch = usable_rows(readable_rows(self.table(chunk)), self.task)
            if "label" in COLUMNS[self.task]:
                batch = with_labels(batch, self.names)
            bad, number = bad + batch.stats.get(BAD, 0), chunk[-1][0]
            if len(self.left_out) and (left_out := np.isin(self.keys(batch.rows), self.left_out)).any():
                batch = batch.with_rows(select_rows(batch.rows, np.flatnonzero(~left_out)))
            if len(batch.rows):
                yield batch
        if bad:
            self.source.report("count", f"{bad:,} of {number:,} rows are bad and left out.")

    def first_rows(self, size: int | None, hint: str = "") -> SplitRows:
        """Return as many usable rows, or all of them; raise ValueError if no row can be used."""
        parts: list[Dataset] = []
        missing = inf if size is None else size
        for batch in self.batches(size=missing):
            parts.append(batch.rows.select(range(int(min(len(batch.rows), missing)))))
            missing -= len(parts[-1])
            if not missing:
                break
        if not parts:
            raise ValueError(f"{self.source.name}: --streaming finds no rows for {self.source.split}{hint}")
        return replace(self.source, rows=concatenate_datasets(parts), stats={})

    def keys(self, rows: Dataset) -> np.ndarray:
        """Return the keys by which rows are compared."""
        return text_keys(rows, COLUMNS[self.task][0], exact=not TASKS[self.task].whole_texts)

    def table(self, chunk: list[tuple[int, dict[str, Any]]]) -> SplitRows:
        """Return numbered rows of the source as a table of the task's columns."""
        names = dict(zip(COLUMNS[self.task], self.source.columns.values()))
        image = names.pop("image", None)
        columns = {option: name for option, name in self.source.columns.items() if option != "image_column"}
        found = [needed_cells(row, columns) for _, row in chunk]
        table: dict[str, list[Any]] = {column: [cells[name] for cells, _ in found] for column, name in names.items()}
        features: dict[str, Any] = dict.fromkeys([*table, PROBLEM, FILE], Value("string"))
        features |= dict.fromkeys((ROW, READ, LINES), Value("int64"))
        if image is not None:
            features["image"] = {"bytes": Value("large_binary"), "path": Value("string")}
            table["image"] = [image_cell(row.get(image)) for _, row in chunk]
        feature = (self.source.rows.features or {}).get(names.get("label", ""))
        if isinstance(feature, ClassLabel):
            features["label"] = feature
            table["label"] = [None if label is None else int(label) for label in table["label"]]
        table |= {name: [row[name] for _, row in chunk] for name in (ROW, FILE, LINES) if name in chunk[0][1]}
        table[READ] = [number for number, _ in chunk]
        table[PROBLEM] = [row.get(PROBLEM) or problem for (_, row), (_, problem) in zip(chunk, found)]
        schema = Features({name: features[name] for name in table}).arrow_schema
        rows = Dataset(pa.table(table, schema=schema), fingerprint=generate_random_fingerprint())
        return replace(self.source, rows=rows, stats={})


def _size(cell: Any) -> int:
    """Return the characters and bytes of a cell, or of the cells in it."""
    if isinstance(cell, str | bytes):
        return len(cell)
    inner = cell.values() if isinstance(cell, dict) else cell if isinstance(cell, list | tuple) else ()
    return sum(map(_size, inner))


def open_streams(
    sources: dict[str, SplitRows], data_args: DataArguments, task: TaskName
) -> tuple[dict[str, SplitRows], TextStream]:
    """Return rows of validation and test data, the first rows for training, and the stream of all of these.

    Without validation data the first rows are held out, and rows with the same text are left out of the stream.
    """
    streams = {}
    for split, source in sources.items():
        images = replace(source.images, kept=False, workers=data_args.preprocessing_num_workers or 1)
        streams[split] = TextStream(replace(source, images=images, reported=set()), task)
    if TASKS[task].reads_images:
        if data_args.image_size is None:
            from .image_rows import LOOKED_AT, usual_size  # which only tasks of images need

            first = streams["train"].table(list(enumerate(streams["train"].source.rows.take(LOOKED_AT), start=1)))
            data_args.image_size = usual_size(first.rows, "image", first.images)
        for stream in streams.values():
            stream.source.images = replace(stream.source.images, size=data_args.image_size)
    caps = {"validation": data_args.max_validation_samples, "test": data_args.max_test_samples}
    parts = {split: streams[split].first_rows(count) for split, count in caps.items() if split in streams}
    train, hint, column, drop = streams["train"], "", COLUMNS[task][0], data_args.drop_leaked_rows
    if "validation" not in parts:
        size = caps["validation"] or (HELD_OUT // 10 if data_args.sample_by == "passage" else HELD_OUT)
        parts["validation"] = replace(train.first_rows(size), split="validation")
        held_out = parts["validation"].rows
        train.source.rows = train.source.rows.skip(held_out[-1][READ])
        train.left_out = np.unique(train.keys(held_out))
        report(f"{train.source.name}: the first {len(held_out):,} rows are held out for validation.")
        hint = f" in addition to the {len(held_out):,} held out: give a smaller --max_validation_samples"
    if drop:
        train.left_out = np.unique(
            np.concatenate([train.left_out, *(train.keys(part.rows) for part in parts.values())])
        )
    if data_args.max_train_samples is not None:
        train.source.rows = train.source.rows.take(data_args.max_train_samples)
    parts["train"] = train.first_rows(data_args.tokenizer_samples, hint)
    rows = DatasetDict({split: part.rows for split, part in parts.items()})
    rows, stats = without_leaks(rows, column, exact=not TASKS[task].whole_texts, drop=drop)
    return {
        split: replace(part, rows=rows[split], stats=part.stats | stats[split]) for split, part in parts.items()
    }, train


class StreamedRows(IterableDataset):
    """Tokenized rows without an end: the epochs of a stream one after the other."""

    first_rows: Dataset | None = None  # the first of the rows, in the order of the data

    def __init__(
        self,
        texts: TextStream,
        encode: Callable[[dict[str, list[Any]]], dict[str, list[Any]]],
        blocks: Blocks | None = None,
        long_texts: LongTexts = "cut",
    ):
        self.texts, self.encode, self.blocks, self.long_texts = texts, encode, blocks, long_texts

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for epoch in count():
            empty = True
            for row in self.epoch_rows(epoch):
                empty = False
                yield row
            if empty:
                raise ValueError(f"{self.texts.source.name}: --streaming finds no rows to train on")

    def epoch_rows(self, epoch: int) -> Iterator[dict[str, Any]]:
        made = (row for batch in self.texts.batches(epoch) for row in self._encoded(batch))
        if self.blocks is None:
            return made
        found = self.blocks.cut(np.array(row["input_ids"], np.int32) for row in made)
        return ({"input_ids": block} for blocks in found for block in blocks.tolist())

    def _encoded(self, batch: SplitRows) -> Iterator[dict[str, Any]]:
        columns = batch.rows[:]
        encoded = dict(self.encode(columns))
        if "label" in columns:
            encoded["labels"] = columns["label"]
        cuts = [name for name in encoded if name.endswith("_cut")]
        for index in range(len(batch.rows)):
            long = [name.removesuffix("_cut") for name in cuts if encoded[name][index]]
            if long and self.long_texts == "error":
                raise ValueError(
                    f"{batch.name}, {batch.row_name(index)}: the {long[0]} has too many tokens; --long_texts cut "
                    "or skip, or a larger --max_length, --max_source_length, --max_target_length"
                )
            if not (long and self.long_texts == "skip"):
                yield {name: values[index] for name, values in encoded.items() if name not in cuts}
