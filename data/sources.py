"""The source of each split: local files, the Hub or installed packages, read at once or as a stream."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from datasets import Dataset, load_dataset
from datasets import IterableDataset as Stream

from .arguments import COLUMNS, SPLITS, DataArguments
from .embedded import embedded_corpus
from .files import find_files, load_files, named, stream_files
from .image_rows import ImageOptions, folder_rows, undecoded
from .opening import ROW, Paths, format_of
from .readers import READERS
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
    columns: dict[str, str]
    more_columns: dict[str, str]
    images: ImageOptions = field(default_factory=ImageOptions)


def find_sources(data_args: DataArguments, task: TaskName) -> dict[str, Source]:
    """Return the source of each split.

    Raises:
        ValueError: Naming the file, the data set or the option at fault.
    """
    if data_args.is_embedded:
        return _embedded(data_args, task)
    return _hub(data_args, task) if data_args.train_file is None else _local(data_args, task)


def _embedded(data_args: DataArguments, task: TaskName) -> dict[str, Source]:
    columns = {f"{column}_column": column for column in COLUMNS[task]}
    corpus = embedded_corpus(data_args, task)
    return {split: Source(corpus.name, rows, columns, {}) for split, rows in corpus.load().items()}


def _hub(data_args: DataArguments, task: TaskName) -> dict[str, Source]:
    where = " ".join(filter(None, ("--dataset", data_args.dataset, data_args.dataset_config)))
    try:
        dataset = load_dataset(data_args.dataset, data_args.dataset_config, streaming=data_args.streaming)
    except Exception as error:  # network, missing data set, missing configuration ...
        raise ValueError(f"{where} cannot be loaded: {error}") from error
    listed = ", ".join(dataset)
    names = {split: name for split, names in SPLITS.items() for name in names if name in dataset}
    if data_args.split_column is not None:
        if len(dataset) > 1:
            raise ValueError(f"--split_column {data_args.split_column}: {where} has splits already: {listed}")
        names = {"train": listed}
    if "train" not in names:
        raise ValueError(f"{where} has no split 'train'; its splits are: {listed}")
    columns, more = task_columns(data_args, task), _more_columns(data_args)
    sources = {}
    for split, name in names.items():
        rows = undecoded(dataset[name])
        if isinstance(rows, Dataset):
            rows = rows.add_column(ROW, np.arange(1, len(rows) + 1))
        sources[split] = Source(f"{where}, split {name}", rows, columns, more if split == "train" else {})
    return sources


def _local(data_args: DataArguments, task: TaskName) -> dict[str, Source]:
    columns, more = task_columns(data_args, task), _more_columns(data_args)
    read, splits = stream_files if data_args.streaming else load_files, _files(data_args, task)
    options = data_args.read_options()
    sources = {
        split: Source(
            *(named(files), undecoded(read(files, columns | more, options)), columns, more),
            ImageOptions(folder=files[0][0].parent),
        )
        for split, files in splits.items()
    }
    for split in SPLITS:
        if folder := _image_folder(data_args, split, task):
            rows = folder_rows(f"{split}_file", folder, columns, skip_bad=data_args.bad_rows == "skip")
            sources[split] = Source(str(folder), rows, columns, {})
    return sources


def _image_folder(data_args: DataArguments, split: str, task: TaskName) -> Path | None:
    """Return the folder of images of a split, if it has one."""
    names = getattr(data_args, f"{split}_file") or []
    if not (TASKS[task].reads_images and any(Path(name).is_dir() for name in names)):
        return None
    if len(names) > 1:
        raise ValueError(f"--{split}_file {' '.join(names)}: give one folder, or files")
    for name in ("streaming", "split_column", "order_column"):
        if getattr(data_args, name):
            raise ValueError(f"--{name} needs files, not the folder --{split}_file {names[0]}")
    return Path(names[0])


def _files(data_args: DataArguments, task: TaskName) -> dict[str, list[Paths]]:
    """Return the files of each split, or its pairs of parallel ones, all of which exist and fit the task."""
    files: dict[str, list[Paths]] = {}
    for split in SPLITS:  # look at every file before reading any
        names, targets = getattr(data_args, f"{split}_file"), getattr(data_args, f"{split}_target_file")
        if names is None or _image_folder(data_args, split, task):
            continue
        given = {f"{split}_file": names, f"{split}_target_file": targets}
        sides = [
            find_files(option, side, parallel=targets is not None)
            for option, side in given.items()
            if side is not None
        ]
        others = (set(READERS) | {".parquet"}) - {".txt"}
        _check_text_files(split, [[format_of(path) not in others for path in side] for side in sides], task)
        files[split] = list(zip(*sides))
    return files


def _check_text_files(split: str, is_text: Sequence[Sequence[bool]], task: TaskName) -> None:
    """Check that .txt files, which have no columns, are parallel for translation and not for a classifier."""
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


def task_columns(data_args: DataArguments, task: TaskName) -> dict[str, str]:
    """Return the names of the task's columns in the data, by the option that sets each."""
    if data_args.turns_column is not None:
        return {"turns_column": data_args.turns_column}
    columns = {f"{column}_column": getattr(data_args, f"{column}_column") for column in COLUMNS[task]}
    if len(set(columns.values())) < len(columns):
        raise ValueError(f"{' and '.join(f'--{option}' for option in columns)} name the same column")
    return columns


def _more_columns(data_args: DataArguments) -> dict[str, str]:
    more = {name: getattr(data_args, name) for name in ("split_column", "order_column")}
    return {name: column for name, column in more.items() if column is not None}
