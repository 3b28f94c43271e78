"""Choosing the defaults of a run by its data, or taking those that it was begun with."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from joblib import cpu_count
from transformers import PreTrainedTokenizerBase
from transformers.utils import is_torch_bf16_gpu_available

from vanillaformer.console.parsing import was_given
from vanillaformer.console.reporting import report
from vanillaformer.data.arrow_files import TextColumn
from vanillaformer.data.labels import label_names
from vanillaformer.data.loading import TaskData
from vanillaformer.data.preprocessing.tokenizing import text_lengths
from vanillaformer.data.tasks import TaskName

from ..machine import has_bfloat16
from ..programs import Arguments
from ..run_folder.run import Run
from ..run_folder.settings import BY_DATA, Settings
from .choices import Default, Machine, set_defaults
from .classification import classifier_defaults, text_facts
from .images import image_defaults
from .language_model import BLOCK, language_model_defaults
from .lengths import LENGTHS, length_defaults
from .translation import pair_facts, translator_defaults

STREAMED, STREAMED_PAIRS = 100_000_000, 1_000_000
"""Bytes of text, and pairs, that a stream is taken to have."""
# The options that may be chosen, by the dataclass that has them
OPTIONS = {
    "data": ("max_length", "max_source_length", "max_target_length", "block_size", "block_stride"),
    "tokenizer": (
        *("tokenizer_algorithm", "tokenizer_vocab_size", "tokenizer_min_frequency", "lowercase"),
        "strip_punctuation",
    ),
    "training": (
        *("per_device_train_batch_size", "rows_per_step", "tokens_per_batch", "optim", "learning_rate"),
        *("lr_scheduler_type", "weight_decay", "label_smoothing_factor", "token_dropout", "max_epochs", "shift"),
        *("early_stopping_patience", "metric_for_best_model", "greater_is_better", "ensemble", "bf16"),
    ),
}


def follows_data(task: TaskName, args: Arguments) -> bool:
    """Tell whether the data chooses the defaults: of a run with a time, and of a new model without a preset."""
    model_args, timed = args.model_args, args.training_args.max_time is not None
    return task in RULES and timed and model_args.preset is None and model_args.model_name_or_path is None


def without_defaults(settings: Settings, args: Arguments) -> Settings:
    """Return the settings of a run with `BY_DATA` for the options that the data chooses."""
    given = {name for part in args for name in getattr(part, "given", ())}
    if "per_device_train_batch_size" in given:
        given.add("rows_per_step")
    return {
        group: {
            name: BY_DATA if name in OPTIONS.get(group, ()) and name not in given else value
            for name, value in values.items()
        }
        for group, values in settings.items()
    }


def follow_data(run: Run, task: TaskName, args: Arguments, data: TaskData) -> None:
    """Set the options that were not given by a rule on the data, print each with its reason, and record them.

    A run that is resumed keeps those that it was begun with. Lengths follow once there is a tokenizer
    (`follow_tokens`).
    """
    if not follows_data(task, args):
        return
    recorded = run.details.get("defaults")
    found = RULES[task](args, data) if recorded is None else [Default(*entry) for entry in recorded]
    run.details["defaults"] = []
    _apply(run, args, found, "Defaults for this data, each an option to be given:")


def follow_tokens(
    run: Run, task: TaskName, args: Arguments, tokenizers: Sequence[PreTrainedTokenizerBase], texts: Sequence[Any]
) -> None:
    """Set the lengths that were not given by the tokens of the training texts, in the same way.

    Args:
        run: The run.
        task: What the model does.
        args: The arguments.
        tokenizers: Those of source and target.
        texts: The columns of the training texts, of a stream the first.
    """
    given: Any = args.data_args
    rule = LENGTHS.get(task)
    if rule is None or not follows_data(task, args) or (task == "translation" and given.is_embedded):
        return
    if any(entry[0] in rule.texts for entry in run.details["defaults"]):
        return  # of a run that is resumed
    counts = {
        option: np.array(text_lengths(tokenizer, column.sample(), side))
        for option, tokenizer, column, side in zip(rule.texts, tokenizers, texts, ("text", "text_target"))
    }
    known = {option: getattr(given, option) for option in rule.texts if was_given(given, option)}
    limit = args.model_args.config_overrides().get("max_position_embeddings")
    _apply(run, args, length_defaults(rule, counts, known, limit), "Lengths for these tokens, in the same way:")


def _apply(run: Run, args: Arguments, found: Sequence[Default], heading: str) -> None:
    applied = set_defaults(args, found)
    run.details["defaults"] += [list(entry) for entry in applied]
    if applied and not run.finished:
        report(heading)
        for option, value, reason in applied:
            text = f"--set {' '.join(value)}" if option == "overrides" else f"--{option} {value}"
            report(f"  {text}: {reason}")


def machine(training_args: Any) -> Machine:
    """Return what there is to compute with."""
    accelerator = torch.accelerator.is_available()
    return Machine(
        seconds=training_args.max_time,
        cores=cpu_count(),
        accelerator=accelerator,
        bfloat16=is_torch_bf16_gpu_available() if accelerator else has_bfloat16(),
    )


def _classifier(args: Arguments, data: TaskData) -> list[Default]:
    texts, held_out = (TextColumn(data.splits[split], "text").sample() for split in ("train", "validation"))
    rows, labels = len(data.splits["train"]), label_names(data.splits)
    facts = text_facts(texts, held_out, rows=rows, classes=len(labels), held_out=len(data.splits["validation"]))
    given: Any = args.data_args
    tokenizer_args: Any = args.tokenizer_args
    limit = args.model_args.config_overrides().get("max_position_embeddings", LENGTHS["classification"].longest)
    length = given.max_length if was_given(given, "max_length") else limit
    chosen = was_given(tokenizer_args, "tokenizer_algorithm")
    algorithm = tokenizer_args.tokenizer_algorithm if chosen else None
    return [
        entry
        for entry in classifier_defaults(facts, machine(args.training_args), length, algorithm)
        if data.stream is None or entry.option not in ("ensemble", "max_epochs")
    ]


def _language_model(args: Arguments, data: TaskData) -> list[Default]:
    given: Any = args.data_args
    size = sum(len(text.encode()) for text in TextColumn(data.splits["train"], "text"))
    return language_model_defaults(
        size if data.stream is None else STREAMED,
        machine(args.training_args),
        block=given.block_size if was_given(given, "block_size") else BLOCK,
        overlap=not given.packing and given.turns_column is None and data.stream is None,
    )


def _translator(args: Arguments, data: TaskData) -> list[Default]:
    given: Any = args.data_args
    if given.is_embedded:
        return []  # sentences of a grammar, which teach nothing about others
    source, target = (TextColumn(data.splits["train"], name).sample() for name in ("source", "target"))
    facts = pair_facts(source, target, pairs=len(data.splits["train"]) if data.stream is None else STREAMED_PAIRS)
    decoding = str(args.model_args.config_overrides().get("decoding"))
    found = translator_defaults(facts, machine(args.training_args), decoding)
    return [entry for entry in found if data.stream is None or entry.option != "tokens_per_batch"]


def _image_classifier(args: Arguments, data: TaskData) -> list[Default]:
    found = image_defaults(len(data.splits["train"]), args.data_args.image_size or 0)
    return [entry for entry in found if data.stream is None or entry.option != "max_epochs"]


RULES: dict[TaskName, Callable[[Arguments, TaskData], list[Default]]] = {
    "classification": _classifier,
    "causal": _language_model,
    "translation": _translator,
    "image_classification": _image_classifier,
}
