"""Reading .csv and .tsv files as Python's `csv` reads them when it is strict."""

import csv
import re
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Any

from .opening import LINES, PROBLEM, ROW, Batch, BatchSize, ReadOptions, check_columns, format_of, open_text

LARGEST_CELL = 1 << 26
"""Characters of a cell; a longer one has a quotation mark that was never closed."""
LINE_BREAK = re.compile(r"\r\n|\r|\n")


def read_csv(path: Path, columns: Mapping[str, str], options: ReadOptions) -> Iterator[Batch]:
    """Yield the rows of a file whose first row names its columns; empty lines are skipped.

    Raises:
        ValueError: A column is missing, or a quotation mark that is not closed spans several lines.
    """
    separator = options.separator or ("\t" if format_of(path) == ".tsv" else ",")
    quoted = (options.quoting or ("none" if format_of(path) == ".tsv" else "minimal")) == "minimal"
    csv.field_size_limit(max(csv.field_size_limit(), LARGEST_CELL))
    with open_text(path, newline="") as lines:
        reader = csv.reader(
            lines, delimiter=separator, quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE, strict=True
        )
        header = _header(path, reader)
        positions = _positions(path, header, columns, separator)
        for first, rows, problem in _rows(path, reader):
            yield _batch(first, rows, problem, positions, len(header), separator)


def _header(path: Path, reader: Any) -> list[str]:
    try:
        header = next((cells for cells in reader if cells), None)
    except csv.Error as error:
        raise ValueError(f"{path}, line {reader.line_num}: {_quotes(error)}") from error
    if header is None:
        raise ValueError(f"{path} has no rows")
    return header


def _positions(path: Path, header: list[str], columns: Mapping[str, str], separator: str) -> dict[str, int]:
    """Return the position of each needed column."""
    if "turns_column" in columns:
        raise ValueError(f"{path}: --turns_column needs lists, which are in .jsonl, .json and .parquet files")
    others = (
        [character for character in ",;\t|" if character != separator and character in header[0]]
        if len(header) == 1
        else []
    )
    check_columns(str(path), header, columns, f"; or is it --csv_separator {others[0]!r}?" if others else "")
    return {name: header.index(name) for name in columns.values()}


def _rows(path: Path, reader: Any) -> Iterator[tuple[int, list[list[str]], str | None]]:
    """Yield batches of rows that are not empty: the number of the first, the rows, and the problem of the last."""
    size, number = BatchSize(), 1
    while True:
        read: list[list[str]] = []
        problem, line = None, reader.line_num
        try:
            read.extend(islice(reader, size.rows))  # keeps the rows before an error
        except csv.Error as error:
            first = line + sum(map(_height, read)) + 1
            row = number + sum(map(bool, read))
            if reader.line_num > first:  # it is not known which of these lines are rows
                raise ValueError(f"{path}, row {row}, lines {first} to {reader.line_num}: {_quotes(error)}") from error
            problem = f"line {first}: {_quotes(error)}"
            read.append([""])
        if not read:
            return
        rows = [cells for cells in read if cells] if [] in read else read
        yield number, rows, problem
        number += len(rows)
        size.adapt(len(read), sum(map(len, chain.from_iterable(read))))


def _batch(
    first: int, rows: list[list[str]], last: str | None, positions: dict[str, int], width: int, separator: str
) -> Batch:
    problems: list[str | None] = [None] * len(rows)
    if last is not None:
        problems[-1], rows[-1] = last, [""] * width
    if not set(map(len, rows)) <= {width}:
        for index, cells in enumerate(rows):
            if len(cells) != width:
                problems[index] = f"it has {len(cells)} cells and the header {width}, with {separator!r} between cells"
                rows[index] = [""] * width
    return {
        **{name: [cells[position] for cells in rows] for name, position in positions.items()},
        ROW: range(first, first + len(rows)),
        LINES: list(map(_height, rows)),
        PROBLEM: problems,
    }


def _height(cells: list[str]) -> int:
    """Return the number of lines of a row."""
    text = "".join(cells)
    return 1 + len(LINE_BREAK.findall(text)) if "\n" in text or "\r" in text else 1


def _quotes(error: csv.Error) -> str:
    return f"a quotation mark is not closed or not doubled ({error}); --csv_quoting none takes marks as text"
