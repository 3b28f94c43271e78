"""Rows that cannot be used: the first is an error, or all are left out and counted."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, Value

from vanillaformer.hub.reporting import report

from ..arrow_files import select_rows
from .opening import LINES, PROBLEM, ROW

FILE = "__file__"
"""Column of the name of the file that a row is from, where a split has several."""

Facts = dict[str, dict[str, Any]]
"""What is known about the data of a run: by split, a number by what it says."""

BLANK, NULL, NOT_TEXT = 1, 2, 3
PROBLEMS = {BLANK: "the {column} is empty", NULL: "the {column} is empty", NOT_TEXT: "the {column} is not text"}


@dataclass
class RowCheck:
    """What is done about bad rows.

    Attributes:
        skip: Leave them out; otherwise the first is an error.
        facts: Where to note how many were left out.
    """

    skip: bool = False
    facts: Facts = field(default_factory=dict)

    def note(self, split: str, name: str, value: Any) -> None:
        """Note a fact about a split; numbers of the same name are added up."""
        known = self.facts.setdefault(split, {})
        known[name] = known.get(name, 0) + value

    def drop(
        self, split: str, where: str, rows: Dataset, bad: np.ndarray, problem: Callable[[int], str], hint: str = ""
    ) -> Dataset:
        """Return the rows that are not bad.

        Args:
            split: Their split.
            where: What they are from, in words.
            rows: The rows.
            bad: Which of them are bad.
            problem: Says what is wrong with the row at an index.
            hint: What else could be done than to skip them.

        Raises:
            ValueError: Naming the first bad row, unless they are skipped.
        """
        if not bad.any():
            return rows
        first, count = int(bad.argmax()), int(bad.sum())
        what = f"{row_name(rows, first)}: {problem(first)}"
        if not self.skip:
            raise ValueError(f"{where}, {what} ({count} such rows); {hint}--bad_rows skip leaves them out")
        report(f"{where}: {count:,} of {len(rows):,} rows are bad and left out, first {what}.")
        self.note(split, "bad rows left out", count)
        return select_rows(rows, np.flatnonzero(~bad))


def row_name(rows: Dataset, index: int) -> str:
    """Return what to call a row in messages: by its number in its file, where that is known."""
    row = rows[index]
    return f"row {row.get(ROW, index + 1)}" + (f" of {row[FILE]}" if FILE in row else "")


def without_unreadable(check: RowCheck, split: str, where: str, rows: Dataset) -> Dataset:
    """Return the rows of files that could be read, and report those that take more than one line.

    Args:
        check: What to do about the others.
        split: Their split.
        where: What they are from, in words.
        rows: Rows as `load_files` returns them.
    """
    lines = arrow_column(rows, LINES).to_numpy()
    if len(rows) and lines.max() > 1:
        longest, count = int(lines.argmax()), int((lines > 1).sum())
        report(
            f"{where}: {count:,} of {len(rows):,} rows have cells with line breaks, at most {row_name(rows, longest)} "
            f"with {lines[longest]:,} lines: is its quotation mark closed in the right place?"
        )
    problems = arrow_column(rows, PROBLEM)
    bad = np.asarray(pc.is_valid(problems), dtype=bool)
    rows = check.drop(split, where, rows, bad, lambda index: problems[index].as_py())
    return rows.remove_columns([LINES, PROBLEM])


def arrow_column(rows: Dataset, column: str) -> pa.ChunkedArray:
    """Return a column of chosen rows: at once, where `datasets` makes a table of each row first."""
    cells = rows.data.column(column)
    return cells if rows._indices is None else cells.take(rows._indices.column(0))


def distinct_cells(rows: Dataset, column: str) -> tuple[list[Any], np.ndarray]:
    """Return the distinct cells of a column in the order of their first rows, and the number of each row's cell."""
    if type(rows.features[column]).__name__ == "Json":  # of several types
        return list(rows[column]), np.arange(len(rows))
    cells = arrow_column(rows, column)
    if pa.types.is_string(cells.type):
        cells = cells.cast(pa.large_string())  # distinct texts may have more than 2 GiB
    chunks = cells.dictionary_encode(null_encoding="encode").chunks  # which share a dictionary
    numbers = [np.array([], dtype=np.int32), *(chunk.indices.to_numpy() for chunk in chunks)]
    return (chunks[0].dictionary.to_pylist() if chunks else []), np.concatenate(numbers)


def number_rows(rows: Dataset) -> Dataset:
    """Return rows that know their number, from 1."""
    return rows.add_column(ROW, np.arange(1, len(rows) + 1))


def with_texts(
    check: RowCheck, split: str, where: str, rows: Dataset, column: str, *, drop_blank: bool = False
) -> Dataset:
    """Return the rows whose cell of a column is text.

    Args:
        check: What to do about the others.
        split: Their split.
        where: What they are from, in words.
        rows: The rows.
        column: The column.
        drop_blank: Texts of white space alone are no mistake, but left out and counted.
    """
    found = _problems(where, rows, column)
    if drop_blank and (found == BLANK).any():
        count = int((found == BLANK).sum())
        report(f"{where}: {count} of {len(rows)} texts are blank and left out.")
        check.note(split, "blank texts left out", count)
        rows, found = select_rows(rows, np.flatnonzero(found != BLANK)), found[found != BLANK]
    rows = check.drop(
        split,
        where,
        rows,
        found > 0,
        lambda index: PROBLEMS[found[index]].format(column=column),
        hint="fill it in, remove it, or ",
    )
    return rows if _is_text(rows, column) else _as_text(rows, column)


def _problems(where: str, rows: Dataset, column: str) -> np.ndarray:
    """Return what is wrong with each cell, 0 for nothing."""
    if not _is_text(rows, column):
        return _mixed_problems(where, rows, column)
    found = [np.zeros(0, np.int8)]
    for cells in arrow_column(rows, column).chunks:  # a part at a time: texts without blanks are new ones
        blank = pc.fill_null(pc.equal(pc.utf8_trim_whitespace(cells), ""), False)
        found.append(np.select([pc.is_null(cells), blank], [np.int8(NULL), np.int8(BLANK)], np.int8(0)))
    return np.concatenate(found)


def _mixed_problems(where: str, rows: Dataset, column: str) -> np.ndarray:
    """Return the same for a column of different types, as .json files may have."""
    feature = rows.features[column]
    if type(feature).__name__ != "Json":
        raise ValueError(f"{where}: column {column!r} must hold text, not {getattr(feature, 'dtype', feature)}")
    found = []
    for cell in rows[column]:
        kind = 0 if isinstance(cell, str) and cell.strip() else BLANK
        found.append(NULL if cell is None else kind if isinstance(cell, str) else NOT_TEXT)
    return np.array(found)


def _is_text(rows: Dataset, column: str) -> bool:
    return getattr(rows.features[column], "dtype", None) in ("string", "large_string")


def _as_text(rows: Dataset, column: str) -> Dataset:
    cells = list(rows[column])
    return rows.remove_columns(column).add_column(column, cells, feature=Value("string"))
