"""The training programs: the arguments of each, and how they are read."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

from transformers import PreTrainedConfig

from vanillaformer.configuration import PRESETS
from vanillaformer.configuration.options import OPTIONS, SEQUENCE_POSITION_CHOICES
from vanillaformer.console.parsing import parse
from vanillaformer.data.arguments import DATA_ARGUMENTS, DataArguments
from vanillaformer.data.tasks import KINDS, TASKS, TaskName

from .arguments import ModelArguments, TokenizerArguments, TranslationTokenizerArguments
from .image_arguments import ImageTrainingArguments
from .trainer.time_budget import set_length
from .training_arguments import (
    ClassifierTrainingArguments,
    LanguageModelTrainingArguments,
    TranslationTrainingArguments,
)


class Arguments(NamedTuple):
    """The arguments of a training program; those of images have no tokenizer."""

    model_args: ModelArguments
    data_args: DataArguments
    tokenizer_args: TokenizerArguments | None
    training_args: Any


ARGUMENTS: dict[str, tuple[type, ...]] = {
    "train-translation": (
        ModelArguments,
        DATA_ARGUMENTS["translation"],
        TranslationTokenizerArguments,
        TranslationTrainingArguments,
    ),
    "train-language-model": (
        ModelArguments,
        DATA_ARGUMENTS["causal"],
        TokenizerArguments,
        LanguageModelTrainingArguments,
    ),
    "train-classifier": (
        ModelArguments,
        DATA_ARGUMENTS["classification"],
        TokenizerArguments,
        ClassifierTrainingArguments,
    ),
    "train-image-classifier": (
        ModelArguments,
        DATA_ARGUMENTS["image_classification"],
        ImageTrainingArguments,
    ),
}
FOLLOWING = {
    "train-translation": "tokenizer, lengths, sizes, batch and optimizer",
    "train-language-model": "vocabulary, blocks, sizes, batch and optimizer (causal)",
    "train-classifier": "tokenizer, length, sizes, learning rate and ensemble",
    "train-image-classifier": "shift, smoothing, batch and epochs",
}
"""Defaults that follow the data, by program."""
TASKS_OF = {program: tuple(name for name, task in TASKS.items() if task.program == program) for program in ARGUMENTS}


def parse_arguments(
    program: str,
    argv: Sequence[str] | None = None,
    description: str | None = None,
) -> Arguments:
    """Return the arguments of a training program, from the command line or a settings file.

    Args:
        program: Its name, as a subcommand of `vanillaformer`.
        argv: The arguments; `sys.argv[1:]` when None.
        description: Shown by `--help`.
    """
    following = f"Without --preset and --max_steps, {FOLLOWING[program]} follow the data."
    tasks = TASKS_OF[program]
    kinds = tuple(dict.fromkeys(kind for task in tasks for kind in TASKS[task].model_kinds))
    fields = config_fields(kinds)
    found = parse(
        ARGUMENTS[program],
        argv,
        description=(description or "").replace("\n\nExamples:", f" {following}\n\nExamples:"),
        notes={"preset": preset_note(tasks, kinds)},
        names={"Configuration fields for --set": fields},
        config_fields=[text.partition(" ")[0] for text in fields],
        elsewhere={f"vanillaformer {name}": types for name, types in ARGUMENTS.items() if name != program},
    )
    model_args, data_args, *tokenizer_args, training_args = found
    set_length(training_args)
    return Arguments(model_args, data_args, next(iter(tokenizer_args), None), training_args)


def preset_note(tasks: Sequence[TaskName], kinds: Sequence[str]) -> str:
    """Return the presets of kinds of models, with those used when none is named."""
    names = [
        ", ".join(name for name, entry in PRESETS.items() if KINDS[entry.config_class.model_type] == kind)
        for kind in kinds
    ]
    used = dict.fromkeys(TASKS[task].preset for task in tasks)
    return f"{'; '.join(names)} (default: {' or '.join(used)})"


def config_fields(kinds: Sequence[str]) -> list[str]:
    """Return the fields that our configurations of kinds of models add to those of transformers, with their values."""
    classes = {entry.config_class for entry in PRESETS.values()}
    known = {entry.name for entry in dataclasses.fields(PreTrainedConfig)}  # type: ignore[arg-type]
    found = {
        entry.name
        for config_class in classes
        if KINDS[config_class.model_type] in kinds
        for entry in dataclasses.fields(config_class)
    }
    names = sorted(name for name in found - known if not name.endswith(("_token_id", "vocab_size")))
    choices = OPTIONS if "image_encoder" in kinds else OPTIONS | {"position_embedding_type": SEQUENCE_POSITION_CHOICES}
    return [f"{name} ({', '.join(choices[name])})" if name in choices else name for name in names]
