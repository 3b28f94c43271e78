"""Streams: splits that are read during training, and their first rows, which are loaded before it.

A stream is never whole in memory, nor on disk where it comes from the Hub. Its parts (pieces of files, row groups,
shards on the Hub) are read in random order, as many at a time as there are lanes: row n of the stream is from lane
n mod lanes. The lanes depend only on the data and its shuffling, and process p of P takes every Pth row from row p on:
the batches are the same on any number of processes, and if that divides the lanes, each process reads only its own. A
stream begins again, in another order, when it has ended. A resumed run begins at the places in the checkpoint.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count, islice
from math import inf
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

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
from .preprocessing.tokenizing import Blocks, Encode, Held
from .rows import BAD, READ, SplitRows, arrow_column, readable_rows, select_rows, usable_rows, with_labels
from .splits import text_keys, without_leaks
from .tasks import TASKS, TaskName

LANES, LANE_ROWS = 16, 250
"""Maximum number of lanes, a power of two, like most numbers of processes; rows of a lane tokenized together."""
PLACES = "__places__"  # of the rows of a batch, in its stream
HELD_OUT = 1_000
"""Rows held out without validation data and --max_validation_samples; of passages a tenth."""


def check_streaming(data_args: DataArguments, training_args: Any) -> None:
    """Check that the options fit a stream, and set those that it needs; a ValueError names the option."""
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


class Place(NamedTuple):
    """Position of the next row of a lane."""

    epoch: int = 0
    part: int = 0  # number among the parts of the lane in the epoch
    skip: int = 0  # rows of the part before the shuffle buffer
    offset: int = 0  # rows in the buffer before the row


BEGINNING = Place()


@dataclass
class TextStream:
    """The rows of a split in the task's columns, in order, for any number of epochs."""

    source: SplitRows  # the split, with a stream of unchecked rows
    task: TaskName
    buffer: int = 0  # size of the shuffle buffer; 0 keeps the order
    seed: int = 0  # seed of the order
    names: list[str] | None = None  # names of the classes, once known
    # Keys of texts whose rows are left out, sorted
    left_out: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint64))

    def __post_init__(self) -> None:
        """Check the first row; raise ValueError if there is none, or if it lacks a column."""
        first = next(iter(self.source.rows), None)
        if first is None:
            raise ValueError(f"{self.source.name} has no rows")
        check_columns(self.source.name, list(dict.fromkeys(column_names(first))), self.source.columns)

    @property
    def lanes(self) -> int:
        """The number of parts read at a time; in an epoch, each lane has at least as much to read as the largest part.

        Lanes whose parts have different numbers of rows do not stay in step, so that of many parts each lane has
        several per epoch.
        """
        sizes = [part.size for part in self.source.rows.parts]
        most = min(LANES if len(sizes) <= LANES else len(sizes) // 4, LANES, sum(sizes) // max(1, *sizes, 1))
        most = most if self.buffer else 1
        return 1 << max(0, most.bit_length() - 1)

    def rows(self, at: Place, lane: int, lanes: int) -> Iterator[tuple[Place, dict[str, Any]]]:
        """Yield the rows of a lane from a place to the end of its epoch."""
        parts, size = self.source.rows.parts, max(1, self.buffer // lanes)
        order = np.random.default_rng((self.seed, at.epoch)).permutation(len(parts))
        order = order if self.buffer else np.arange(len(parts))
        mine = order[(lane - at.epoch * len(parts)) % lanes :: lanes]  # lanes take turns, across epochs
        start, held = at, []
        for number in range(at.part, len(mine)):
            first = at.skip if number == at.part else 0
            rows = islice(self.source.rows.read(parts[mine[number]]), first, None)
            for done, row in enumerate(rows, start=first + 1):
                if not self.buffer:
                    yield Place(at.epoch, number, done - 1), row
                    continue
                held.append(row)
                if len(held) == size:
                    yield from self.shuffled(start, held, lane)
                    start, held = Place(at.epoch, number, done), []
        yield from self.shuffled(start, held, lane)

    def shuffled(self, start: Place, held: list[Any], lane: int) -> Iterator[tuple[Place, Any]]:
        """Yield buffered rows in random order, from the offset of their place on."""
        order = np.random.default_rng((self.seed, lane, *start[:3])).permutation(len(held))
        for offset in range(start.offset, len(held)):
            yield start._replace(offset=offset), held[order[offset]]

    def batches(
        self, at: Place = BEGINNING, lane: int = 0, lanes: int = 1, size: float = inf
    ) -> Iterator[tuple[Place, SplitRows]]:
        """Yield the usable ones of `rows`, from a place on, in batches of up to `size` to be tokenized together."""
        bad = shared = number = 0
        size = size if lanes == 1 else LANE_ROWS  # a resumed run tokenizes these again in each lane
        numbered = enumerate(self.rows(at, lane, lanes), start=1)
        for chunk in batched(numbered, lambda chunk: lanes * _size(chunk), size):
            place = chunk[0][1][0]
            batch = usable_rows(readable_rows(self.table([(number, row) for number, (_, row) in chunk])), self.task)
            if "label" in COLUMNS[self.task]:
                batch = with_labels(batch, self.names)
            bad, number = bad + batch.stats.get(BAD, 0), chunk[-1][0]
            if len(self.left_out) and (left_out := np.isin(text_keys(batch.rows, self.task), self.left_out)).any():
                batch = batch.with_rows(select_rows(batch.rows, np.flatnonzero(~left_out)))
                shared += int(left_out.sum())
            if len(batch.rows):
                yield place, batch
        for kind, rows, what in (("bad", bad, "are bad and"), ("shared", shared, "occur in the other splits and are")):
            if rows:
                self.source.report(f"{kind} count", f"{rows:,} of {number:,} rows {what} left out.")

    def first_rows(self, size: int | None, hint: str = "") -> SplitRows:
        """Return the first `size` usable rows, or all of them; raise ValueError if no row can be used."""
        parts: list[Dataset] = []
        missing = inf if size is None else size
        for _, batch in self.batches(size=missing):
            parts.append(batch.rows.select(range(int(min(len(batch.rows), missing)))))
            missing -= len(parts[-1])
            if not missing:
                break
        if not parts:
            raise ValueError(f"{self.source.name}: --streaming finds no rows for {self.source.split}{hint}")
        return replace(self.source, rows=concatenate_datasets(parts), stats={})

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
    """Return the number of characters and bytes in a cell, including nested cells."""
    if isinstance(cell, str | bytes):
        return len(cell)
    inner = cell.values() if isinstance(cell, dict) else cell if isinstance(cell, list | tuple) else ()
    return sum(map(_size, inner))


def open_streams(
    sources: dict[str, SplitRows], data_args: DataArguments, task: TaskName
) -> tuple[dict[str, SplitRows], TextStream]:
    """Return rows of validation and test data, the first rows for training, and the stream of all training rows.

    Without validation data the first rows are held out, and rows with the same text are left out of the stream.
    """
    streams = {}
    for split, source in sources.items():
        images = replace(source.images, kept=False, workers=data_args.preprocessing_num_workers or 1)
        streams[split] = TextStream(replace(source, images=images, reported=set()), task)
    if TASKS[task].reads_images:
        if data_args.image_size is None:
            from .image_rows import LOOKED_AT, usual_size  # texts do not need it

            first = streams["train"].table(list(enumerate(islice(streams["train"].source.rows, LOOKED_AT), start=1)))
            data_args.image_size = usual_size(first.rows, "image", first.images)
        for stream in streams.values():
            stream.source.images = replace(stream.source.images, size=data_args.image_size)
    caps = {"validation": data_args.max_validation_samples, "test": data_args.max_test_samples}
    parts = {split: streams[split].first_rows(count) for split, count in caps.items() if split in streams}
    train, hint = streams["train"], ""
    if "validation" not in parts:
        size = caps["validation"] or (HELD_OUT // 10 if data_args.sample_by == "passage" else HELD_OUT)
        parts["validation"] = replace(train.first_rows(size), split="validation")
        held_out = parts["validation"].rows
        train.source.rows = train.source.rows.without_first(held_out[-1][READ])
        train.left_out = np.unique(text_keys(held_out, task))
        report(f"{train.source.name}: the first {len(held_out):,} rows are held out for validation.")
        hint = f" in addition to the {len(held_out):,} held out: give a smaller --max_validation_samples"
    if data_args.drop_leaked_rows:
        known = [train.left_out, *(text_keys(part.rows, task) for part in parts.values())]
        train.left_out = np.unique(np.concatenate(known))
    if (most := data_args.max_train_samples) is not None:  # besides those left out
        read = (number for _, batch in train.batches() for number in arrow_column(batch.rows, READ).to_pylist())
        most = max(islice(read, most), default=0) if len(train.left_out) else most
        train.source.rows = train.source.rows.first(most)
    parts["train"] = train.first_rows(data_args.tokenizer_samples, hint)
    rows = DatasetDict({split: part.rows for split, part in parts.items()})
    rows, stats = without_leaks(rows, task, drop=data_args.drop_leaked_rows)
    parts = {split: replace(part, rows=rows[split], stats=part.stats | stats[split]) for split, part in parts.items()}
    return parts, train


class StreamedRows(IterableDataset):
    """The tokenized rows of an endless stream for one process."""

    first_rows: Dataset | None = None  # in the order of the data
    processes, process = 1, 0  # number of processes, and that of this one
    first = trained = 0  # rows that all processes had trained on at the checkpoint, and until now

    def __init__(self, texts: TextStream, encode: Encode, blocks: Blocks | None = None, long_texts: LongTexts = "cut"):
        self.texts, self.encode, self.blocks, self.long_texts = texts, encode, blocks, long_texts
        self.places: dict[int, dict[str, Any]] = {}  # of the last batch of texts that was trained on, by lane

    def __iter__(self) -> Iterator[dict[str, Any]]:
        width = self.texts.lanes
        lanes: dict[int, Lane] = {}
        for number in count(self.first + self.process, self.processes):
            lane = number % width
            if lane not in lanes:
                lanes[lane] = Lane(self, lane, width, self.places.get(lane))
            yield lanes[lane].row_at(number // width)

    def train_on(self, places: list[dict[str, Any]], rows: int) -> None:
        """Note the places that come with a batch, and how many rows all processes train on now."""
        self.places |= {place["lane"]: place for place in places}
        self.trained += rows

    @property
    def fingerprint(self) -> int:
        """A checksum of the sizes of the data's parts."""
        return crc32(repr([(part.size, part.skip, part.stop) for part in self.texts.source.rows.parts]).encode())

    def save(self, folder: Path) -> None:
        """Save the places at which this process resumes."""
        state = {"rows": self.trained, "parts": self.fingerprint, "places": [*self.places.values()]}
        (folder / f"stream_{self.process}.json").write_text(json.dumps(state), encoding="utf-8")

    def resume(self, folder: Path, rows: int) -> None:
        """Resume from a checkpoint after a number of rows; raise ValueError if its run has read other data."""
        self.first = self.trained = rows
        for path in sorted(folder.glob("stream_*.json")):
            state = json.loads(path.read_text(encoding="utf-8"))
            if state["parts"] != self.fingerprint:
                raise ValueError(
                    f"{self.texts.source.name}: these are not the files that the run has read up to {folder.name}, or "
                    "their sizes have changed: give the same files, or another --output_dir"
                )
            self.first = self.trained = state["rows"]
            for place in state["places"]:
                if place["row"] >= self.places.get(place["lane"], place)["row"]:
                    self.places[place["lane"]] = place

    def encoded(self, batch: SplitRows) -> Iterator[dict[str, Any]]:
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


class Lane:
    """The rows of one of the lanes of a stream, from a place on."""

    def __init__(self, stream: StreamedRows, lane: int, lanes: int, known: dict[str, Any] | None):
        known = known or {"row": 0, "place": BEGINNING, "held": ()}
        self.stream, self.lane, self.lanes = stream, lane, lanes
        self.row, self.place, self.held = known["row"], Place(*known["place"]), Held(*known["held"])
        self.mark: dict[str, Any] | None = None  # where the next row's batch of texts begins
        self.rows = self._rows()

    def row_at(self, number: int) -> dict[str, Any]:
        """Return a row by its number in the lane, with the place of its batch if it is the first in it."""
        row = next(row for row in self.rows if self.row > number)
        mark, self.mark = self.mark, None
        return row if mark is None else {**row, PLACES: mark}

    def _rows(self) -> Iterator[dict[str, Any]]:
        empty = 0
        while empty < (1 if self.lanes == 1 else 20 * self.lanes):  # epochs without rows for this lane
            before = self.row
            for row in self.to_end_of_epoch():
                self.row += 1
                yield row
            empty = 0 if self.row > before else empty + 1
            self.place, self.held = Place(self.place.epoch + 1), Held()
        raise ValueError(f"{self.stream.texts.source.name}: --streaming finds no rows to train on")

    def to_end_of_epoch(self) -> Iterator[dict[str, Any]]:
        blocks, made = self.stream.blocks, self._encoded()
        if blocks is None:
            return made
        found = blocks.cut((np.array(row["input_ids"], np.int32) for row in made), self.held)
        return ({"input_ids": block} for blocks in found for block in blocks.tolist())

    def _encoded(self) -> Iterator[dict[str, Any]]:
        for place, batch in self.stream.texts.batches(self.place, self.lane, self.lanes):
            self.mark = {"lane": self.lane, "row": self.row, "place": place, "held": self.held.state()}
            yield from self.stream.encoded(batch)


def with_places(rows: list[dict[str, Any]], collate: Callable[[list[dict[str, Any]]], Any]) -> Any:
    """Return a batch of a stream's rows with their places."""
    places = [row.pop(PLACES) for row in rows if PLACES in row]
    batch = collate(rows)
    batch[PLACES] = places
    return batch
