"""The embedded language-model corpus: the source text of the running Python's standard library."""

import os
import sysconfig
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from datasets import Dataset, DatasetDict

from .corpus import Corpus

# Tests are as large as the rest and repetitive, encodings are tables; the others are programs and installed packages.
LEFT_OUT = {"test", "tests", "encodings", "idlelib", "turtledemo", "site-packages", "dist-packages", "__pycache__"}


def language_model_corpus(data_args: Any) -> Corpus:
    """Describe the corpus that the data arguments ask for."""
    return Corpus(
        name="Python standard library",
        identifier="python-standard-library",
        description="The source text of the standard library of the Python that ran the training, split by file.",
        license="Python Software Foundation License v2 (PSF-2.0)",
        languages=["code", "en"],
        limits="It has seen only Python source text, with its English comments, and no other code or prose.",
        load=partial(standard_library, seed=data_args.split_seed),
    )


def standard_library(*, seed: int = 0, max_characters: int = 4_000_000) -> DatasetDict:
    """Return source files of the standard library: columns `text`, `path`; train/validation/test split by file.

    Args:
        seed: Decides which files are taken, and which of them are validation (a twentieth) and test (a twentieth).
        max_characters: Files are taken in random order, leaving out those that would make it more than this.

    Raises:
        ValueError: When `max_characters` leaves fewer than three files.
        FileNotFoundError: When this Python comes without the source of its library (a zipped or stripped one).
    """
    folder = Path(sysconfig.get_path("stdlib"))
    paths = _source_files(folder)
    if not paths:
        raise FileNotFoundError(f"{folder} holds no .py files: this Python has no sources of its standard library")
    Random(f"standard-library-{seed}").shuffle(paths)
    rows, size = [], 0
    for path in paths:
        if size + path.stat().st_size > max_characters:  # a file has no more characters than bytes
            continue
        if (text := _read(path)).strip():
            rows.append({"text": text, "path": path.relative_to(folder).as_posix()})
            size += len(text)
    if len(rows) < 3:
        raise ValueError(f"max_characters={max_characters!r} leaves {len(rows)} files, fewer than the three splits")
    held_out = max(1, len(rows) // 20)
    parts = {"train": rows[2 * held_out :], "validation": rows[:held_out], "test": rows[held_out : 2 * held_out]}
    return DatasetDict({name: Dataset.from_list(part) for name, part in parts.items()})


def _source_files(folder: Path) -> list[Path]:
    """Return the library's .py files in an order that does not depend on the file system."""
    found = []
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in LEFT_OUT]  # os.walk does not enter the others
        found += [Path(parent, name) for name in files if name.endswith(".py")]
    return sorted(found, key=lambda path: path.relative_to(folder).as_posix())


def _read(path: Path) -> str:
    """Return the file's text, empty when it is not UTF-8 or cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (UnicodeDecodeError, OSError):
        return ""
