"""Reading .json and .jsonl files as Python's `json` reads them."""

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Any

from .dialogue import dialogue_text
from .opening import PROBLEM, Batch, ReadOptions, check_columns, chunks, numbered, open_text

FIRST_ROWS = 1_000
"""Rows among which at least one must have each column."""

Parsed = tuple[Any, str, int]
"""A JSON value, its problem if that is not an object, and its number of characters, 0 if it has been read already."""


def read_jsonl(path: Path, columns: Mapping[str, str], options: ReadOptions) -> Iterator[Batch]:
    """Yield the rows of a file with an object per line; blank lines are skipped."""
    with open_text(path, newline="\n") as lines:
        yield from _batches(path, columns, _parsed_lines(lines))


def read_json(path: Path, columns: Mapping[str, str], options: ReadOptions) -> Iterator[Batch]:
    """Yield the rows of a file that holds a list of objects, a single one, or one per line."""
    with open_text(path, newline="\n") as file:
        text = file.read()
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        lines = text.split("\n")
        first = next(_parsed_lines(lines), (None, "", 0))[0]
        if not isinstance(first, dict):
            raise ValueError(f"{path} is not JSON ({error})") from error
        yield from _batches(path, columns, _parsed_lines(lines))
    else:
        rows = content if isinstance(content, list) else [content]
        yield from _batches(path, columns, ((row, "it is not a JSON object", 0) for row in rows))


def needed_cells(row: Mapping[str, Any], columns: Mapping[str, str]) -> tuple[dict[str, Any], str | None]:
    """Return the needed cells of a row as text, and what is wrong with the first that cannot be text.

    Args:
        row: The row; its cells may be structs.
        columns: The columns needed, by the option that names each.
    """
    cells: dict[str, Any] = {}
    problem = None
    for option, name in columns.items():
        if isinstance(cell := row.get(name), str) and cell.isascii() and option != "turns_column":
            cells[name] = cell  # as most are; the rest takes three times as long
            continue
        try:
            cells[name] = _as_text(option, _cell(row, name))
        except TypeError as error:
            cells[name], problem = None, problem or str(error)
    return cells, problem


def _cell(row: Mapping[str, Any], name: str) -> Any:
    """Return a cell of a row; `translation.en` reaches into a struct."""
    if name in row or "." not in name:
        return row.get(name)
    outer, inner = name.split(".", 1)
    struct = row.get(outer)
    return _cell(struct, inner) if isinstance(struct, Mapping) else None


def column_names(row: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return the names of the cells of a row, those in structs too."""
    names = [f"{prefix}{name}" for name in row]
    return names + [
        each for name, cell in row.items() if isinstance(cell, dict) for each in column_names(cell, f"{prefix}{name}.")
    ]


def _parsed_lines(lines: Iterable[str]) -> Iterator[Parsed]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield json.loads(line), f"line {number} is not a JSON object", len(line)
        except (ValueError, RecursionError) as error:
            yield None, f"line {number} is not JSON ({getattr(error, 'msg', error)})", len(line)


def _batches(path: Path, columns: Mapping[str, str], rows: Iterator[Parsed]) -> Iterator[Batch]:
    first = list(islice(rows, FIRST_ROWS))
    if any(isinstance(content, dict) for content, *_ in first):
        found = (name for content, *_ in first if isinstance(content, dict) for name in column_names(content))
        check_columns(str(path), list(dict.fromkeys(found)), columns)
    number = 1
    for chunk in chunks(chain(first, rows), lambda parsed: sum(length for *_, length in parsed)):
        batch = numbered(number, len(chunk))
        problems: list[str | None] = [None] * len(chunk)
        cells: dict[str, list[Any]] = {name: [None] * len(chunk) for name in columns.values()}
        for index, (content, problem, _) in enumerate(chunk):
            texts, problems[index] = needed_cells(content, columns) if isinstance(content, dict) else ({}, problem)
            for name, text in texts.items():
                cells[name][index] = text
        yield {**cells, **batch, PROBLEM: problems}
        number += len(chunk)


def _as_text(option: str, cell: Any) -> Any:
    """Return a cell as text: of turns, that of the dialogue.

    Raises:
        TypeError: For a cell of a type that the column does not take.
    """
    if option == "turns_column":
        return dialogue_text([_unicode("turn", turn) for turn in _turns(cell)])
    if cell is None:
        return None
    column = option.removesuffix("_column")
    if isinstance(cell, str):
        return _unicode(column, cell)
    if column in ("source", "target", "text"):
        raise TypeError(f"the {column} is not text")
    if column == "label" and not isinstance(cell, int):
        raise TypeError(f"{str(cell)[:60]} is not a label (a name or an integer is)")
    return str(cell)


def _turns(cell: Any) -> list[str]:
    turns = [turn.get("content") if isinstance(turn, dict) else turn for turn in cell] if isinstance(cell, list) else 0
    if not isinstance(turns, list) or not all(isinstance(turn, str) for turn in turns):
        raise TypeError(
            f"--turns_column must name lists of strings or of messages with content, not {str(cell)[:60]!r}"
        )
    return turns


def _unicode(column: str, text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:  # JSON can hold half of a surrogate pair
        raise TypeError(f"the {column} is not Unicode ({error.reason})") from None
    return text
