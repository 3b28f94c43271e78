"""The user's data files: finding them, and reading their rows as a `Dataset` on disk or as a stream."""

import hashlib
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from math import inf
from pathlib import Path
from typing import Any, TypeVar

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset, Features, Value, concatenate_datasets

from . import dialogue, formats
from .caching import arrow_file
from .formats import FILE, READERS, ROW, Columns, Paths, ReadOptions, Row, check_columns, format_of, open_file

T = TypeVar("T")
Rows = Iterator[dict[str, Any]]
MAX_BATCH_ROWS, MAX_BATCH_CHARACTERS = 1_000, 1 << 22
"""Maximum rows of a table, and characters from which on no row is added to it."""
PART_BYTES, MAX_PARTS = 1 << 20, 1 << 14
"""Minimum bytes of a part of a file of lines in a stream, and approximate maximum of parts of all files."""
READING = [Path(__file__), *(Path(str(module.__file__)) for module in (formats, dialogue))]
"""The modules on which the rows of a file depend."""


def find_files(option: str, names: Sequence[str], *, parallel: bool = False) -> list[Path]:
    """Return the data files that match names and patterns (`part-*.csv.gz`); the name of a file is not a pattern.

    Parallel texts are often named by their language, such as `train.en`: with `parallel`, unknown extensions are text.
    """
    paths = [path for name in names for path in formats.matching_files(option, name)]
    for path, count in Counter(path.resolve() for path in paths).items():
        if count > 1:
            raise ValueError(f"--{option}: {path} is named {count} times")
    for path in paths:
        if not (parallel or format_of(path) in READERS or path.suffix.lower() == ".parquet"):
            raise ValueError(
                f"--{option} '{path}': unknown extension {path.suffix!r}, use {', '.join(formats.FORMATS)}; "
                "parallel text files may have any extension, if both sides are given"
            )
        if path.stat().st_size == 0:
            raise ValueError(f"--{option} '{path}': the file is empty")
    return paths


def named(files: Sequence[Paths]) -> str:
    more = len(files) - 1
    return str(files[0][0]) + (f" and {more} more file{'s' if more > 1 else ''}" if more else "")


def load_files(files: Sequence[Paths], columns: Columns, options: ReadOptions) -> Dataset:
    """Return the concatenated rows of files, with the columns that `read_tables` adds.

    If there are several files, the column `FILE` names each row's. Raises as `read_tables` does.
    """
    parts = []
    for paths in files:
        asked = repr((datasets.__version__, columns, options, [format_of(path) for path in paths]))
        key = hashlib.blake2b(asked.encode(), digest_size=16)
        for path in (*READING, *paths):
            with path.open("rb") as file:
                key.update(hashlib.file_digest(file, "blake2b").digest())
        tables = partial(read_tables, paths, columns, options)
        parts.append(arrow_file(f"rows-{key.hexdigest()}", features_of(paths, columns).arrow_schema, tables))
    if len(parts) == 1:
        return parts[0]
    parts = [part.add_column(FILE, [str(paths[0])] * len(part)) for paths, part in zip(files, parts)]
    try:
        return concatenate_datasets(parts)
    except ValueError as error:  # .parquet files may differ in types
        raise ValueError(f"{named(files)} do not have the same types of columns: {error}") from error


@dataclass(frozen=True)
class Part:
    """Pieces of a stream, read one after the other."""

    pieces: tuple[Any, ...]
    size: int  # in bytes, or any other unit
    skip: int = 0  # rows that are left out before the others
    stop: int | None = None  # the number of the row at which it ends


@dataclass(frozen=True)
class Parts:
    """The rows of a stream, in parts that can be read in any order."""

    open: Callable[[Any], Iterable[dict[str, Any]]]  # the rows of a piece
    parts: tuple[Part, ...]
    features: Features | None = None

    def __iter__(self) -> Rows:
        return chain.from_iterable(map(self.read, self.parts))

    def read(self, part: Part) -> Rows:
        return islice(chain.from_iterable(map(self.open, part.pieces)), part.skip, part.stop)

    def without_first(self, count: int) -> "Parts":
        """Return the rows after the first `count`, which are read to be counted."""
        parts = list(self.parts)
        while parts and count:
            found = sum(1 for _ in islice(self.read(parts[0]), count + 1))
            parts = parts[1:] if found <= count else [replace(parts[0], skip=parts[0].skip + count), *parts[1:]]
            count -= min(found, count)
        return replace(self, parts=tuple(parts))

    def first(self, count: int) -> "Parts":
        """Return the first rows, as one part."""
        pieces, skip = chain.from_iterable(part.pieces for part in self.parts), sum(part.skip for part in self.parts)
        return replace(self, parts=(Part(tuple(pieces), 1, skip, skip + count),))


