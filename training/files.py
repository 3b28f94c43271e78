"""Reading local data files, with errors that name the file."""

from collections.abc import Mapping, Sequence
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


def read_file(path: Path, columns: Mapping[str, str], *, sample_by: str = "line") -> Dataset:
    """Read a file of any of the formats in `LOADERS`.

    Args:
        path: The file.
        columns: The columns needed, by the option that names each: {"source_column": "en"}.
        sample_by: What one row of a .txt file is: line, paragraph or document.

    Raises:
        ValueError: Naming the file and what is wrong with it.
    """
    loader = LOADERS[path.suffix.lower()]
    options: dict[str, Any] = {}
    if loader == "csv":
        options = _csv_options(path, columns)
    elif loader == "text":
        options = {"sample_by": sample_by}
    try:
        return load_dataset(loader, data_files=str(path), split="train", **options)
    except Exception as error:  # the loaders raise whatever their library raises
        raise ValueError(f"{path} cannot be read as {path.suffix}: {error.__cause__ or error}") from error


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
    """Read the needed columns as they are written: 007 is not a number, NA and null are words."""
    separator = "\t" if path.suffix.lower() == ".tsv" else ","
    try:
        first = pd.read_csv(path, sep=separator, nrows=1)
    except (ValueError, UnicodeDecodeError) as error:  # pandas' ParserError and EmptyDataError are ValueErrors
        raise ValueError(f"{path} cannot be read as {path.suffix}: {error}") from error
    check_columns(str(path), [str(name) for name in first.columns], columns)
    if first.empty:
        raise ValueError(f"{path} has no rows")
    needed = [name for name in first.columns if name in columns.values()]
    features = Features({name: Value("string") for name in needed})
    return {"sep": separator, "usecols": needed, "features": features, "keep_default_na": False}


def _lines(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8: {error}") from error
    return text.removesuffix("\n").split("\n")
