"""The command-line programs: thin mains on top of `vanillaformer.training`."""

from collections.abc import Callable
from functools import partial
from typing import Any

from vanillaformer.console.program import program


def training_program(name: str) -> tuple[Callable[..., Any], Callable[..., None]]:
    """Return the training of a program's task, which returns its run, and the program that does it."""
    from vanillaformer.training.run import train  # seconds to import, for trainings only
    from vanillaformer.training.tasks import task_of

    train_task = partial(train, task_of(name))
    return train_task, program(train_task)
