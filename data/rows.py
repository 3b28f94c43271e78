"""Rows of each split, checked on the way to the task's columns: the first bad row is an error, or all are skipped."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import ClassLabel, Dataset, Features, Image, Value, concatenate_datasets

from vanillaformer.console.reporting import report

from .arguments import COLUMNS, SPLITS
from .arrow_files import arrow_column, distinct_cells, select_rows
from .formats import FILE, LINES, PROBLEM, ROW, Columns, ImageOptions, check_columns, needed_cells
from .order import order_keys
from .tasks import TASKS, TaskName

READ = "__read__"
"""Column of a row's number in the order in which a stream is read."""
ORDER = "__order__"
"""Column of the value by which rows are ordered."""
RESERVED = (ROW, FILE, LINES, PROBLEM, READ, ORDER)
TEXT_OPTIONS = ("source_column", "target_column", "text_column", "turns_column")
DataStats = dict[str, dict[str, Any]]
"""Statistics of the data of a run: by split, a number by what it counts."""
BAD, BLANK = "bad rows left out", "blank texts left out"


@dataclass
class SplitRows:
    """The rows of a split, or some of those of a stream.

    Attributes:
        split: The split.
        name: Name of their source in messages.
        rows: The rows, with the columns that tell a row's number and file.
        skip_bad: Leave out rows that cannot be used; otherwise the first is an error.
        images: How images are read.
        stats: How many rows were left out, by the reason.
        reported: For a stream, the kinds of messages printed already; None for a whole split.
    """

    split: str
    name: str
    rows: Dataset
    skip_bad: bool = False
    images: ImageOptions = field(default_factory=ImageOptions)
    stats: dict[str, int] = field(default_factory=dict)
    reported: set[str] | None = None

    def with_rows(self, rows: Dataset) -> "SplitRows":
        """Return other rows of the same split."""
        return replace(self, rows=rows)

    def without(self, bad: np.ndarray, problem: Callable[[int], str], hint: str = "") -> "SplitRows":
        """Return the rows that are not bad.

        Raises:
            ValueError: Naming the first bad row, unless they are skipped.
        """
        if not bad.any():
            return self
        first, count = int(bad.argmax()), int(bad.sum())
        what = f"{self.row_name(first)}: {problem(first)}"
        if not self.skip_bad:
            others = f" ({count} such rows)" if self.reported is None else ""
            raise ValueError(f"{self.name}, {what}{others}; {hint}--bad_rows skip leaves them out")
        self.report("bad", f"{self.share(count)} are bad and left out, first {what}.")
        return self.select(~bad, BAD)

    def without_problems(self, problems: pa.ChunkedArray) -> "SplitRows":
        """Return the rows without a problem; raises as `without` does."""
        return self.without(np.asarray(pc.is_valid(problems), dtype=bool), lambda index: problems[index].as_py())

    def select(self, chosen: np.ndarray, reason: str) -> "SplitRows":
        """Return the chosen rows, and count the others under a reason."""
        self.stats[reason] = self.stats.get(reason, 0) + int((~chosen).sum())
        return self.with_rows(select_rows(self.rows, np.flatnonzero(chosen)))

    def share(self, count: int) -> str:
        """Return a number of rows in words; the total of a stream is not known."""
        return f"{count:,} of {len(self.rows):,} rows" if self.reported is None else "rows of the stream"

    def report(self, kind: str, message: str) -> None:
        """Print a message on the rows; for a stream only the first of its kind."""
        if self.reported is None or kind not in self.reported:
            report(f"{self.name}: {message}")
        if self.reported is not None:
            self.reported.add(kind)

    def row_name(self, index: int) -> str:
        """Return the name of a row in messages: its number in its file, or else in the order of reading."""
        row = self.rows[index]
        if ROW not in row and READ in row:
            return f"row {row[READ]} as read"
        return f"row {row.get(ROW, index + 1)}" + (f" of {row[FILE]}" if FILE in row else "")