def stream_files(files: Sequence[Paths], columns: Columns, options: ReadOptions) -> Parts:
    """Return the rows of files as a stream, divided into parts where a format can be read from any place."""
    features = features_of(files[0], columns)
    if any(features_of(paths, columns) != features for paths in files[1:]):
        raise ValueError(f"{named(files)} do not have the same types of columns")
    bytes_of_all = sum(path.stat().st_size for paths in files for path in paths)
    step = max(PART_BYTES, bytes_of_all // MAX_PARTS)
    parts = [Part(((paths, span),), size) for paths in files for span, size in _spans(paths, columns, options, step)]
    read = partial(_stream_rows, columns=columns, options=options, several=len(parts) > 1)
    return Parts(read, tuple(parts), features)


def _spans(paths: Paths, columns: Columns, options: ReadOptions, step: int) -> Iterator[tuple[Any, int]]:
    """Yield the parts of a file, each with its size: row groups, or ranges of bytes if each line is a row."""
    path, kind = paths[0], format_of(paths[0])
    size = sum(each.stat().st_size for each in paths)
    if kind == ".parquet":
        with _named_errors(paths):
            groups = pq.read_metadata(path)
        yield from (((n, n + 1), groups.row_group(n).total_byte_size) for n in range(groups.num_row_groups))
        return
    lines = kind == ".jsonl" or (kind == ".txt" and options.sample_by == "line" and "tokens_column" not in columns)
    if lines and path.suffix.lower() == kind and len(paths) == 1:
        yield from (((first, min(size, first + step)), min(step, size - first)) for first in range(0, size, step))
    else:
        yield None, size


def _stream_rows(piece: tuple[Paths, Any], *, columns: Columns, options: ReadOptions, several: bool) -> Rows:
    paths, span = piece
    begins = f" from byte {span[0]:,}" if span and span[0] and format_of(paths[0]) != ".parquet" else ""
    more = {FILE: f"{paths[0]}{begins}"} if several else {}
    for table in read_tables(paths, columns, replace(options, span=span)):
        yield from (row | more for row in table.to_pylist()) if more else table.to_pylist()


def read_tables(paths: Paths, columns: Columns, options: ReadOptions) -> Iterator[pa.Table]:
    """Yield the rows of a file, or of two parallel ones, in small tables; a ValueError names the file and the line."""
    schema, number = features_of(paths, columns).arrow_schema, 1
    with _named_errors(paths):
        if format_of(paths[0]) == ".parquet":
            parts = _parquet_columns(paths[0], schema.names[:-3], options.span)
            before = range(options.span[0] if options.span else 0)
            number += sum(pq.read_metadata(paths[0]).row_group(group).num_rows for group in before)
        else:
            read = formats.parallel_rows if len(paths) == 2 else READERS[format_of(paths[0])]
            parts = _text_columns(read(paths, columns, options), len(schema) - 3)
        for *cells, lines, problems in parts:
            numbers = range(number, number := number + len(lines))
            arrays = [
                pa.array(values, field.type) if isinstance(values, Sequence) else values.cast(field.type)
                for values, field in zip([*cells, numbers, lines, problems], schema)
            ]
            yield pa.Table.from_arrays(arrays, schema=schema)


def features_of(paths: Paths, columns: Columns) -> Features:
    """Return the features of the tables of a file: texts, or those of a .parquet file."""
    features: dict[str, Any] = dict.fromkeys(columns.values(), Value("string"))
    if format_of(paths[0]) == ".parquet":
        with _named_errors(paths):
            schema = pq.read_schema(paths[0])
        types = [field.type.value_type if pa.types.is_dictionary(field.type) else field.type for field in schema]
        fields = [each for each in zip(schema.names, types) if not pa.types.is_map(each[1])]  # unknown to `datasets`
        found = Features.from_arrow_schema(pa.schema(fields, metadata=schema.metadata))
        inner = [name for name in found.flatten() if name not in found]
        check_columns(str(paths[0]), [*(name for name, _ in fields), *inner], columns)
        outer = [name if name in found else name.split(".", 1)[0] for name in columns.values()]
        features = {name: found[name] for name in outer}
    return Features({**features, ROW: Value("int64"), formats.LINES: Value("int64"), formats.PROBLEM: Value("string")})


@contextmanager
def _named_errors(paths: Paths) -> Iterator[None]:
    """Turn errors in the bytes of files into a ValueError that names the file."""
    names = " or ".join(map(str, paths))
    try:
        yield
    except UnicodeDecodeError as error:
        bad = next((f"{path} is not UTF-8: line {line}" for path in paths if (line := _bad_line(path))), names)
        raise ValueError(f"{bad}: {error.reason}") from error
    except (OSError, EOFError, zlib.error, pa.ArrowException) as error:
        raise ValueError(f"{names} cannot be read as {paths[0].suffix}: {error}") from error


def _bad_line(path: Path) -> int | None:
    """Return the number of the first line that is not UTF-8."""
    with open_file(path, "rb") as lines:
        bad = (number for number, line in enumerate(lines, start=1) if line.decode(errors="ignore").encode() != line)
        return next(bad, None)


def batched(items: Iterable[T], characters: Callable[[list[T]], int], size: float = inf) -> Iterator[list[T]]:
    """Yield lists of items: of at most `size` and `MAX_BATCH_ROWS`, and of about `MAX_BATCH_CHARACTERS`."""
    items, rows = iter(items), 1  # an item may be a whole document
    while batch := list(islice(items, int(min(rows, size)))):
        yield batch
        fitting = MAX_BATCH_CHARACTERS * len(batch) // max(1, characters(batch))
        rows = max(1, min(MAX_BATCH_ROWS, 2 * rows, fitting))


def _text_columns(rows: Iterator[Row], width: int) -> Iterator[list[Any]]:
    """Yield the columns of batches of rows: cells, numbers of lines and problems."""
    for batch in batched(rows, lambda batch: sum(len(cell) for cells, *_ in batch for cell in cells or () if cell)):
        cells, lines, problems = zip(*batch)
        yield [*zip(*(values or [None] * width for values in cells)), lines, problems]


def _parquet_columns(path: Path, names: list[str], groups: tuple[int, int] | None) -> Iterator[list[Any]]:
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(MAX_BATCH_ROWS, range(*groups) if groups else None, columns=names):
            yield [*(batch.column(name) for name in names), [1] * len(batch), [None] * len(batch)]
