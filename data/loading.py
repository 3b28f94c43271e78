"""Loading the data of a task, the same columns and splits from local files, the Hub or installed packages."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset, DatasetDict, Image, load_dataset

from vanillaformer.console.reporting import stage

from .arguments import COLUMNS, MARKS, SPLITS, DataArguments
from .files import Part, Parts, find_files, load_files, named, stream_files
from .formats import NAME, READERS, ROW, Columns, ImageOptions, Paths, format_of
from .rows import KEPT, RESERVED, SplitRows, encode_labels, text_columns, usable_rows, with_labels, with_pairs
from .splits import divide
from .streaming import TextStream, open_streams
from .tasks import TASKS, TaskName

OF_TRAINING = ("split_column", "order_column")  # options for columns by which training rows are split and sorted


@dataclass
class TaskData:
    """The data of a task."""

    splits: DatasetDict  # `train`, `validation` and maybe `test`, with the task's columns
    stream: TextStream | None = None  # with --streaming, the training data; `train` has its first rows
    # By split, the numbers of rows that were left out, or also occur in another split
    stats: dict[str, dict[str, Any]] = field(default_factory=dict)


@stage("Reading the data")
def load_data(data_args: DataArguments, task: TaskName, order_seed: int = 0) -> TaskData:
    """Return the data of a task.

    The columns are `source` and `target` (translation), `text` (language models), `text` and `label`, a `ClassLabel`
    (classification), `image`, the pixels of `data_args.image_size`, `name` and `label` (images).
    Column names of the input are mapped to these; other columns are dropped. Without validation data, a part of the
    training data is held out: a part of the distinct sources (texts), so that rows with the same one stay together; of
    a stream, its first rows. `order_seed` determines the order in which a stream is read.
    """
    if task not in COLUMNS:
        raise ValueError(f"task={task!r}: choose from {', '.join(COLUMNS)}")
    data_args.check()
    sources, stream = find_sources(data_args, task), None
    if data_args.streaming:
        parts, stream = open_streams(sources, data_args, task)
    else:
        parts = _checked_rows(sources, data_args, task)
    if "label" in COLUMNS[task]:
        parts = encode_labels(parts)
    columns = [*COLUMNS[task], *((NAME,) if TASKS[task].reads_images else ()), *KEPT]
    found = {split: [name for name in columns if name in part.rows.column_names] for split, part in parts.items()}
    splits = DatasetDict({split: part.rows.select_columns(found[split]) for split, part in parts.items()})
    stats = {split: dict(part.stats) for split, part in parts.items()}
    if stream is None:
        splits, leaks = divide(splits, task, data_args)
        stats = {split: {**stats.get(split, {}), **leaks.get(split, {})} for split in splits}
    else:
        stream.names = splits["train"].features["label"].names if "label" in COLUMNS[task] else None
        stream.buffer, stream.seed = data_args.streaming_buffer, order_seed
    return TaskData(DatasetDict({split: splits[split] for split in SPLITS if split in splits}), stream, stats)


def load_held_out(data_args: DataArguments, task: TaskName, names: Sequence[str] = ()) -> Dataset:
    """Return the rows of `data_args.train_file`, on which a trained model with the classes `names` is scored."""
    part = _checked_rows(find_sources(data_args, task), data_args, task)["train"]
    if "label" in COLUMNS[task]:
        part = with_labels(part, names)
    return part.rows.select_columns(list(COLUMNS[task]))


def _checked_rows(sources: dict[str, SplitRows], data_args: DataArguments, task: TaskName) -> dict[str, SplitRows]:
    """Return the usable rows of each split in the task's columns; set the size of images if it is not given."""
    parts = {split: text_columns(source) for split, source in sources.items()}
    train = parts["train"]
    if TASKS[task].reads_images and data_args.image_size is None:
        from .image_rows import usual_size  # texts do not need it

        data_args.image_size = usual_size(train.rows, train.columns["image_column"], train.images)
    if data_args.split_column is not None or data_args.order_column is not None:
        from .order import by_column, in_order  # other data does not need it

        parts = parts if data_args.split_column is None else by_column(parts["train"], data_args.split_column)
        if data_args.order_column is not None:
            parts["train"] = in_order(parts["train"], data_args.order_column)
    if data_args.text_pair_column is not None:
        parts = {split: with_pairs(part, data_args.text_pair_column) for split, part in parts.items()}
    if any(getattr(data_args, name) for name in ("source_prefix", *MARKS)):
        from .order import with_marks

        parts = {split: with_marks(part, data_args) for split, part in parts.items()}
    size, workers = data_args.image_size or 0, data_args.preprocessing_num_workers or 1
    for split, part in parts.items():
        part.images = replace(part.images, size=size, workers=workers)
        names = dict(zip(part.columns.values(), COLUMNS[task]))
        reserved = [name for name in part.rows.column_names if name in RESERVED]
        rows = part.rows.select_columns([*names, *reserved]).rename_columns(names)
        parts[split] = usable_rows(part.with_rows(rows), task)
    return parts


