"""Streams of the user's files and of data sets on the Hub, with what must be known before training."""

from itertools import islice
from typing import Any

from datasets import ClassLabel, Dataset, DatasetDict, Features, Value, load_dataset
from datasets import IterableDataset as Stream

from vanillaformer.hub.reporting import report

from ..progress import stage
from .arguments import DataArguments, Task
from .bad_rows import Facts, RowCheck
from .files import named, stream_files
from .json_files import column_names
from .labels import encode_labels, label_names
from .loading import COLUMNS, check_no_files, column_options, load_data, local_files
from .opening import check_columns
from .splits import SPLITS
from .text_stream import TextStream, order_seed

HELD_OUT = 1_000
"""Rows of validation data (of passages a tenth), where there is none and --max_validation_samples does not say."""


def check_streaming(arguments: DataArguments, settings: Any) -> None:
    """Raise ValueError for what streams cannot do, and set what they need."""
    if settings.max_steps <= 0:
        raise ValueError(
            f"--streaming needs --max_steps: how long an epoch is nobody knows (it is {settings.max_steps})"
        )
    if settings.tokens_per_batch is not None:
        raise ValueError(
            f"--tokens_per_batch {settings.tokens_per_batch}: --streaming does not know how long rows are"
        )
    if settings.dataloader_num_workers > 1:
        raise ValueError(
            f"--dataloader_num_workers {settings.dataloader_num_workers}: a stream is read by one at most"
        )
    columns = {"split_column": None, "order_column": None}
    for name, unset in {"packing": False, "test_fraction": 0.0, **columns, "hold_out": "random"}.items():
        if getattr(arguments, name) != unset:
            raise ValueError(f"--{name} {getattr(arguments, name)} needs all data at once: not with --streaming")
    for name in ("streaming_buffer", "tokenizer_samples"):
        if getattr(arguments, name) < (name == "tokenizer_samples"):
            raise ValueError(f"--{name} {getattr(arguments, name)}: it is too small")
    settings.train_sampling_strategy = "random"  # nothing can be grouped
    settings.accelerator_config.dispatch_batches = False  # rows of a batch are padded by the process that gets them


@stage("Reading the data")
def load_texts(
    arguments: DataArguments, task: Task, settings: Any, facts: Facts
) -> tuple[DatasetDict, TextStream | None]:
    """Return the data, and with --streaming the stream of which its training split holds the first rows alone."""
    if not arguments.streaming:
        return load_data(arguments, task, facts), None
    check_streaming(arguments, settings)
    return load_stream(arguments, task, order_seed(settings), facts)


def load_stream(
    arguments: DataArguments, task: Task, seed: int, facts: Facts | None = None
) -> tuple[DatasetDict, TextStream]:
    """Return validation and test data as `load_data` does, the first rows for training as `train`, and the stream.

    Args:
        arguments: Where the data is.
        task: What it is for.
        seed: Decides the orders of the stream.
        facts: Where to note what was left out.

    Raises:
        ValueError: Naming the file, column, row or option at fault.
    """
    streams = _streams(arguments, task)
    stream, caps = streams["train"], {"test": arguments.max_test_samples}
    caps["validation"] = arguments.max_validation_samples
    data: dict[str, Dataset] = {
        split: _table(streams[split], caps[split]) for split in ("validation", "test") if split in streams
    }
    held_out: list[Any] = []
    if "validation" not in data:
        size = caps["validation"] or (HELD_OUT // 10 if arguments.sample_by == "passage" else HELD_OUT)
        held_out = list(islice(stream.numbered_rows(), size))
        stream.source = stream.source.skip(held_out[-1][0] if held_out else 0)
        data["validation"] = _as_dataset(stream, [cells for *_, cells in held_out])
        stream.left_out = frozenset(data["validation"][COLUMNS[task][0]])
        report(f"{stream.where}: the first {len(held_out):,} rows are held out for validation.")
    if arguments.drop_leaked_rows:
        stream.left_out |= {text for part in data.values() for text in part[COLUMNS[task][0]]}
    if arguments.max_train_samples is not None:
        stream.source = stream.source.take(arguments.max_train_samples)
    data["train"] = _table(stream, arguments.tokenizer_samples)
    for split, part in data.items():
        if not len(part):
            hint = (
                f" beside the {len(held_out):,} held out: give a smaller --max_validation_samples" if held_out else ""
            )
            raise ValueError(f"{stream.where}: --streaming finds no rows for {split}{hint}")
    dataset = DatasetDict({split: data[split] for split in SPLITS if split in data})
    if task == "classification":
        dataset = encode_labels(dataset, RowCheck(arguments.bad_rows == "skip", {} if facts is None else facts))
        stream.names = label_names(dataset)
    stream.buffer, stream.seed = arguments.streaming_buffer, seed
    return dataset, stream


def _streams(arguments: DataArguments, task: Task) -> dict[str, TextStream]:
    """Return the stream of each split."""
    options = column_options(arguments, task)
    columns = dict(zip(COLUMNS[task], options.values()))
    if arguments.train_file is not None:
        sources = {
            split: (named(files), stream_files(files, options, arguments.read_options()))
            for split, files in local_files(arguments, task).items()
        }
    else:
        check_no_files(arguments)
        sources = _hub_streams(arguments)
    streams = {}
    for split, (where, source) in sources.items():
        first = next(iter(source), None)
        if first is None:
            raise ValueError(f"{where} has no rows")
        if arguments.train_file is None:  # files are checked by their readers
            check_columns(where, list(dict.fromkeys(column_names(first))), options)
        skip, blank = arguments.bad_rows == "skip", task == "language_model"
        streams[split] = TextStream(where, source, columns, skip_bad=skip, drop_blank=blank)
    return streams


def _hub_streams(arguments: DataArguments) -> dict[str, tuple[str, Stream]]:
    if arguments.dataset == "embedded":
        raise ValueError("--streaming needs --train_file or a --dataset on the Hub: embedded data is in memory")
    where = " ".join(filter(None, (arguments.dataset, arguments.dataset_config)))
    try:
        found = load_dataset(arguments.dataset, arguments.dataset_config, streaming=True)
    except Exception as error:  # network, missing data set, missing configuration ...
        raise ValueError(f"--dataset {where} cannot be loaded: {error}") from error
    known = {split: name for split, names in SPLITS.items() for name in names if name in found}
    if "train" not in known:
        raise ValueError(f"--dataset {where} has no split 'train'; its splits are: {', '.join(found)}")
    return {split: (f"--dataset {where}, split {name}", found[name]) for split, name in known.items()}


def _table(stream: TextStream, size: int | None) -> Dataset:
    """Return the first rows of a stream."""
    return _as_dataset(stream, [cells for _, cells in islice(stream.rows(), size)])


def _as_dataset(stream: TextStream, rows: list[dict[str, Any]]) -> Dataset:
    features = {name: Value("string") for name in stream.columns}
    cells: dict[str, list[Any]] = {name: [row[name] for row in rows] for name in stream.columns}
    if "label" in features:
        feature = (stream.source.features or {}).get(stream.columns["label"])
        cells["label"] = [str(label) for label in cells["label"]]
        if isinstance(feature, ClassLabel):
            features["label"], cells["label"] = feature, list(map(int, cells["label"]))
    return Dataset.from_dict(cells, features=Features(features))
