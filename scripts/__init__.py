"""The command-line programs: thin entry points of the package."""

from collections.abc import Callable
from functools import partial
from typing import Any

from vanillaformer.console.program import program


def training_program(name: str) -> tuple[Callable[..., Any], Callable[..., None]]:
    """Return the function that trains a program's task and returns the run, and the program that calls it."""
    from vanillaformer.training.run import train  # takes seconds to import, and only trainings need it
    from vanillaformer.training.tasks import task_of

    train_task = partial(train, task_of(name))
    return train_task, program(train_task)
