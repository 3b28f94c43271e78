"""Reading .csv and .tsv files as Python's `csv` reads them when it is strict."""

import csv
import re
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Any

from .opening import LINES, PROBLEM, ROW, Batch, BatchSize, ReadOptions, check_columns, format_of, open_text

LARGEST_CELL = 1 << 26
"""Characters of a cell; a longer one is a quotation mark that was never closed."""
LINE_BREAK = re.compile(r"\r\n|\r|\n")


def read_csv(path: Path, columns: Mapping[str, str], options: ReadOptions) -> Iterator[Batch]:
    """Yield the rows of a file whose first row names its columns; empty lines are no rows.

    Raises:
        ValueError: A column is missing, or a quotation mark makes one row of several lines that cannot be read.
    """
    separator = options.separator or ("\t" if format_of(path) == ".tsv" else ",")
    marks = (options.quoting or ("none" if format_of(path) == ".tsv" else "minimal")) == "minimal"
    csv.field_size_limit(max(csv.field_size_limit(), LARGEST_CELL))
    with open_text(path, newline="") as lines:
        reader = csv.reader(
            lines, delimiter=separator, quoting=csv.QUOTE_MINIMAL if marks else csv.QUOTE_NONE, strict=True
        )
        header = _header(path, reader)
        places = _places(path, header, columns, separator)
        for first, rows, problem in _rows(path, reader):
            yield _batch(first, rows, problem, places, len(header), separator)


def _header(path: Path, reader: Any) -> list[str]:
    try:
        header = next((cells for cells in reader if cells), None)
    except csv.Error as error:
        raise ValueError(f"{path}, line {reader.line_num}: {_quotes(error)}") from error
    if header is None:
        raise ValueError(f"{path} has no rows")
    return header


def _places(path: Path, header: list[str], columns: Mapping[str, str], separator: str) -> dict[str, int]:
    """Return where the needed columns are."""
    if "turns_column" in columns:
        raise ValueError(f"{path}: --turns_column needs lists, which are in .jsonl, .json and .parquet files")
    others = [sign for sign in ",;\t|" if sign != separator and sign in header[0]] if len(header) == 1 else []
    check_columns(str(path), header, columns, f"; or is it --csv_separator {others[0]!r}?" if others else "")
    return {name: header.index(name) for name in columns.values()}


def _rows(path: Path, reader: Any) -> Iterator[tuple[int, list[list[str]], str | None]]:
    """Yield batches of rows that are not empty: the number of the first, the rows, and what is wrong with the last."""
    size, number = BatchSize(), 1
    while True:
        found: list[list[str]] = []
        problem, line = None, reader.line_num
        try:
            found.extend(islice(reader, size.rows))  # which keeps those before an error
        except csv.Error as error:
            first = line + sum(map(_height, found)) + 1
            row = number + sum(map(bool, found))
            if reader.line_num > first:  # nobody knows which of these lines are rows
                raise ValueError(f"{path}, row {row}, lines {first} to {reader.line_num}: {_quotes(error)}") from error
            problem = f"line {first}: {_quotes(error)}"
            found.append([""])
        if not found:
            return
        rows = [cells for cells in found if cells] if [] in found else found
        yield number, rows, problem
        number += len(rows)
        size.adapt(len(found), sum(map(len, chain.from_iterable(found))))


def _batch(
    first: int, rows: list[list[str]], last: str | None, places: dict[str, int], width: int, separator: str
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
        **{name: [cells[place] for cells in rows] for name, place in places.items()},
        ROW: range(first, first + len(rows)),
        LINES: list(map(_height, rows)),
        PROBLEM: problems,
    }


def _height(cells: list[str]) -> int:
    """Return how many lines a row takes."""
    text = "".join(cells)
    return 1 + len(LINE_BREAK.findall(text)) if "\n" in text or "\r" in text else 1


def _quotes(error: csv.Error) -> str:
    return f"a quotation mark is not closed or not doubled ({error}); --csv_quoting none takes marks as text"
