"""How the arguments of the training programs are read."""

import dataclasses
import sys
from collections.abc import Sequence

from transformers import PreTrainedConfig

from vanillaformer.configuration import PRESETS
from vanillaformer.configuration.options import OPTIONS, SEQUENCE_POSITION_CHOICES
from vanillaformer.console.parsing import parse
from vanillaformer.data.tasks import KINDS, TASKS, TaskName

from .arguments import Arguments
from .tasks import PROGRAMS, task_of
from .trainer.time_budget import set_length


def parse_arguments(program: str, argv: Sequence[str] | None = None) -> Arguments:
    """Return the arguments of a training program, from the command line or a settings file.

    Args:
        program: Its name, as a subcommand of `vanillaformer`.
        argv: The arguments; `sys.argv[1:]` when None.
    """
    task = task_of(program)
    follow = f"Without --preset and --max_steps, {task.follow} follow the data."
    kinds = tuple(dict.fromkeys(kind for name in task.tasks() for kind in TASKS[name].model_kinds))
    fields = config_fields(kinds)
    description = sys.modules[task.__module__].__doc__ or ""
    found = parse(
        task.arguments,
        argv,
        description=description.replace("\n\nExamples:", f" {follow}\n\nExamples:"),
        notes={"preset": preset_note(task.tasks(), kinds)},
        names={"Configuration fields for --set": fields},
        config_fields=[text.partition(" ")[0] for text in fields],
        elsewhere=lambda: {f"vanillaformer {name}": task_of(name).arguments for name in PROGRAMS if name != program},
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
