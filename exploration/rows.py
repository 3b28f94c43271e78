"""Held-out rows from a file, as the batches on which the model is scored: read and tokenized like the run's data."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from datasets import Dataset, DatasetDict
from transformers import DataCollatorForSeq2Seq, DataCollatorWithPadding

from vanillaformer.console.parsing import read_settings
from vanillaformer.data.arguments import DATA_ARGUMENTS
from vanillaformer.data.loading import load_held_out
from vanillaformer.data.preprocessing.batching import EpochCollator, evaluation_order
from vanillaformer.data.preprocessing.images import ImageCollator
from vanillaformer.data.preprocessing.language_model import language_model_collator, language_model_rows
from vanillaformer.data.preprocessing.tokenizing import (
    RAW_TEXTS,
    classification_rows,
    set_truncation_side,
    translation_rows,
)
from vanillaformer.data.splits import cap
from vanillaformer.data.tasks import TASKS, TaskName
from vanillaformer.inference.tasks import UNREJECTED
from vanillaformer.training.run_folder.files import RECORD
from vanillaformer.training.run_folder.run import BY_DATA

Settings = dict[str, Any]
Rows = tuple[Dataset, Callable[[list[Any]], Any]]  # rows as the model reads them, and their collator

BATCH = 32
SPLIT = "validation"
LENGTHS = {"max_source_length", "max_target_length", "max_length", "block_size"}
READING = LENGTHS | {
    *("source_column", "target_column", "text_column", "label_column", "image_column", "turns_column"),
    *("text_pair_column", "source_prefix", "task_column", "target_lang_column"),
    *("csv_separator", "csv_quoting", "long_texts", "sample_by", "packing", "reverse_turns", "truncation_side"),
}
"""Settings of how a file is read; the others say which files are read, and how much of them."""


def held_out_rows(
    model: Any,
    tokenizers: tuple[Any, ...],
    file: str,
    *,
    folder: Path,
    count: int,
    target_file: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> list[dict[str, torch.Tensor]]:
    """Return batches of at most `count` rows, or blocks of running text, of a file, on the model's device.

    They are read with the settings of the run.json in the model's folder, if there is one, and `options`, which take
    precedence. Masks are those of an evaluation after training. If there are more rows, a fixed sample is drawn. For
    images, `tokenizers` holds the image processor.
    """
    architecture = type(model).__name__
    task = next((name for name in ROWS if architecture.endswith(TASKS[name].architectures)), None)
    problem = getattr(model.config, "problem_type", None)
    if task is None or problem in UNREJECTED:
        raise ValueError(f"{architecture}{f', problem_type={problem!r},' if problem else ''} cannot be scored on rows")
    data, training = recorded_settings(folder)
    known = {field.name: field.default for field in fields(DATA_ARGUMENTS[task])}
    if unknown := sorted({*(options or {})} - known.keys()):
        raise ValueError(f"--rows_set {unknown[0]}: the settings are {', '.join(sorted(known))}")
    if unset := [name for name, value in (options or {}).items() if value is None and isinstance(known[name], str)]:
        raise ValueError(f"--rows_set {unset[0]}=null: it must have a value, such as {known[unset[0]]}")
    settings = {name: data[name] for name in data.keys() & known.keys()} | dict(options or {})
    data_args: Any = DATA_ARGUMENTS[task](train_file=[file], **settings)
    if target_file is not None:
        data_args.train_target_file = [target_file]
    limit = getattr(model.config, "max_position_embeddings", None)
    for name in LENGTHS if limit is not None else ():
        if hasattr(data_args, name):
            setattr(data_args, name, min(getattr(data_args, name), limit))
    if hasattr(data_args, "choose_sampling"):
        data_args.choose_sampling(task)
    if TASKS[task].reads_images:
        data_args.image_size = tokenizers[0].size["height"]
    names = [model.config.id2label[label] for label in range(model.config.num_labels)]
    try:
        texts = DatasetDict({SPLIT: load_held_out(data_args, task, names)})
    except ValueError as error:
        message = str(error).replace("--train_file", "--rows").replace("--train_target_file", "--rows_target")
        raise ValueError(message) from error
    rows, collate = ROWS[task](texts, model, tokenizers, data_args, training)
    rows = cap(rows.remove_columns([name for name in RAW_TEXTS if name in rows.column_names]), count, seed=0)
    order = evaluation_order(rows).tolist()
    with collate.evaluation() if isinstance(collate, EpochCollator) else nullcontext():
        batches = [collate([rows[row] for row in order[at : at + BATCH]]) for at in range(0, len(order), BATCH)]
    return [{name: tensor.to(model.device) for name, tensor in batch.items()} for batch in batches]


def recorded_settings(folder: Path) -> tuple[Settings, Settings]:
    """Return how the run in a folder read its data, and the settings of its training; empty if there is no run."""
    path = folder / RECORD
    if not path.is_file():
        return {}, {}
    record = read_settings(path)
    settings, chosen = record.get("settings", {}), record.get("details", {}).get("defaults", [])
    data = settings.get("data", {}) | {option: value for option, value, _ in chosen}
    found = {name: data[name] for name in READING & data.keys() if data[name] not in (None, BY_DATA)}
    return found, settings.get("training", {})


def pairs(texts: DatasetDict, model: Any, tokenizers: tuple[Any, ...], data_args: Any, training: Settings) -> Rows:
    rows = translation_rows(texts, tokenizers, data_args)
    return rows[SPLIT], DataCollatorForSeq2Seq(tokenizers[0], model=model)


def blocks(texts: DatasetDict, model: Any, tokenizers: tuple[Any, ...], data_args: Any, training: Settings) -> Rows:
    objective = "causal" if model.predicts_next_token else "masked"
    arguments = SimpleNamespace(**({"mlm_probability": 0.15, "seed": 42} | training | {"objective": objective}))
    rows = language_model_rows(texts, tokenizers[0], data_args, arguments)
    return rows[SPLIT], language_model_collator(model, tokenizers[0], data_args.block_size, arguments)


def labeled(texts: DatasetDict, model: Any, tokenizers: tuple[Any, ...], data_args: Any, training: Settings) -> Rows:
    set_truncation_side(tokenizers[0], data_args.truncation_side)
    rows = classification_rows(texts, tokenizers[0], data_args)
    return rows[SPLIT], DataCollatorWithPadding(tokenizers[0])


def images(texts: DatasetDict, model: Any, tokenizers: tuple[Any, ...], data_args: Any, training: Settings) -> Rows:
    rows = texts[SPLIT].rename_columns({"image": "pixel_values", "label": "labels"})
    return rows, ImageCollator(tokenizers[0])


ROWS: dict[TaskName, Callable[[DatasetDict, Any, tuple[Any, ...], Any, Settings], Rows]] = {
    "translation": pairs,
    "causal": blocks,
    "masked": blocks,
    "classification": labeled,
    "image_classification": images,
}
