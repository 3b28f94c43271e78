"""Loading the data of a task: the same columns and splits from any source."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from datasets import Dataset, DatasetDict

from vanillaformer.console.progress import stage

from .arguments import COLUMNS, SPLITS, DataArguments
from .formats import NAME
from .labels import encode_labels, label_names, with_labels
from .rows import ORDER, DataStats, SplitRows, by_column, in_order, task_rows, text_columns
from .sources import Source, find_sources
from .splits import divide
from .streaming import TextStream, open_streams
from .tasks import TASKS, TaskName


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
def load_data(data_args: DataArguments, task: TaskName, order_seed: int = 0) -> TaskData:
    """Return the data of a task.

    The columns are `source` and `target` (translation), `text` (language models), `text` and `label`, a `ClassLabel`
    (classification), `image`, the pixels of `data_args.image_size`, `name` and `label` (images).
    Column names of the input are mapped to these; other columns are dropped. Without validation data a part of the
    training data is held out: of the distinct sources (texts), so that rows with the same one stay together; of a
    stream, its first rows.

    Args:
        data_args: Where the data is and how much of it to use.
        task: The task.
        order_seed: Seed of the order of a stream.

    Raises:
        ValueError: Naming the file, column, row or option at fault, and what is there instead.
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
    columns = [*COLUMNS[task], *((NAME,) if TASKS[task].reads_images else ()), ORDER]
    found = {split: [name for name in columns if name in part.rows.column_names] for split, part in parts.items()}
    splits = DatasetDict({split: part.rows.select_columns(found[split]) for split, part in parts.items()})
    stats = {split: dict(part.stats) for split, part in parts.items()}
    if stream is None:
        splits, leaks = divide(splits, task, data_args)
        stats = {split: {**stats.get(split, {}), **leaks.get(split, {})} for split in splits}
    else:
        stream.names = label_names(splits) if "label" in COLUMNS[task] else None
        stream.buffer, stream.seed = data_args.streaming_buffer, order_seed
    return TaskData(DatasetDict({split: splits[split] for split in SPLITS if split in splits}), stream, stats)


def load_held_out(data_args: DataArguments, task: TaskName, names: Sequence[str] = ()) -> Dataset:
    """Return the rows of `data_args.train_file`, to score a trained model on, in the task's columns.

    Args:
        data_args: Where the rows are; images must have a size.
        task: The task.
        names: The names of the model's classes, if it has any, in the order of their ids.

    Raises:
        ValueError: Naming the file, column, row or option at fault.
    """
    part = _checked_rows(find_sources(data_args, task), data_args, task)["train"]
    if "label" in COLUMNS[task]:
        part = with_labels(part, names)
    return part.rows.select_columns(list(COLUMNS[task]))


def _checked_rows(sources: dict[str, Source], data_args: DataArguments, task: TaskName) -> dict[str, SplitRows]:
    """Return the usable rows of each split in the task's columns; set the size of images if there is none."""
    parts = {}
    for split, source in sources.items():
        part = SplitRows(split, source.name, source.rows, data_args.bad_rows == "skip", source.images)
        parts[split] = text_columns(part, {**source.columns, **source.more_columns})
    columns = sources["train"].columns
    if TASKS[task].reads_images and data_args.image_size is None:
        from .image_rows import usual_size  # which only tasks of images need

        data_args.image_size = usual_size(parts["train"].rows, columns["image_column"], parts["train"].images)
    if data_args.split_column is not None:
        parts = by_column(parts["train"], data_args.split_column)
    if data_args.order_column is not None:
        parts["train"] = in_order(parts["train"], data_args.order_column)
    size, workers = data_args.image_size or 0, data_args.preprocessing_num_workers or 1
    for split, part in parts.items():
        part.images = replace(part.images, size=size, workers=workers)
        parts[split] = task_rows(part, columns, task)
    return parts
