"""The command-line programs: thin mains on top of `vanillaformer.training`."""

from collections.abc import Callable
from functools import partial
from typing import Any

from vanillaformer.console.program import program


def training_program(task: type) -> tuple[Callable[..., Any], Callable[..., None]]:
    """Return the training of a task, which returns its run, and the program that does it."""
    from vanillaformer.training.run import train  # seconds to import, for trainings only

    train_task = partial(train, task)
    return train_task, program(train_task)
