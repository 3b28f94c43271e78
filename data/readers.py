"""Data files of every format as tables of the columns asked for; loading and streaming see the same rows."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, islice, zip_longest
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Features, Value

from .csv_files import read_csv
from .json_files import read_json, read_jsonl
from .opening import (
    LARGEST_BATCH,
    LINES,
    PROBLEM,
    ROW,
    Batch,
    Paths,
    ReadOptions,
    check_columns,
    chunks,
    format_of,
    named_errors,
    numbered,
    open_text,
)

PASSAGE, PART, LARGEST_DOCUMENT = 1 << 11, 1 << 20, 1 << 24
"""Characters of a passage, of a part of a very large document, and of the largest undivided document."""


def read_batches(paths: Paths, columns: Mapping[str, str], options: ReadOptions) -> Iterator[Batch]:
    """Yield the rows of a text file in batches.

    Args:
        paths: The file, or two parallel ones.
        columns: The columns needed, by the option that names each: {"source_column": "en"}.
        options: How to read it.

    Raises:
        ValueError: Naming the file, the line where possible, and why it cannot be read.
    """
    with named_errors(paths):
        if len(paths) == 2:
            yield from _parallel(paths[0], paths[1], columns)
        else:
            yield from READERS[format_of(paths[0])](paths[0], columns, options)


def read_tables(paths: Paths, columns: Mapping[str, str], options: ReadOptions) -> Iterator[pa.Table]:
    """Yield the rows of a file of any format in tables of bounded size; raises as `read_batches` does."""
    if format_of(paths[0]) == ".parquet":
        yield from _parquet_tables(paths[0], columns)
        return
    schema = features_of(paths, columns).arrow_schema
    for batch in read_batches(paths, columns, options):
        arrays = [pa.array(batch[field.name], field.type) for field in schema]
        yield pa.Table.from_arrays(arrays, schema=schema)


def features_of(paths: Paths, columns: Mapping[str, str]) -> Features:
    """Return the features of the tables of a file: texts, or what a .parquet file says."""
    reserved = {ROW: Value("int64"), LINES: Value("int64"), PROBLEM: Value("string")}
    if format_of(paths[0]) == ".parquet":
        return Features({**_parquet_features(paths[0], columns), **reserved})
    return Features({**dict.fromkeys(columns.values(), Value("string")), **reserved})


def _read_text(path: Path, columns: Mapping[str, str], options: ReadOptions) -> Iterator[Batch]:
    check_columns(f"{path} (a .txt file)", [columns.get("text_column", "text")], columns)
    with open_text(path, newline="\n") as lines:
        number = 1
        for chunk in chunks(TEXTS[options.sample_by](lines), lambda texts: sum(map(len, texts))):
            yield {**dict.fromkeys(columns.values(), chunk), **numbered(number, len(chunk))}
            number += len(chunk)


def _lines(file: Iterable[str]) -> Iterator[str]:
    """Yield lines without their ends, which are LF or CR LF; nothing else separates lines."""
    for line in file:
        yield line[:-2] if line.endswith("\r\n") else line.removesuffix("\n")


def _paragraphs(file: Iterable[str]) -> Iterator[str]:
    """Yield the texts between empty lines."""
    buffer: list[str] = []
    for line in _lines(file):
        if line:
            buffer.append(line)
        elif buffer:
            yield "\n".join(buffer)
            buffer = []
    if buffer:
        yield "\n".join(buffer)


def _passages(file: Iterable[str], size: int = PASSAGE) -> Iterator[str]:
    """Yield consecutive lines, with their line breaks, of about `size` characters together."""
    buffer: list[str] = []
    length = 0
    for line in file:
        line = f"{line[:-2]}\n" if line.endswith("\r\n") else line
        for start in range(0, len(line), size):
            buffer.append(line[start : start + size])
            length += len(buffer[-1])
            if length >= size:
                yield "".join(buffer)
                buffer, length = [], 0
    if buffer:
        yield "".join(buffer)


def _document(file: Iterable[str]) -> Iterator[str]:
    """Yield a file as one text, or a very large one in parts whose tokens fit into memory."""
    parts = _passages(file, PART)
    first = list(islice(parts, LARGEST_DOCUMENT // PART + 1))
    yield from ["".join(first)] if len(first) * PART <= LARGEST_DOCUMENT else chain(first, parts)


def _parallel(source: Path, target: Path, columns: Mapping[str, str]) -> Iterator[Batch]:
    names = list(columns.values())
    check_columns(f"{source} (a text file)", names[:2], columns)
    with open_text(source, newline="\n") as sources, open_text(target, newline="\n") as targets:
        number = 1
        lines = _lines(sources), _lines(targets)
        for chunk in chunks(
            zip_longest(*lines), lambda pairs: sum(len(line or "") for pair in pairs for line in pair)
        ):
            sides = list(zip(*chunk))
            if None in chunk[-1]:
                counts = [
                    number - 1 + len(side) - side.count(None) + sum(1 for _ in rest)
                    for side, rest in zip(sides, lines)
                ]
                raise ValueError(f"{source} has {counts[0]} lines and {target} has {counts[1]}: they must be parallel")
            yield {**dict(zip(names, sides)), **numbered(number, len(chunk))}
            number += len(chunk)


def _parquet_features(path: Path, columns: Mapping[str, str]) -> Features:
    with named_errors((path,)):
        schema = pq.read_schema(path)
    types = [field.type.value_type if pa.types.is_dictionary(field.type) else field.type for field in schema]
    features = Features.from_arrow_schema(pa.schema(list(zip(schema.names, types)), metadata=schema.metadata))
    inner = [name for name in features.flatten() if name not in features]
    check_columns(str(path), [*schema.names, *inner], columns)
    outer = [name if name in features else name.split(".", 1)[0] for name in columns.values()]
    return Features({name: features[name] for name in outer})


def _parquet_tables(path: Path, columns: Mapping[str, str]) -> Iterator[pa.Table]:
    schema = features_of((path,), columns).arrow_schema
    number = 1
    with named_errors((path,)), pq.ParquetFile(path) as file:
        for batch in file.iter_batches(LARGEST_BATCH, columns=schema.names[:-3]):
            more = {
                name: pa.array(cells, schema.field(name).type) for name, cells in numbered(number, len(batch)).items()
            }
            cells = {name: batch.column(name) for name in schema.names[:-3]}
            yield pa.table({**cells, **more}).cast(schema)
            number += len(batch)


READERS: dict[str, Callable[[Path, Mapping[str, str], ReadOptions], Iterator[Batch]]] = {
    ".csv": read_csv,
    ".tsv": read_csv,
    ".json": read_json,
    ".jsonl": read_jsonl,
    ".txt": _read_text,
}
TEXTS: dict[str, Callable[[Iterable[str]], Iterator[str]]] = {
    "line": _lines,
    "paragraph": _paragraphs,
    "passage": _passages,
    "document": _document,
}
FORMATS = (*READERS, ".parquet", *(f"{name}.gz" for name in READERS))
