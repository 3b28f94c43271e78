"""Data files opened as text, in batches of bounded size, with errors that name the file."""

import gzip
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeVar

import pyarrow as pa

ROW, FILE, LINES, PROBLEM = "__row__", "__file__", "__lines__", "__problem__"
"""Columns of a row's number in its file, of the file where there are several, of the lines that the row takes there,
and of why it cannot be read."""

LARGEST_BATCH, BATCH_CHARACTERS = 1_000, 1 << 22
"""Rows of a batch, and characters that a batch is to have at most if it has several rows."""

Paths = tuple[Path, ...]
"""A file, or a text file and the file of its translations."""
Batch = dict[str, Sequence[Any]]
"""The needed columns of some rows, with `ROW`, `LINES` and `PROBLEM`."""
Quoting = Literal["minimal", "none"]
T = TypeVar("T")


@dataclass(frozen=True)
class ReadOptions:
    """How text files are read.

    Attributes:
        separator: The character between the cells of .csv and .tsv files; None is a comma, in .tsv files a tab.
        quoting: minimal: cells may be in quotation marks; none: quotation marks are text. None is minimal, for .tsv
            files none.
        sample_by: The unit of text in .txt files: line, paragraph, passage or document.
    """

    separator: str | None = None
    quoting: Quoting | None = None
    sample_by: str = "line"


def format_of(path: Path) -> str:
    """Return a file's extension without the .gz of a compressed one."""
    return Path(path.stem if path.suffix.lower() == ".gz" else path.name).suffix.lower()


def open_text(path: Path, newline: str) -> Any:
    """Open a text file, compressed or not, without its byte order mark."""
    return _opener(path)(path, "rt", encoding="utf-8-sig", newline=newline)


@contextmanager
def named_errors(paths: Paths) -> Iterator[None]:
    """Turn errors in the bytes of files into a ValueError that names the file."""
    where = " or ".join(map(str, paths))
    try:
        yield
    except UnicodeDecodeError as error:
        bad = next((f"{path} is not UTF-8: line {line}" for path in paths if (line := _bad_line(path))), where)
        raise ValueError(f"{bad}: {error.reason}") from error
    except (OSError, EOFError, zlib.error, pa.ArrowException) as error:
        raise ValueError(f"{where} cannot be read as {paths[0].suffix}: {error}") from error


def chunks(items: Iterator[T], characters: Callable[[Iterable[T]], int]) -> Iterator[list[T]]:
    """Yield lists of items: of as many as have about `BATCH_CHARACTERS`."""
    size = BatchSize()
    while chunk := list(islice(items, size.rows)):
        size.adapt(len(chunk), characters(chunk))
        yield chunk


class BatchSize:
    """How many rows to read at once, by the length of those read before."""

    def __init__(self) -> None:
        self.rows = 1  # it may be a whole document

    def adapt(self, rows: int, characters: int) -> None:
        fitting = max(1, BATCH_CHARACTERS * rows // max(1, characters))
        self.rows = min(LARGEST_BATCH, 2 * self.rows, fitting)


def numbered(first: int, size: int) -> Batch:
    """Return the columns `ROW`, `LINES` and `PROBLEM` of rows that take a line each and can be read."""
    return {ROW: range(first, first + size), LINES: [1] * size, PROBLEM: [None] * size}


def check_columns(where: str, found: Sequence[str], columns: Mapping[str, str], hint: str = "") -> None:
    """Raise ValueError, naming the option to set, when a needed column is missing or there twice."""
    for option, name in columns.items():
        if name not in found:
            listed = ", ".join(found)
            raise ValueError(f"{where} has no column {name!r} (--{option}); its columns are: {listed}{hint}")
        if found.count(name) > 1:
            raise ValueError(f"{where} has {found.count(name)} columns {name!r} (--{option}): rename all but one")


def _opener(path: Path) -> Callable[..., Any]:
    return gzip.open if path.suffix.lower() == ".gz" else open


def _bad_line(path: Path) -> int | None:
    """Return the number of the first line that is not UTF-8."""
    with _opener(path)(path, "rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                line.decode()
            except UnicodeDecodeError:
                return number
    return None
