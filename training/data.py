"""Loading data for a task: embedded, from the Hub or from local files, always to the same columns."""

from collections.abc import Callable, Mapping
from random import Random

import numpy as np
import pyarrow.compute as pc
from datasets import Dataset, DatasetDict, load_dataset

from .arguments import DataArguments, Task
from .corpora import cldr_translation, language_names, standard_library
from .files import check_columns, check_file, read_file, read_parallel
from .labels import encode_labels
from .reporting import report

COLUMNS: dict[Task, tuple[str, ...]] = {
    "translation": ("source", "target"),
    "language_model": ("text",),
    "classification": ("text", "label"),
}
# What Hub data sets call their splits.
SPLITS = {"train": ("train",), "validation": ("validation", "valid", "val", "dev"), "test": ("test",)}
EMBEDDED: dict[Task, Callable[[DataArguments], DatasetDict]] = {
    "translation": lambda arguments: cldr_translation(
        arguments.source_locale, arguments.target_locale, size=arguments.embedded_size, seed=arguments.split_seed
    ),
    "language_model": lambda arguments: standard_library(seed=arguments.split_seed),
    "classification": lambda arguments: language_names(seed=arguments.split_seed),
}


def load_data(arguments: DataArguments, task: Task) -> DatasetDict:
    """Return the splits `train`, `validation` and, where there is one, `test`, with the task's columns.

    translation: `source`, `target`. language_model: `text`. classification: `text`, `label` (a `ClassLabel`).
    Column names of the input are mapped to these; other columns are dropped. Without validation data a part of the
    distinct training sources (texts) is held out, by `split_seed`: rows with the same source stay together.

    Args:
        arguments: Where the data is and how much of it to use.
        task: What it is for.

    Raises:
        ValueError: Naming the file, column, row or option at fault and what there is instead.
    """
    if task not in COLUMNS:
        raise ValueError(f"task={task!r}: choose from {', '.join(COLUMNS)}")
    _check_numbers(arguments)
    if arguments.train_file is not None:
        dataset = _local(arguments, task)
    else:
        _check_no_files(arguments)
        embedded = arguments.dataset == "embedded"
        dataset = EMBEDDED[task](arguments).select_columns(list(COLUMNS[task])) if embedded else _hub(arguments, task)
    if task == "classification":
        dataset = encode_labels(dataset)
    if "validation" not in dataset:
        dataset = _hold_out(dataset, COLUMNS[task][0], arguments)
    caps = {"train": arguments.max_train_samples, "validation": arguments.max_validation_samples}
    caps["test"] = arguments.max_test_samples
    return DatasetDict(
        {split: _cap(dataset[split], caps[split], arguments.split_seed) for split in SPLITS if split in dataset}
    )


# ---------------------------------------------------------------------------------------------- where data is from
def _local(arguments: DataArguments, task: Task) -> DatasetDict:
    options = _column_options(arguments, task)
    files = {}
    for split in SPLITS:  # look at every file before reading any
        name, target = getattr(arguments, f"{split}_file"), getattr(arguments, f"{split}_target_file")
        if name is None and target is not None:
            raise ValueError(f"--{split}_target_file needs --{split}_file")
        if name is not None:
            files[split] = [check_file(f"{split}_file", name)]
            files[split] += [check_file(f"{split}_target_file", target)] if target is not None else []
            _check_text_files(split, [path.suffix.lower() == ".txt" for path in files[split]], task)
    loaded = {}
    for split, paths in files.items():
        if len(paths) == 2:
            rows = read_parallel(paths[0], paths[1], options)
        elif paths[0].suffix.lower() == ".txt":
            rows = read_file(paths[0], {}, sample_by=arguments.sample_by).rename_columns(
                {"text": arguments.text_column}
            )
        else:
            rows = read_file(paths[0], options)
        loaded[split] = _task_columns(str(paths[0]), rows, options, task)
    return DatasetDict(loaded)


def _hub(arguments: DataArguments, task: Task) -> DatasetDict:
    where = " ".join(filter(None, (arguments.dataset, arguments.dataset_config)))
    try:
        found = load_dataset(arguments.dataset, arguments.dataset_config)
    except Exception as error:  # network, missing data set, missing configuration ...
        raise ValueError(f"--dataset {where} cannot be loaded: {error}") from error
    chosen = {split: next((n for n in names if n in found), None) for split, names in SPLITS.items()}
    if chosen["train"] is None:
        raise ValueError(f"--dataset {where} has no split 'train'; its splits are: {', '.join(found)}")
    options = _column_options(arguments, task)
    return DatasetDict(
        {
            split: _task_columns(f"--dataset {where}, split {name}", found[name], options, task)
            for split, name in chosen.items()
            if name is not None
        }
    )


