"""Loading data for a task: embedded, from the Hub or from local files, always to the same columns."""

from collections.abc import Callable, Mapping, Sequence

from datasets import Dataset, DatasetDict, load_dataset

from .arguments import DataArguments, Task
from .bad_rows import FILE, Facts, RowCheck, number_rows, with_texts, without_unreadable
from .corpora import cldr_translation, language_names, standard_library
from .dialogue import join_turns
from .files import find_files, load_files, named
from .labels import encode_labels
from .opening import ROW, Source, check_columns, format_of
from .splits import SPLITS, by_column, cap, hold_out, in_order, without_leaks

COLUMNS: dict[Task, tuple[str, ...]] = {
    "translation": ("source", "target"),
    "language_model": ("text",),
    "classification": ("text", "label"),
}
EMBEDDED: dict[Task, Callable[[DataArguments], DatasetDict]] = {
    "translation": lambda arguments: cldr_translation(
        arguments.source_locale, arguments.target_locale, size=arguments.embedded_size, seed=arguments.split_seed
    ),
    "language_model": lambda arguments: standard_library(seed=arguments.split_seed),
    "classification": lambda arguments: language_names(seed=arguments.split_seed),
}


def load_data(arguments: DataArguments, task: Task, facts: Facts | None = None) -> DatasetDict:
    """Return the splits `train`, `validation` and, where there is one, `test`, with the task's columns.

    translation: `source`, `target`. language_model: `text`. classification: `text`, `label` (a `ClassLabel`).
    Column names of the input are mapped to these; other columns are dropped. Without validation data a part of the
    training data is held out: of the distinct sources (texts), so that rows with the same one stay together.

    Args:
        arguments: Where the data is and how much of it to use.
        task: What it is for.
        facts: Where to note, by split, what was left out and what also occurs in the training data.

    Raises:
        ValueError: Naming the file, column, row or option at fault and what there is instead.
    """
    if task not in COLUMNS:
        raise ValueError(f"task={task!r}: choose from {', '.join(COLUMNS)}")
    arguments.check_dialogue(task)
    if task != "language_model" and (arguments.packing or arguments.block_stride is not None):
        option = "--packing" if arguments.packing else "--block_stride"
        raise ValueError(f"{option} is for language models: other tasks have one text in a row")
    check = RowCheck(arguments.bad_rows == "skip", {} if facts is None else facts)
    if arguments.train_file is not None:
        dataset = _local(arguments, task, check)
    else:
        check_no_files(arguments)
        embedded = arguments.dataset == "embedded"
        dataset = _embedded(arguments, task) if embedded else _hub(arguments, task, check)
    if task == "classification":
        dataset = encode_labels(dataset, check)
    dataset = DatasetDict({split: rows.select_columns(list(COLUMNS[task])) for split, rows in dataset.items()})
    column, seed = COLUMNS[task][0], arguments.split_seed
    dataset = hold_out(dataset, column, arguments)
    for split in ("validation", "test"):
        if split in dataset:
            dataset[split] = cap(dataset[split], getattr(arguments, f"max_{split}_samples"), seed)
    dataset = without_leaks(dataset, column, drop=arguments.drop_leaked_rows, facts=check.facts)
    dataset["train"] = cap(dataset["train"], arguments.max_train_samples, seed)
    return DatasetDict({split: dataset[split] for split in SPLITS if split in dataset})


# ---------------------------------------------------------------------------------------------- where data is from
def _embedded(arguments: DataArguments, task: Task) -> DatasetDict:
    for name in ("split_column", "order_column", "turns_column"):
        if getattr(arguments, name) is not None:
            raise ValueError(f"--{name} {getattr(arguments, name)} needs --train_file or a --dataset on the Hub")
    return EMBEDDED[task](arguments).select_columns(list(COLUMNS[task]))


def local_files(arguments: DataArguments, task: Task) -> dict[str, list[Source]]:
    """Return the files of each split, or its pairs of parallel ones, all of which exist and fit the task."""
    files: dict[str, list[Source]] = {}
    for split in SPLITS:  # look at every file before reading any
        names, targets = getattr(arguments, f"{split}_file"), getattr(arguments, f"{split}_target_file")
        if names is None and targets is not None:
            raise ValueError(f"--{split}_target_file needs --{split}_file")
        if names is None:
            continue
        sides = [find_files(f"{split}_file", names)]
        sides += [find_files(f"{split}_target_file", targets)] if targets is not None else []
        check_text_files(split, [[format_of(path) == ".txt" for path in side] for side in sides], task)
        _check_split_column(arguments, split, format_of(sides[0][0]))
        files[split] = list(zip(*sides))
    return files


def file_columns(arguments: DataArguments, task: Task) -> dict[str, str]:
    """Return the columns that files need, by the option that names each."""
    more = {name: getattr(arguments, name) for name in ("split_column", "order_column")}
    return column_options(arguments, task) | {name: column for name, column in more.items() if column is not None}