def text_columns(split: SplitRows, columns: Columns) -> SplitRows:
    """Return the rows that can be read, with the needed columns, as texts or labels.

    Raises:
        ValueError: A column is missing, or a row cannot be read.
    """
    rows = split.rows.flatten() if any("." in name for name in columns.values()) else split.rows
    check_columns(split.name, [name for name in rows.column_names if name not in RESERVED], columns)
    reserved = [name for name in rows.column_names if name in RESERVED]
    rows = rows.select_columns([*dict.fromkeys(columns.values()), *reserved])
    others = {}
    for option, name in columns.items():  # texts, images, classes, and numbers where no text is needed, stay
        feature = rows.features[name]
        is_text = getattr(feature, "dtype", None) in ("string", "large_string")
        is_image = option == "image_column" and isinstance(feature, Image | dict)
        is_class = option not in TEXT_OPTIONS and isinstance(feature, Value | ClassLabel)
        if not (is_text or is_image or is_class):
            others[option] = name
    if others:
        old = [*others.values(), *({PROBLEM} & set(reserved))]
        features = {name: feature for name, feature in rows.features.items() if name not in old}
        features |= dict.fromkeys([*others.values(), PROBLEM], Value("string"))
        options = {"remove_columns": old, "features": Features(features), "desc": "Reading texts"}

        def text_cells(row: Mapping[str, Any]) -> dict[str, Any]:
            cells, problem = needed_cells(row, others)
            return {**cells, PROBLEM: row.get(PROBLEM) or problem}

        rows = rows.map(text_cells, **options)
    return readable_rows(split.with_rows(rows))


def readable_rows(split: SplitRows) -> SplitRows:
    """Return the rows that could be read, and report those that take more than one line of their file."""
    if LINES in split.rows.column_names:
        lines = arrow_column(split.rows, LINES).to_numpy()
        if len(lines) and lines.max() > 1:
            longest, count = int(lines.argmax()), int((lines > 1).sum())
            split.report(
                "lines",
                f"{split.share(count)} have cells with line breaks, at most {split.row_name(longest)} with "
                f"{lines[longest]:,} lines: is its quotation mark closed in the right place?",
            )
    if PROBLEM in split.rows.column_names:
        split = split.without_problems(arrow_column(split.rows, PROBLEM))
    read = [name for name in (LINES, PROBLEM) if name in split.rows.column_names]
    return split.with_rows(split.rows.remove_columns(read))


def by_column(split: SplitRows, column: str) -> dict[str, SplitRows]:
    """Return the splits of rows whose column says which split they belong to.

    Raises:
        ValueError: Naming the row and its cell, if that is not a split; or if no row is for training.
    """
    cells, number_of = distinct_words(split.rows, column)
    number_of_word = {word: number for number, words in enumerate(SPLITS.values()) for word in words}
    found = [number_of_word.get(cell.strip().lower(), -1) if isinstance(cell, str) else -1 for cell in cells]
    known, numbers = ", ".join(number_of_word), np.array(found, dtype=np.int64)[number_of]
    split = split.without(
        numbers < 0,
        lambda index: f"{cells[number_of[index]]!r} in --split_column {column!r} names no split (known are {known})",
    )
    numbers = numbers[numbers >= 0]
    chosen = {name: np.flatnonzero(numbers == number) for number, name in enumerate(SPLITS)}
    if not len(chosen["train"]):
        raise ValueError(f"{split.name}: no row has 'train' in --split_column {column!r}")
    return {
        name: replace(
            split, split=name, rows=select_rows(split.rows, rows), stats=split.stats if name == "train" else {}
        )
        for name, rows in chosen.items()
        if len(rows)
    }