# ------------------------------------------------------------------------------------------------------- checks
def _check_numbers(arguments: DataArguments) -> None:
    if not 0 < arguments.validation_fraction < 1:
        raise ValueError(f"--validation_fraction {arguments.validation_fraction}: it must lie between 0 and 1")
    for split in SPLITS:
        cap = getattr(arguments, f"max_{split}_samples")
        if cap is not None and cap < 1:
            raise ValueError(f"--max_{split}_samples {cap}: it must be at least 1")


def _check_no_files(arguments: DataArguments) -> None:
    for option in ("validation_file", "test_file", "train_target_file", "validation_target_file", "test_target_file"):
        if getattr(arguments, option) is not None:
            raise ValueError(f"--{option} needs --train_file")


def _check_text_files(split: str, is_text: list[bool], task: Task) -> None:
    """Text files have no columns: two parallel ones make translation data, one makes language-model data."""
    if len(is_text) == 2 and (task != "translation" or not all(is_text)):
        raise ValueError(f"--{split}_target_file is for translation from two .txt files")
    if is_text == [True] and task == "translation":
        raise ValueError(
            f"--{split}_file is a .txt file: give its translation, line by line, as --{split}_target_file"
        )
    if is_text == [True] and task == "classification":
        raise ValueError(f"--{split}_file is a .txt file, which has no labels: use .csv, .jsonl or .parquet")


def _column_options(arguments: DataArguments, task: Task) -> dict[str, str]:
    """Return the names of the columns needed, by the option that sets each."""
    options = {f"{column}_column": getattr(arguments, f"{column}_column") for column in COLUMNS[task]}
    if len(set(options.values())) < len(options):
        raise ValueError(f"{' and '.join(f'--{option}' for option in options)} name the same column")
    return options


# ---------------------------------------------------------------------------------------------------------- rows
def _task_columns(where: str, rows: Dataset, options: Mapping[str, str], task: Task) -> Dataset:
    """Keep the needed columns under the task's names, and look at every row."""
    if any("." in name for name in options.values()):
        rows = rows.flatten()
    check_columns(where, rows.column_names, options)
    rows = rows.select_columns(list(options.values())).rename_columns(dict(zip(options.values(), COLUMNS[task])))
    for column in COLUMNS[task]:
        if column != "label":
            rows = _without_blanks(where, rows, column, drop=task == "language_model")
    if not len(rows):
        raise ValueError(f"{where} has no rows")
    return rows


def _without_blanks(where: str, rows: Dataset, column: str, *, drop: bool) -> Dataset:
    """Drop rows without text, or say which is the first."""
    if rows.features[column].dtype not in ("string", "large_string"):
        raise ValueError(f"{where}: column {column!r} must hold text, not {rows.features[column].dtype}")
    texts = rows.with_format("arrow")[column]
    blank = np.asarray(pc.fill_null(pc.equal(pc.utf8_trim_whitespace(texts), ""), True), dtype=bool)
    if not blank.any():
        return rows
    if drop:
        report(f"{where}: {blank.sum()} of {len(rows)} texts are blank and left out.")
        return rows.select(np.flatnonzero(~blank))
    raise ValueError(
        f"{where}, row {blank.argmax() + 1}: the {column} is empty ({blank.sum()} such rows); fill it in or remove it"
    )


def _hold_out(dataset: DatasetDict, column: str, arguments: DataArguments) -> DatasetDict:
    """Take a fraction of the distinct texts of the column out of the training split for validation."""
    texts = list(dataset["train"][column])
    distinct = list(dict.fromkeys(texts))
    if len(distinct) < 2:
        raise ValueError(
            f"a validation part cannot be split from {len(distinct)} distinct {column}: give --validation_file"
        )
    count = min(max(1, round(len(distinct) * arguments.validation_fraction)), len(distinct) - 1)
    held_out = set(Random(arguments.split_seed).sample(distinct, count))
    outside = np.array([text in held_out for text in texts])
    parts = {"train": np.flatnonzero(~outside), "validation": np.flatnonzero(outside)}
    return DatasetDict({**dataset, **{split: dataset["train"].select(rows) for split, rows in parts.items()}})


def _cap(rows: Dataset, cap: int | None, seed: int) -> Dataset:
    """Keep `cap` rows drawn by the seed, in their order."""
    return rows if cap is None or cap >= len(rows) else rows.select(sorted(Random(seed).sample(range(len(rows)), cap)))