def _local(arguments: DataArguments, task: Task, check: RowCheck) -> DatasetDict:
    options, columns = column_options(arguments, task), file_columns(arguments, task)
    loaded: dict[str, Dataset] = {}
    for split, sources in local_files(arguments, task).items():
        where, rows = named(sources), load_files(sources, columns, arguments.read_options())
        rows = without_unreadable(check, split, where, rows)
        parts = {split: rows}
        if arguments.split_column is not None:
            parts = by_column(check, where, rows, arguments.split_column)
        if arguments.order_column is not None and "train" in parts:
            parts["train"] = in_order(where, parts["train"], arguments.order_column)
        loaded |= {name: _task_columns(check, name, where, part, options, task) for name, part in parts.items()}
    return DatasetDict(loaded)


def _hub(arguments: DataArguments, task: Task, check: RowCheck) -> DatasetDict:
    where = " ".join(filter(None, (arguments.dataset, arguments.dataset_config)))
    try:
        found = load_dataset(arguments.dataset, arguments.dataset_config)
    except Exception as error:  # network, missing data set, missing configuration ...
        raise ValueError(f"--dataset {where} cannot be loaded: {error}") from error
    options = column_options(arguments, task)
    if arguments.split_column is not None:
        parts = _one_split(check, where, found, arguments.split_column)
    else:
        parts = {split: (n, number_rows(found[n])) for split, names in SPLITS.items() for n in names if n in found}
    if arguments.order_column is not None and "train" in parts:
        name, rows = parts["train"]
        parts["train"] = name, in_order(f"--dataset {where}, split {name}", rows, arguments.order_column)
    if "train" not in parts:
        raise ValueError(f"--dataset {where} has no split 'train'; its splits are: {', '.join(found)}")
    return DatasetDict(
        {
            split: _task_columns(check, split, f"--dataset {where}, split {name}", rows, options, task)
            for split, (name, rows) in parts.items()
        }
    )


def _one_split(check: RowCheck, where: str, found: DatasetDict, column: str) -> dict[str, tuple[str, Dataset]]:
    """Return the splits that a column of the only split, or of `train`, names."""
    name = "train" if "train" in found else next(iter(found))
    if len(found) > 1:
        raise ValueError(f"--split_column {column}: --dataset {where} has splits already: {', '.join(found)}")
    where = f"--dataset {where}, split {name}"
    check_columns(where, found[name].column_names, {"split_column": column})
    parts = by_column(check, where, number_rows(found[name]), column)
    return {split: (name, rows) for split, rows in parts.items()}


# ------------------------------------------------------------------------------------------------------- checks
def check_no_files(arguments: DataArguments) -> None:
    for option in ("validation_file", "test_file", "train_target_file", "validation_target_file", "test_target_file"):
        if getattr(arguments, option) is not None:
            raise ValueError(f"--{option} needs --train_file")


def check_text_files(split: str, is_text: Sequence[Sequence[bool]], task: Task) -> None:
    """Text files have no columns: parallel ones make translation data, others language-model data."""
    if len(is_text) == 2 and (task != "translation" or not all(map(all, is_text))):
        raise ValueError(f"--{split}_target_file is for translation from .txt files")
    if len({len(side) for side in is_text}) > 1:
        counts = f"{len(is_text[0])} and {len(is_text[1])}"
        raise ValueError(f"--{split}_file and --{split}_target_file name {counts} files: each needs its translation")
    if len(is_text) == 1 and any(is_text[0]):
        if task == "translation":
            raise ValueError(
                f"--{split}_file is a .txt file: give its translation, line by line, as --{split}_target_file"
            )
        if task == "classification":
            raise ValueError(f"--{split}_file is a .txt file, which has no labels: use .csv, .jsonl or .parquet")


def _check_split_column(arguments: DataArguments, split: str, suffix: str) -> None:
    """One file with a column that says which split a row belongs to."""
    if arguments.split_column is None:
        return
    if split != "train":
        raise ValueError(
            f"--split_column {arguments.split_column} finds the splits in --train_file: give no --{split}_file"
        )
    if suffix == ".txt":
        raise ValueError(f"--split_column {arguments.split_column}: a .txt file has no columns")


def column_options(arguments: DataArguments, task: Task) -> dict[str, str]:
    """Return the names of the columns needed, by the option that sets each."""
    if arguments.turns_column is not None:
        return {"turns_column": arguments.turns_column}
    options = {f"{column}_column": getattr(arguments, f"{column}_column") for column in COLUMNS[task]}
    if len(set(options.values())) < len(options):
        raise ValueError(f"{' and '.join(f'--{option}' for option in options)} name the same column")
    return options


# ---------------------------------------------------------------------------------------------------------- rows
def _task_columns(
    check: RowCheck, split: str, where: str, rows: Dataset, options: Mapping[str, str], task: Task
) -> Dataset:
    """Keep the needed columns under the task's names, and look at every row."""
    if any("." in name for name in options.values()):
        rows = rows.flatten()
    check_columns(where, [name for name in rows.column_names if name not in (ROW, FILE)], options)
    kept = [*options.values(), *(name for name in (ROW, FILE) if name in rows.column_names)]
    rows = rows.select_columns(kept).rename_columns(dict(zip(options.values(), COLUMNS[task])))
    if "turns_column" in options:
        rows = join_turns(where, rows)
    for column in COLUMNS[task]:
        if column != "label":
            rows = with_texts(check, split, where, rows, column, drop_blank=task == "language_model")
    if not len(rows):
        raise ValueError(f"{where} has no rows")
    return rows