def in_order(split: SplitRows, column: str) -> SplitRows:
    """Return rows sorted by a column, with its values as `ORDER`; rows with equal ones stay in their order.

    Raises:
        ValueError: Naming a row whose cell is empty or not of the kind of the others, or cells that are ambiguous.
    """
    name = f"--order_column {column!r}"
    cells, number_of = distinct_words(split.rows, column)
    try:
        keys, kind = order_keys(cells, np.bincount(number_of, minlength=len(cells)))
    except ValueError as error:
        raise ValueError(f"{split.name}: {name} {error}") from error
    if kind == "text":
        split.report("order", f"{name} holds neither numbers nor dates: it is ordered as text.")

    def problem(index: int) -> str:
        cell = cells[number_of[index]]
        return f"{name} is empty" if cell in (None, "") else f"{name} holds {cell!r}, which is not {kind}"

    split = split.without(np.array([key is None for key in keys], dtype=bool)[number_of], problem)
    words = {  # dates in one form, other values as they stand in the data
        key: key.isoformat(" ").removesuffix(" 00:00:00") if isinstance(key, datetime) else str(cell)
        for cell, key in zip(reversed(cells), reversed(keys))
        if key is not None
    }
    rank = {key: number for number, key in enumerate(sorted(words))}
    ranks = np.array([rank.get(key, -1) for key in keys], dtype=np.int64)[number_of]
    ranks = ranks[ranks >= 0]
    values = pa.array([words[key] for key in rank], pa.string()).take(pa.array(ranks))
    return split.with_rows(select_rows(split.rows.add_column(ORDER, values), np.argsort(ranks, kind="stable")))


def task_rows(split: SplitRows, columns: Columns, task: TaskName) -> SplitRows:
    """Return the rows in the task's columns, with a text in each; blank texts of a language model are dropped.

    Raises:
        ValueError: Naming the first row without a text, unless such rows are skipped; or if no row is left.
    """
    names = dict(zip(columns.values(), COLUMNS[task]))
    reserved = [name for name in split.rows.column_names if name in RESERVED]
    return usable_rows(split.with_rows(split.rows.select_columns([*names, *reserved]).rename_columns(names)), task)


def usable_rows(split: SplitRows, task: TaskName) -> SplitRows:
    """Return the rows of the task's columns that have a text, or an image, in each."""
    for column in COLUMNS[task]:
        if column == "image":
            from .image_rows import decoded  # which only tasks of images need

            found = decoded(split.rows, column, split.images)
            problems = arrow_column(found, PROBLEM)
            pixels = concatenate_datasets([split.rows.remove_columns(column), found.remove_columns(PROBLEM)], axis=1)
            split = split.with_rows(pixels).without_problems(problems)
        elif column != "label":
            split = _with_texts(split, column, drop_blank=not TASKS[task].whole_texts)
    if not len(split.rows) and split.reported is None:
        raise ValueError(f"{split.name} has no rows")
    return split


def _with_texts(split: SplitRows, column: str, *, drop_blank: bool) -> SplitRows:
    empty, blank = np.zeros((2, len(split.rows)), dtype=bool)
    start = 0
    for cells in arrow_column(split.rows, column).chunks:  # chunk by chunk, because trimming copies the texts
        here = slice(start, start := start + len(cells))
        empty[here] = pc.is_null(cells)
        blank[here] = pc.fill_null(pc.equal(pc.utf8_trim_whitespace(cells), ""), False)
    if drop_blank and blank.any():
        if split.reported is None:
            report(f"{split.name}: {blank.sum()} of {len(blank)} texts are blank and left out.")
        split, empty, blank = split.select(~blank, BLANK), empty[~blank], blank[~blank]
    return split.without(empty | blank, lambda _: f"the {column} is empty", hint="fill it in, remove it, or ")


def distinct_words(rows: Dataset, column: str) -> tuple[list[Any], np.ndarray]:
    """Return the same with the names of classes in place of their numbers."""
    cells, number_of = distinct_cells(rows, column)
    if isinstance(feature := rows.features[column], ClassLabel):
        cells = [feature.names[cell] if cell in range(feature.num_classes) else None for cell in cells]
    return cells, number_of
