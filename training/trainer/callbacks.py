"""Callbacks of a run: its reports and record, and reasons to stop: no improvement, a signal."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transformers import EarlyStoppingCallback, TrainerCallback
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from vanillaformer.acceleration import chosen
from vanillaformer.console.limits import NOT_NEGATIVE, option
from vanillaformer.console.reporting import report

from ..metrics.scores import SCORES, Evaluation, Score, best_of, evaluations, gain, is_better
from ..run_folder.run import Run, Stopping, discard
from .account import StatefulCallback, from_all
from .budget import Budget

TRAINING_PARTS = (("loss", "loss {:.3f}"), ("learning_rate", "learning rate {:.2g}"))
"""Parts of a printed report, in this order: name and format."""
DUE = ("should_log", "should_evaluate", "should_save")


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
    """Prints reports as lines."""

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
                report(text)


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
        if not state.is_world_process_zero:
            return
        choices = self.run.details.get("acceleration", {}) | chosen()  # which a resumed run keeps
        if not self.written or choices != self.run.details.get("acceleration"):
            self.run.details["acceleration"] = choices
            self.run.write()
        if not self.written:
            discard(self.run.folder)
            self.written = True


def replace_callbacks(trainer: Any) -> None:
    for callback in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(callback)
    for added in (Lines(trainer.budget), EvaluateAtEnd()):
        trainer.add_callback(added)


# ------------------------------------------------------------------------------------------------ reasons to stop
@dataclass
class GuardArguments:
    """Arguments of early stopping."""

    HELP_GROUP = "Evaluation and checkpoints"

    early_stopping_patience: int = option(0, "Early stopping: evaluations to wait; 0 for never", limit=NOT_NEGATIVE)

    def check(self: Any) -> None:
        patience = self.early_stopping_patience
        if patience and self.eval_strategy == "no":
            raise ValueError(f"--early_stopping_patience {patience} needs evaluations: not --eval_strategy no")
        if patience and self.metric_for_best_model is None:
            raise ValueError(f"--early_stopping_patience {patience} needs a --metric_for_best_model")


class EarlyStopping(StatefulCallback, EarlyStoppingCallback):
    """Transformers' early stopping, which reports that it stops, and stays stopped when the run resumes."""

    saved_attributes = ("early_stopping_patience_counter",)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        super().on_train_begin(args, state, control, **kwargs)
        control.should_training_stop |= self.over

    @property
    def over(self) -> bool:
        """Return whether as many evaluations as the patience allows have brought no improvement."""
        return self.early_stopping_patience_counter >= self.early_stopping_patience

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        if state.global_step >= state.max_steps or control.should_training_stop:
            return  # it ends anyway, or has ended
        score, found = SCORES[args.metric_for_best_model], evaluations(state.log_history)
        new, earlier = found[-1], found[:-1]
        if not earlier or self.improves(new, earlier, score):
            self.early_stopping_patience_counter = 0
            return
        self.early_stopping_patience_counter += 1
        if self.over:
            control.should_training_stop = True
            control.should_save = args.save_strategy != "no"
            best = best_of(earlier, score).get(f"eval_{score.name}", math.nan)
            report(
                f"Stopped early at step {state.global_step:,}: no better {score.name} than {best:.4g} in "
                f"{self.early_stopping_patience} evaluations."
            )

    def improves(self, new: Evaluation, earlier: Sequence[Evaluation], score: Score) -> bool:
        """Return whether an evaluation counts as an improvement on earlier ones.

        Its score has to be better, or with an equal score its loss. As long as the score has not moved from its first
        value, like BLEU near 0, a new lowest loss counts too.
        """
        if is_better(new, best_of(earlier, score), score):
            return True
        moved = any(abs(gain(entry, earlier[0], score)) > score.resolution for entry in (new, *earlier))
        return not moved and is_better(new, best_of(earlier, SCORES["loss"]), SCORES["loss"])


class StopWithCheckpoint(TrainerCallback):
    """Ends training with a checkpoint after the step in which any process received a signal.

    If logs, evaluations or checkpoints come after each epoch, what is due after the last step of one waits for them:
    all is done once, and a run that resumes there has missed nothing.
    """

    def __init__(self, stopping: Stopping, trainer: Any):
        self.stopping, self.trainer, self.number = stopping, trainer, 0
        self.waiting: dict[str, bool] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.stopping.training = True

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        ends = control.should_training_stop or state.epoch == int(state.epoch)
        if ends and "epoch" in (args.logging_strategy, args.eval_strategy, args.save_strategy):
            self.waiting = {name: getattr(control, name) for name in DUE}
            vars(control).update(dict.fromkeys(DUE, False))
        else:
            self.stop(args, control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        vars(control).update({name: due or getattr(control, name) for name, due in self.waiting.items()})
        self.waiting = {}
        self.stop(args, control)

    def stop(self, args: Any, control: Any) -> None:
        self.number = max(from_all(self.stopping.number, args.device))
        if self.number:
            self.trainer.extra_checkpoint = not control.should_save
            control.should_save = True

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.stopping.training and not self.number:  # not after training
            self.stop(args, control)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.number:
            self.stopping.number = self.number
            raise KeyboardInterrupt

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.stopping.training = False
        if self.stopping.number:  # since the last step
            raise KeyboardInterrupt
