"""The user's data files: which they are, and their rows as a `Dataset` that lies on disk."""

import glob
import hashlib
import inspect
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
from datasets import Dataset, concatenate_datasets
from datasets import IterableDataset as Stream
from datasets.utils import tqdm

from vanillaformer.console.reporting import report

from . import dialogue, opening, readers
from .arrow_files import arrow_file
from .opening import FILE, Paths, ReadOptions, format_of
from .readers import FORMATS, READERS, features_of, read_batches, read_tables

CODE: tuple[Any, ...] = (opening, dialogue, readers, *READERS.values())
READING = sorted({inspect.getfile(code) for code in CODE})
"""The modules that decide what rows are read from a file."""
REPORTED_ROWS = 1_000_000
"""Rows of a file after which a line is printed where there are no progress bars."""


def find_files(option: str, names: Sequence[str], *, parallel: bool = False) -> list[Path]:
    """Return the data files that match names and patterns (`part-*.csv.gz`); the name of a file is not a pattern.

    Parallel texts are often named by their language, such as `train.en`: with `parallel`, unknown extensions are text.

    Raises:
        ValueError: Naming the option and the file: it is missing, empty, named twice, or its extension is unknown.
    """
    paths = [path for name in names for path in _matches(option, name)]
    for path, count in Counter(path.resolve() for path in paths).items():
        if count > 1:
            raise ValueError(f"--{option}: {path} is named {count} times")
    for path in paths:
        if not (parallel or format_of(path) in READERS or path.suffix.lower() == ".parquet"):
            raise ValueError(
                f"--{option} '{path}': unknown extension {path.suffix!r}, use {', '.join(FORMATS)}; one side of "
                "parallel texts may have any, given together with the other one"
            )
        if path.stat().st_size == 0:
            raise ValueError(f"--{option} '{path}': the file is empty")
    return paths


def named(files: Sequence[Paths]) -> str:
    """Return what to call files in messages."""
    more = len(files) - 1
    return str(files[0][0]) + (f" and {more} more file{'s' if more > 1 else ''}" if more else "")


def load_files(files: Sequence[Paths], columns: Mapping[str, str], options: ReadOptions) -> Dataset:
    """Return the rows of files, one after the other, with the columns that `readers` adds.

    Where there are several files the column `FILE` names each row's.

    Args:
        files: Files, or pairs of parallel text files.
        columns: The columns needed, by the option that names each: {"source_column": "en"}.
        options: How text files are read.

    Raises:
        ValueError: Naming the file, the line where possible, and why it cannot be read.
    """
    parts = []
    for paths in files:
        schema, read = features_of(paths, columns).arrow_schema, partial(_tables, paths, columns, options)
        parts.append(arrow_file(f"rows-{_key(paths, columns, options)}", schema, read))
    if len(parts) == 1:
        return parts[0]
    parts = [part.add_column(FILE, [str(paths[0])] * len(part)) for paths, part in zip(files, parts)]
    try:
        return concatenate_datasets(parts)
    except ValueError as error:  # .parquet files have types of their own
        raise ValueError(f"{named(files)} do not have the same types of columns: {error}") from error


def stream_files(files: Sequence[Paths], columns: Mapping[str, str], options: ReadOptions) -> Stream:
    """Return the same rows as a stream; its shuffling reads the files in any order."""
    known = features_of(files[0], columns) if format_of(files[0][0]) == ".parquet" else None
    several = len(files) > 1
    if known is not None and several:
        known[FILE] = datasets.Value("string")
    keywords = {"files": list(files), "columns": dict(columns), "options": options, "several": several}
    return Stream.from_generator(_stream_rows, features=known, gen_kwargs=keywords)


def _stream_rows(
    files: list[Paths], columns: Mapping[str, str], options: ReadOptions, several: bool
) -> Iterator[dict[str, Any]]:
    for paths in files:
        more = {FILE: str(paths[0])} if several else {}
        if format_of(paths[0]) == ".parquet":
            for table in read_tables(paths, columns, options):
                yield from (row | more for row in table.to_pylist())
        else:
            for batch in read_batches(paths, columns, options):
                yield from (dict(zip(batch, cells)) | more for cells in zip(*batch.values()))


def _matches(option: str, name: str) -> list[Path]:
    if Path(name).is_file():
        return [Path(name)]
    matches = [path for path in map(Path, sorted(glob.glob(name, recursive=True))) if path.is_file()]
    if not matches:
        raise ValueError(
            f"--{option} {name!r}: there is no such file{', nor one that matches' * glob.has_magic(name)}"
        )
    return matches


def _key(paths: Paths, columns: Mapping[str, str], options: ReadOptions) -> str:
    """Return a hash of what the rows depend on."""
    code = [Path(module).read_bytes() for module in READING]
    asked = repr((datasets.__version__, columns, options, [format_of(path) for path in paths]))
    digest = hashlib.blake2b(b"".join([*code, asked.encode()]), digest_size=16)
    for path in paths:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "blake2b").digest())
    return digest.hexdigest()


def _tables(paths: Paths, columns: Mapping[str, str], options: ReadOptions) -> Iterator[pa.Table]:
    """Yield the rows of a file, and say how far it is read."""
    count = 0
    with tqdm(unit=" rows", desc=f"Reading {paths[0].name}") as bar:
        for table in read_tables(paths, columns, options):
            yield table
            bar.update(len(table))
            if bar.disable and count // REPORTED_ROWS < (count + len(table)) // REPORTED_ROWS:
                report(f"{paths[0]}: {count + len(table):,} rows read.")
            count += len(table)
