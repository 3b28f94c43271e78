"""Loading the data of a task: the same columns and splits from any source."""

from dataclasses import dataclass, field

from datasets import DatasetDict

from vanillaformer.console.progress import stage

from .arguments import COLUMNS, SPLITS, DataArguments
from .image_rows import NAME
from .labels import encode_labels, label_names
from .rows import ORDER, DataStats, load_rows
from .sources import find_sources
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
    if not data_args.streaming:
        parts = load_rows(sources, data_args, task)
    else:
        parts, stream = open_streams(sources, data_args, task)
    if "label" in COLUMNS[task]:
        parts = encode_labels(parts)
    stats = {split: dict(part.stats) for split, part in parts.items()}
    columns = [*COLUMNS[task], *((NAME,) if TASKS[task].reads_images else ())]
    order = {split: [ORDER] if ORDER in part.rows.column_names else [] for split, part in parts.items()}
    splits = DatasetDict({split: part.rows.select_columns(columns + order[split]) for split, part in parts.items()})
    if stream is None:
        splits, leaks = divide(splits, task, data_args)
        stats = {split: {**stats.get(split, {}), **leaks.get(split, {})} for split in splits}
    else:
        stream.names = label_names(splits) if "label" in COLUMNS[task] else None
        stream.buffer, stream.seed = data_args.streaming_buffer, order_seed
    return TaskData(DatasetDict({split: splits[split] for split in SPLITS if split in splits}), stream, stats)
