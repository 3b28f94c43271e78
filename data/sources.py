"""The source of each split: local files, the Hub or installed packages, read at once or as a stream."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset, Image, load_dataset
from datasets import IterableDataset as Stream

from .arguments import COLUMNS, SPLITS, DataArguments
from .embedded import embedded_corpus
from .files import find_files, load_files, named, stream_files
from .formats import READERS, ROW, Columns, ImageOptions, Paths, format_of
from .tasks import TASKS, TaskName


@dataclass(frozen=True)
class Source:
    """The rows of a split before any check.

    Attributes:
        name: Its name in messages.
        rows: The rows, or a stream of them.
        columns: The columns of the task, by the option that names each: {"source_column": "en"}.
        more_columns: Further columns, by which rows are split and sorted.
        images: How images are read.
    """

    name: str
    rows: Dataset | Stream
    columns: Columns
    more_columns: Columns
    images: ImageOptions = field(default_factory=ImageOptions)


def find_sources(data_args: DataArguments, task: TaskName) -> dict[str, Source]:
    """Return the source of each split.

    Raises:
        ValueError: Naming the file, the data set or the option at fault.
    """
    if data_args.is_embedded:
        corpus = embedded_corpus(data_args, task)
        columns: Columns = {f"{column}_column": column for column in COLUMNS[task]}
        return {split: Source(corpus.name, rows, columns, {}) for split, rows in corpus.load().items()}
    if data_args.turns_column is not None:
        columns = {"turns_column": data_args.turns_column}
    else:
        columns = {f"{column}_column": getattr(data_args, f"{column}_column") for column in COLUMNS[task]}
        if len(set(columns.values())) < len(columns):
            raise ValueError(f"{' and '.join(f'--{option}' for option in columns)} name the same column")
    more = {name: getattr(data_args, name) for name in ("split_column", "order_column")}
    more = {name: column for name, column in more.items() if column is not None}
    if data_args.train_file is not None:
        return _local(data_args, task, columns, more)
    return _hub(data_args.dataset, data_args.dataset_config, columns, more, streaming=data_args.streaming)


def _hub(
    name: str, config: str | None, columns: Columns, more_columns: Columns, *, streaming: bool
) -> dict[str, Source]:
    where = " ".join(filter(None, ("--dataset", name, config)))
    try:
        dataset = load_dataset(name, config, streaming=streaming)
    except Exception as error:  # network, missing data set, missing configuration ...
        raise ValueError(f"{where} cannot be loaded: {error}") from error
    listed = ", ".join(dataset)
    names = {split: name for split, names in SPLITS.items() for name in names if name in dataset}
    if "split_column" in more_columns:
        if len(dataset) > 1:
            raise ValueError(f"--split_column {more_columns['split_column']}: {where} has splits already: {listed}")
        names = {"train": listed}
    if "train" not in names:
        raise ValueError(f"{where} has no split 'train'; its splits are: {listed}")
    sources = {}
    for split, name in names.items():
        rows = _undecoded(dataset[name])
        if isinstance(rows, Dataset):
            rows = rows.add_column(ROW, np.arange(1, len(rows) + 1))
        more = more_columns if split == "train" else {}
        sources[split] = Source(f"{where}, split {name}", rows, columns, more)
    return sources


def _local(data_args: DataArguments, task: TaskName, columns: Columns, more_columns: Columns) -> dict[str, Source]:
    """Return the sources of local files and folders of images, all of which exist and fit the task."""
    files: dict[str, list[Paths]] = {}
    folders: dict[str, Path] = {}
    for split in SPLITS:  # look at every file before reading any
        names, targets = getattr(data_args, f"{split}_file"), getattr(data_args, f"{split}_target_file")
        if TASKS[task].reads_images and any(Path(name).is_dir() for name in names or ()):
            if len(names) > 1:
                raise ValueError(f"--{split}_file {' '.join(names)}: give one folder, or files")
            for name in ("streaming", "split_column", "order_column"):
                if getattr(data_args, name):
                    raise ValueError(f"--{name} needs files, not the folder --{split}_file {names[0]}")
            folders[split] = Path(names[0])
        elif names is not None:
            given = {f"{split}_file": names} | ({} if targets is None else {f"{split}_target_file": targets})
            sides = [find_files(option, side, parallel=targets is not None) for option, side in given.items()]
            _check_text_files(split, sides, task)
            files[split] = list(zip(*sides))
    read, options = stream_files if data_args.streaming else load_files, data_args.read_options()
    sources = {}
    for split, paths in files.items():
        rows, images = (
            _undecoded(read(paths, {**columns, **more_columns}, options)),
            ImageOptions(folder=paths[0][0].parent),
        )
        sources[split] = Source(named(paths), rows, columns, more_columns, images)
    for split, folder in folders.items():
        from .image_rows import folder_rows  # which only tasks of images need

        rows = folder_rows(f"{split}_file", folder, columns, skip_bad=data_args.bad_rows == "skip")
        sources[split] = Source(str(folder), rows, columns, {})
    return sources


def _check_text_files(split: str, sides: Sequence[Sequence[Path]], task: TaskName) -> None:
    """Check that .txt files, which have no columns, are parallel for translation and not for a classifier."""
    others = (set(READERS) | {".parquet"}) - {".txt"}
    is_text = [[format_of(path) not in others for path in side] for side in sides]
    if len(is_text) == 2 and (task != "translation" or not all(map(all, is_text))):
        raise ValueError(
            f"--{split}_target_file is for translation from .txt files, or others of plain text such as .en"
        )
    if len({len(side) for side in is_text}) > 1:
        counts = f"{len(is_text[0])} and {len(is_text[1])}"
        raise ValueError(f"--{split}_file and --{split}_target_file name {counts} files: each needs its translation")
    if len(is_text) == 1 and any(is_text[0]):
        if task == "translation":
            raise ValueError(
                f"--{split}_file is a .txt file: give its translation, line by line, as --{split}_target_file"
            )
        if "label" in COLUMNS[task] or TASKS[task].reads_images:
            raise ValueError(f"--{split}_file is a .txt file, which has no columns: use .csv, .jsonl or .parquet")


def _undecoded(rows: Any) -> Any:
    """Return rows, or a stream of them, whose images are given as they are stored."""
    for name, feature in (rows.features or {}).items():
        if isinstance(feature, Image):
            rows = rows.cast_column(name, Image(decode=False))
    return rows
