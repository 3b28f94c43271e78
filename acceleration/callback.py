"""A Trainer callback for the faster computations, in its own file: importing transformers' Trainer takes seconds."""

from typing import Any

from transformers.trainer_callback import TrainerCallback

from .plug_in import keep_freed_memory, speed_up


class SpeedUp(TrainerCallback):
    """Calls `speed_up` for the model of a Trainer, and keeps freed memory: `Trainer(..., callbacks=[SpeedUp()])`."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        keep_freed_memory()
        speed_up(kwargs["model"])