def find_sources(data_args: DataArguments, task: TaskName) -> dict[str, SplitRows]:
    """Return the source of each split; a ValueError names the file, data set or option at fault."""
    if data_args.is_embedded:
        from .embedded import CORPORA  # other data does not need it

        corpus = CORPORA[task](data_args)
        columns: Columns = {f"{column}_column": column for column in COLUMNS[task]}
        return {split: SplitRows(split, corpus.name, rows, columns) for split, rows in corpus.load().items()}
    if data_args.turns_column is not None:
        columns = {"turns_column": data_args.turns_column}
    else:
        columns = {f"{column}_column": getattr(data_args, f"{column}_column") for column in COLUMNS[task]}
        if len(set(columns.values())) < len(columns):
            raise ValueError(f"{' and '.join(f'--{option}' for option in columns)} name the same column")
    more = {name: getattr(data_args, name) for name in ("text_pair_column", *MARKS, *OF_TRAINING)}
    columns |= {name: column for name, column in more.items() if column is not None}
    sources = (_hub if data_args.train_file is None else _local)(data_args, task, columns)
    return {split: replace(source, skip_bad=data_args.bad_rows == "skip") for split, source in sources.items()}


def _hub(data_args: DataArguments, task: TaskName, columns: Columns) -> dict[str, SplitRows]:
    name, config = data_args.dataset, data_args.dataset_config
    where = " ".join(filter(None, ("--dataset", name, config)))
    try:
        dataset = load_dataset(name, config, streaming=data_args.streaming)
    except Exception as error:  # network, missing data set, missing configuration ...
        raise ValueError(f"{where} cannot be loaded: {error}") from error
    listed = ", ".join(dataset)
    names = {split: name for split, names in SPLITS.items() for name in names if name in dataset}
    if "split_column" in columns:
        if len(dataset) > 1:
            raise ValueError(f"--split_column {columns['split_column']}: {where} has splits already: {listed}")
        names = {"train": listed}
    if "train" not in names:
        raise ValueError(f"{where} has no split 'train'; its splits are: {listed}")
    sources = {}
    for split, name in names.items():
        rows = _undecoded(dataset[name])
        if isinstance(rows, Dataset):
            rows = rows.add_column(ROW, np.arange(1, len(rows) + 1))
        else:
            parts = tuple(Part((number,), 1) for number in range(rows.num_shards))
            rows = Parts(partial(rows.shard, rows.num_shards), parts, rows.features)
        needed = {key: column for key, column in columns.items() if split == "train" or key not in OF_TRAINING}
        sources[split] = SplitRows(split, f"{where}, split {name}", rows, needed)
    return sources


def _local(data_args: DataArguments, task: TaskName, columns: Columns) -> dict[str, SplitRows]:
    """Return the sources of local files and folders of images, after checking that all exist and fit the task."""
    files: dict[str, list[Paths]] = {}
    folders: dict[str, Path] = {}
    for split in SPLITS:  # check every file before reading any
        names, targets = getattr(data_args, f"{split}_file"), getattr(data_args, f"{split}_target_file")
        if TASKS[task].reads_images and any(Path(name).is_dir() for name in names or ()):
            if len(names) > 1:
                raise ValueError(f"--{split}_file {' '.join(names)}: give one folder, or files")
            for name in ("streaming", *OF_TRAINING):
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
        rows: Any = read(paths, columns, options)
        rows = _undecoded(rows) if isinstance(rows, Dataset) else rows
        images = ImageOptions(folder=paths[0][0].parent)
        sources[split] = SplitRows(split, named(paths), rows, columns, images=images)
    for split, folder in folders.items():
        from .image_rows import folder_rows  # texts do not need it

        rows = folder_rows(f"{split}_file", folder, columns, skip_bad=data_args.bad_rows == "skip")
        sources[split] = SplitRows(split, str(folder), rows, columns)
    return sources


def _check_text_files(split: str, sides: Sequence[Sequence[Path]], task: TaskName) -> None:
    """Check that .txt files, which have no columns, are parallel for translation, and not given to a classifier."""
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
    """Return rows, or a stream of them, with images in their stored form."""
    for name, feature in (rows.features or {}).items():
        if isinstance(feature, Image):
            rows = rows.cast_column(name, Image(decode=False))
    return rows
