"""Loading data for a task: whatever it is from, always the same columns and splits."""

from dataclasses import dataclass, field
from typing import Any

from datasets import DatasetDict

from ..progress import stage
from .arguments import COLUMNS, SPLITS, DataArguments, Task
from .labels import encode_labels, label_names
from .rows import SplitRows, readable_rows, text_columns, usable_texts
from .sources import Source, find_sources
from .splits import by_column, cap, hold_out, in_order, without_leaks
from .streaming import TextStream, open_streams

DataStats = dict[str, dict[str, Any]]
"""Statistics of the data of a run: by split, a number by what it counts."""


@dataclass
class TaskData:
    """The data of a task.

    Attributes:
        splits: `train`, `validation` and, where there is one, `test`, with the task's columns.
        stream: With --streaming the training data, of which `train` has the first rows.
        stats: By split, how many rows were left out, or also occur in the training data.
    """

    splits: DatasetDict
    stream: TextStream | None = None
    stats: DataStats = field(default_factory=dict)


@stage("Reading the data")
def load_data(data_args: DataArguments, task: Task, order_seed: int = 0) -> TaskData:
    """Return the data of a task.

    translation: `source`, `target`. language_model: `text`. classification: `text`, `label` (a `ClassLabel`).
    Column names of the input are mapped to these; other columns are dropped. Without validation data a part of the
    training data is held out: of the distinct sources (texts), so that rows with the same one stay together; of a
    stream, its first rows.

    Args:
        data_args: Where the data is and how much of it to use.
        task: What it is for.
        order_seed: Decides the orders of a stream.

    Raises:
        ValueError: Naming the file, column, row or option at fault and what there is instead.
    """
    if task not in COLUMNS:
        raise ValueError(f"task={task!r}: choose from {', '.join(COLUMNS)}")
    data_args.check_dialogue(task)
    if task != "language_model" and (data_args.packing or data_args.block_stride is not None):
        option = "--packing" if data_args.packing else "--block_stride"
        raise ValueError(f"{option} is for language models: other tasks have one text in a row")
    sources, stream = find_sources(data_args, task), None
    if data_args.streaming:
        parts, stream = open_streams(sources, data_args, task)
    else:
        parts = {
            split: part for split in sources for split, part in _rows(sources[split], split, data_args, task).items()
        }
    if task == "classification":
        parts = encode_labels(parts)
    stats: DataStats = {split: dict(part.stats) for split, part in parts.items()}
    splits = DatasetDict({split: part.rows.select_columns(list(COLUMNS[task])) for split, part in parts.items()})
    if stream is None:
        splits, leaks = _divide(splits, data_args, COLUMNS[task][0])
        stats = {split: {**stats.get(split, {}), **leaks.get(split, {})} for split in splits}
    else:
        stream.names = label_names(splits) if task == "classification" else None
        stream.buffer, stream.seed = data_args.streaming_buffer, order_seed
    return TaskData(DatasetDict({split: splits[split] for split in SPLITS if split in splits}), stream, stats)


def _rows(source: Source, split: str, data_args: DataArguments, task: Task) -> dict[str, SplitRows]:
    """Return the usable rows of a source in the task's columns, by the split that they belong to."""
    rows = SplitRows(split, source.name, source.rows, data_args.bad_rows == "skip")
    rows = readable_rows(text_columns(rows, source.columns | source.more_columns))
    parts = {split: rows}
    if "split_column" in source.more_columns:
        parts = by_column(rows, source.more_columns["split_column"])
    if "order_column" in source.more_columns and "train" in parts:
        parts["train"] = in_order(parts["train"], source.more_columns["order_column"])
    named = dict(zip(source.columns.values(), COLUMNS[task]))
    return {name: usable_texts(part.with_columns(named), task) for name, part in parts.items()}


def _divide(splits: DatasetDict, data_args: DataArguments, column: str) -> tuple[DatasetDict, DataStats]:
    """Return the splits with validation data and without what is not wanted, and what also occurs in training data."""
    seed = data_args.split_seed
    splits = hold_out(splits, column, data_args)
    for split in ("validation", "test"):
        if split in splits:
            splits[split] = cap(splits[split], getattr(data_args, f"max_{split}_samples"), seed)
    splits, leaks = without_leaks(splits, column, drop=data_args.drop_leaked_rows)
    splits["train"] = cap(splits["train"], data_args.max_train_samples, seed)
    return splits, leaks
