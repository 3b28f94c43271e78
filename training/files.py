"""Reading local data files, with errors that name the file."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from datasets import Dataset, Features, Value, load_dataset

LOADERS = {".csv": "csv", ".tsv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet", ".txt": "text"}


def check_file(option: str, name: str) -> Path:
    """Return the path of a data file.

    Raises:
        ValueError: When there is no such file, it is empty, or its extension is not one we read.
    """
    path = Path(name)
    if not path.is_file():
        raise ValueError(f"--{option} {name!r}: there is no such file")
    if path.suffix.lower() not in LOADERS:
        raise ValueError(f"--{option} {name!r}: unknown extension {path.suffix!r}, use {', '.join(LOADERS)}")
    if path.stat().st_size == 0:
        raise ValueError(f"--{option} {name!r}: the file is empty")
    return path


def read_file(path: Path, columns: Mapping[str, str], *, sample_by: str = "line", skip_bad: bool = False) -> Dataset:
    """Read a file of any of the formats in `LOADERS`.

    Args:
        path: The file.
        columns: The columns needed, by the option that names each: {"source_column": "en"}.
        sample_by: What one row of a .txt file is: line, paragraph or document.
        skip_bad: Return lines of .csv, .tsv and .jsonl files that cannot be read as rows without content, to be left
            out later, where they are counted.

    Raises:
        ValueError: Naming the file, the line where possible, and what is wrong with it.
    """
    loader, options = reader_of(path, columns, sample_by)
    try:
        return load_dataset(loader, data_files=str(path), split="train", **options)
    except Exception as error:  # the loaders raise whatever their library raises
        if skip_bad and path.suffix.lower() in DAMAGED:
            return DAMAGED[path.suffix.lower()](path, columns)
        where = _first_bad_line(path) if path.suffix.lower() == ".jsonl" else ""
        raise ValueError(f"{path} cannot be read as {path.suffix}{where}: {error.__cause__ or error}") from error


def reader_of(path: Path, columns: Mapping[str, str], sample_by: str = "line") -> tuple[str, dict[str, Any]]:
    """Return the name and the options of the loader for a file."""
    loader = LOADERS[path.suffix.lower()]
    if loader == "csv":
        return loader, _csv_options(path, columns)
    return loader, {"sample_by": sample_by} if loader == "text" else {}


def read_parallel(source: Path, target: Path, columns: Mapping[str, str]) -> Dataset:
    """Read two text files whose lines are translations of each other.

    Raises:
        ValueError: When they do not have the same number of lines, or are not UTF-8.
    """
    lines = [_lines(path) for path in (source, target)]
    if len(lines[0]) != len(lines[1]):
        raise ValueError(f"{source} has {len(lines[0])} lines and {target} has {len(lines[1])}: they must be parallel")
    return Dataset.from_dict(dict(zip(columns.values(), lines)))


def check_columns(where: str, found: Sequence[str], columns: Mapping[str, str]) -> None:
    """Raise ValueError, naming the option to set, when a needed column is not among those found."""
    for option, name in columns.items():
        if name not in found:
            raise ValueError(f"{where} has no column {name!r} (--{option}); its columns are: {', '.join(found)}")


def _csv_options(path: Path, columns: Mapping[str, str]) -> dict[str, Any]:
    """Read columns as they are written: 007 is not a number, NA and null are words.

    All of them: told to read some only, pandas would take no notice of a row with too many cells.
    """
    separator = "\t" if path.suffix.lower() == ".tsv" else ","
    try:
        first = pd.read_csv(path, sep=separator, nrows=1)
    except (ValueError, UnicodeDecodeError) as error:  # pandas' ParserError and EmptyDataError are ValueErrors
        raise ValueError(f"{path} cannot be read as {path.suffix}: {error}") from error
    check_columns(str(path), [str(name) for name in first.columns], columns)
    if first.empty:
        raise ValueError(f"{path} has no rows")
    features = Features({str(name): Value("string") for name in first.columns})
    return {"sep": separator, "features": features, "keep_default_na": False}


def _lines(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8: {error}") from error
    return text.removesuffix("\n").split("\n")


def _json_lines(path: Path) -> list[tuple[int, Any]]:
    """Return the number of every line that is not blank, and what it holds: None where that is no JSON object."""
    found = []
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
        if line.strip():
            try:
                content = json.loads(line.decode("utf-8-sig"))
            except ValueError:
                content = None
            found.append((number, content if isinstance(content, dict) else None))
    return found


def _first_bad_line(path: Path) -> str:
    number = next((number for number, content in _json_lines(path) if content is None), None)
    return "" if number is None else f", line {number}"


def _damaged_json(path: Path, columns: Mapping[str, str]) -> Dataset:
    """Read a .jsonl file whose bad lines become rows without content; what is not text is no content either."""
    rows = [_flat(content or {}) for _, content in _json_lines(path)]
    check_columns(str(path), sorted({name for row in rows for name in row}), columns)
    cells = {name: [_as_text(row.get(name)) for row in rows] for name in columns.values()}
    return Dataset.from_dict(cells, features=Features({name: Value("string") for name in cells}))


def _flat(content: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return what an object holds, with the names of nested ones as `translation.en`."""
    flat: dict[str, Any] = {}
    for name, value in content.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat


def _as_text(cell: Any) -> str | None:
    return str(cell) if isinstance(cell, str | int) else None


def _damaged_csv(path: Path, columns: Mapping[str, str]) -> Dataset:
    """Read a .csv or .tsv file in which rows with too many cells become rows without content."""
    options = _csv_options(path, columns)
    frame = pd.read_csv(
        path,
        sep=options["sep"],
        dtype=str,
        keep_default_na=False,
        engine="python",
        on_bad_lines=lambda cells: [""] * len(options["features"]),
    )
    return Dataset.from_pandas(frame.fillna(""), features=options["features"], preserve_index=False)


# How files are read that have lines which are no rows.
DAMAGED: dict[str, Callable[[Path, Mapping[str, str]], Dataset]] = {
    ".csv": _damaged_csv,
    ".tsv": _damaged_csv,
    ".jsonl": _damaged_json,
}
