"""Callbacks of every run: its reports and progress bars, its evaluation at the end, its record."""

import sys
import time
from typing import Any

from tqdm.auto import tqdm
from transformers import TrainerCallback
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from ..machine import free_core_threads
from ..metrics.scores import SCORES
from ..run_folder.run import Run, discard
from .budget import UNLIMITED, Budget

TRAINING_PARTS = (("loss", "loss {:.3f}"), ("learning_rate", "learning rate {:.2g}"))
"""Parts of a printed report, in this order: name and format."""


def scores_text(metrics: dict[str, float], prefix: str) -> str:
    """Return the known scores among the metrics of a split, as one line."""
    found = ((score.text, metrics.get(f"{prefix}_{name}")) for name, score in SCORES.items())
    return " · ".join(text.format(value) for text, value in found if text is not None and value is not None)


def line(state: Any, logs: dict[str, Any], seconds: float, budget: Budget | None = None) -> str | None:
    """Return the line for a report of the Trainer; None for its final summary, which the run prints itself."""
    time, speed = [f"{seconds:4.0f} s"], list[str]()
    start = f"step {state.global_step:>{len(str(state.max_steps))}}/{state.max_steps}"
    if budget is not None:
        start = f"step {state.global_step:,}/{budget.steps_text(state)}"
        time, speed = budget.texts(state, seconds)
    if any(name.startswith("eval_") for name in logs):
        return " · ".join([start, *time, f"validation: {scores_text(logs, 'eval') or 'no token to predict'}"])
    if "loss" not in logs:
        return None
    parts = (text.format(float(logs[name])) for name, text in TRAINING_PARTS if name in logs)
    return " · ".join([start, *time, *speed, *parts])


class Lines(TrainerCallback):
    """Prints reports as lines, without progress bars."""

    started: float | None = None

    def __init__(self, budget: Budget | None = None):
        self.budget = budget

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.started = time.perf_counter()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.started = None  # later evaluations are printed by the run

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if state.is_world_process_zero and self.started is not None:
            text = line(state, logs or {}, time.perf_counter() - self.started, self.budget)
            if text is not None:
                tqdm.write(text)  # above the bars, if there are any
                sys.stdout.flush()


class Bars(ProgressCallback):
    """The Trainer's progress bars; `Lines` prints the reports."""

    training_bar: Any

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        super().on_train_begin(args, state, control, **kwargs)
        self.set_total(state)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.set_total(state)
        super().on_step_end(args, state, control, **kwargs)

    def set_total(self, state: Any) -> None:
        """Set the number of steps, which a time budget estimates anew in each."""
        if state.is_world_process_zero:
            self.training_bar.total = state.max_steps if state.max_steps < UNLIMITED else None

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Print nothing."""


class FollowRun(TrainerCallback):
    """Has a resumed run follow its options and epochs, not those of the checkpoint."""

    def __init__(self, trainer: Any):
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        state.compute_steps(args, state.max_steps)  # those of the checkpoint may be of a shorter run

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer.set_epoch(int(state.epoch or 0))


class FollowFreeCores(TrainerCallback):
    """Adjusts the number of CPU threads to the cores that are free."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        free_core_threads().adjust()

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # evaluations are logged too
        free_core_threads().adjust()


class EvaluateAtEnd(TrainerCallback):
    """Evaluates after the last step too: otherwise it could not be the best one."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step >= state.max_steps and args.eval_strategy != "no":
            control.should_evaluate = True
            control.should_save = args.save_strategy != "no"


class RecordProgress(TrainerCallback):
    """Writes the record of a run with its first checkpoint, and deletes the run that it replaces."""

    def __init__(self, run: Run):
        self.run, self.written = run, False

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero and not self.written:
            self.run.write()
            discard(self.run.folder)
            self.written = True


def replace_callbacks(trainer: Any) -> None:
    """Put these callbacks in place of the Trainer's."""
    bars = not trainer.args.disable_tqdm
    for callback in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(callback)
    for added in ([Bars()] if bars else []) + [Lines(trainer.budget), EvaluateAtEnd(), FollowFreeCores()]:
        trainer.add_callback(added)
