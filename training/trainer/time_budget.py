"""A time budget: training that ends, and its schedule with it, when a given time is over, however fast the machine is.

Nothing is counted in steps: the progress of a run is the share of its time, and the learning rate, evaluations,
checkpoints and reports follow the progress.
"""

import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from transformers import Trainer

from vanillaformer.hub.reporting import report

from ..limits import POSITIVE, check_limits
from ..parsing import was_given
from .guards import StatefulCallback, from_first_process, total

Clock = Callable[[], float]

DEFAULT_TIME = 600.0
"""Seconds of a run that nobody gave a length."""
LENGTHS = ("max_steps", "num_train_epochs")
"""Other lengths of a run, which exclude a time."""
NUMBER = r"(\d+(?:\.\d*)?)"
DURATION = re.compile(rf"(?:{NUMBER}\s*h)?\s*(?:{NUMBER}\s*m(?:in)?)?\s*(?:{NUMBER}\s*s?)?")
UNITS = (3600, 60, 1)

UNLIMITED = 10**9
"""Steps that no run comes to."""
UNCOUNTED_STEPS = 3
"""First steps of a process, in which caches are filled and models compiled: they count as much as the next one."""
SMOOTHING = 0.02
"""Weight of a new step in the mean duration of steps."""
SCHEDULE_STEPS = 1_000
"""Steps of the schedule, which progress runs through, and between them."""
WARMUP_SHARE = 0.05
"""Part of the schedule that a warm-up given in steps takes."""
ENDLESS = ("constant", "constant_with_warmup", "inverse_sqrt")
"""Schedules that depend on the steps since the warm-up and not on the length of the run."""
FIRST_EVALUATION, FIRST_LOG = 60.0, 10.0
"""Seconds of training until the first evaluation and the first report at the latest."""
EVALUATION_SHARE = 0.1
"""Largest part of the time that evaluations and checkpoints take; with the first and the last one it can be more."""


@dataclass
class TimeBudgetArguments:
    """How long a run may take."""

    HELP_GROUP = "Training"

    max_time: str | None = field(
        default=None,
        metadata={
            "help": "Time until training ends, data included: 90s, 10m, 1h30m "
            "(default: 10m, unless --max_steps or --num_train_epochs is given)"
        },
    )
    max_epochs: float | None = field(default=None, metadata={"help": "Maximum number of passes within --max_time"})

    def check(self: Any) -> None:
        """Note when the program starts, and set `max_time` to seconds; raise ValueError if it is not a time."""
        self.started = time.monotonic()
        if self.max_time is not None:
            self.max_time = seconds_of(self.max_time)
        check_limits(self, {"max_epochs": POSITIVE})


def set_length(training_args: Any) -> None:
    """Give a run that nobody gave a length the default time.

    Raises:
        ValueError: A time is given together with another length, or `max_epochs` without a time.
    """
    lengths = [name for name in LENGTHS if was_given(training_args, name) and getattr(training_args, name) > 0]
    if training_args.max_time is None and not lengths:
        training_args.max_time = DEFAULT_TIME
    for option in ("max_time", "max_epochs"):
        value = getattr(training_args, option)
        if lengths and value is not None:
            given = in_words(value, ("h", "m", "s")) if option == "max_time" else f"{value:g}"
            other = f"--{lengths[0]} {getattr(training_args, lengths[0]):g}"
            raise ValueError(f"--{option} {given} and {other}: give one of them")


def seconds_of(duration: str | float) -> float:
    """Return the seconds of a duration such as 90s, 10m, 1h30m or a number of seconds.

    Raises:
        ValueError: It is not a duration above 0.
    """
    match = DURATION.fullmatch(str(duration).strip().lower())
    numbers = match.groups("0") if match else ()
    seconds = sum((float(number) * unit for number, unit in zip(numbers, UNITS)), 0.0)
    if not 0 < seconds < math.inf:
        raise ValueError(f"--max_time {duration}: it must be a time above 0, such as 90s, 10m or 1h30m")
    return seconds


def in_words(seconds: float, units: Sequence[str] = (" hour", " minute", " second")) -> str:
    """Return a duration in hours, minutes and seconds; with units of one letter as an option is given."""
    counts = (seconds // 3600, seconds % 3600 // 60, round(seconds % 60, 3))
    short = len(units[0]) == 1
    parts = [f"{count:g}{unit}{'' if short or count == 1 else 's'}" for count, unit in zip(counts, units) if count]
    return ("" if short else " ").join(parts)


def in_short(seconds: float) -> str:
    """Return a duration in the largest unit that it has."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 99.5 * 60 else f"{seconds / 3600:.1f} h"


class Marks:
    """Points of a run's progress at which something is due.

    Args:
        first: Seconds of training after which it is due for the first time.
    """

    def __init__(self, first: float):
        self.first, self.last = first, -1.0

    def due(self, progress: float, seconds: float, interval: float) -> bool:
        """Tell whether a mark has been passed; none comes shortly before the end.

        Args:
            progress: The progress of the run.
            seconds: Seconds of training.
            interval: The progress from one mark to the next.
        """
        due = progress >= (interval if self.last < 0 else self.last + interval)
        if not (due or (self.last < 0 and seconds >= self.first)) or progress > 1 - interval / 2:
            return False
        self.last = progress
        return True


class TimeBudget(StatefulCallback):
    """Ends a training in time, and plans what comes before by its progress.

    Progress is `w / (w + r)`, with w the seconds spent in steps and r those that are left for steps: the budget
    without what is spent and without what evaluations will take; or the share of the largest number of steps, if that
    is more. It never goes back. The last evaluation is part of the budget. Steps get at least half of the budget,
    however long the data and evaluations take.

    Args:
        seconds: The budget.
        started: When it began, by the clock.
        clock: Returns a time in seconds; the first process's counts.

    Attributes:
        spent: Seconds of the budget that are over, those before an interruption included.
        largest: The largest number of steps; None for no limit.
        progress: The progress of the run.
        position: The position in the schedule: the progress, if the warm-up is not given in steps.
    """

    saved_attributes = ("spent", "prepared", "pauses", "work", "warmup_work", "step", "evaluation", "saving", "ended")

    def __init__(self, seconds: float, started: float, clock: Clock = time.monotonic):
        self.seconds, self.origin, self.clock = seconds, started, clock
        self.largest: int | None = None
        self.spent = self.prepared = self.pauses = 0.0  # seconds until now, until training began, and in evaluations
        self.work = self.warmup_work = 0.0  # seconds in steps, and those in the steps of the warm-up
        self.step = self.evaluation = self.saving = 0.0  # seconds of a step, of an evaluation and of a checkpoint
        self.ended = 0.0  # the budget that has come to its end
        self.progress = self.position = 0.0
        self.over = self.training = False
        self.counted = -UNCOUNTED_STEPS  # steps of this process
        self.evaluations = 0  # those at marks
        first = min(FIRST_EVALUATION, seconds / 5)
        self.marks = {"eval": Marks(first), "save": Marks(first), "logging": Marks(FIRST_LOG)}
        self.tokens: Any = 0  # of this process since the last report
        self.unit = "tokens"
        self.busy = self.rate = 0.0  # seconds in steps since the last report, and tokens a second until it

    # -------------------------------------------------------------------------------------------------- the time
    def read(self, device: torch.device) -> float:
        """Read the clock; return the seconds since the last time."""
        before, self.spent = self.spent, from_first_process(self.clock() - self.origin, device)
        return self.spent - before

    @property
    def end(self) -> float:
        """When training ends, its last evaluation included, in seconds of the budget."""
        return max(self.seconds, self.prepared + self.pauses + self.evaluation + self.saving + self.seconds / 2)

    @property
    def left(self) -> float:
        """Seconds that are left for steps."""
        cost = self.evaluation + self.saving
        evaluations = min(EVALUATION_SHARE, 10 * cost / (self.end - self.prepared))  # about ten, or fewer
        return max(0.0, self.end - self.spent - cost) * (1 - evaluations)

    def total_steps(self, step: int) -> int:
        """Return how many steps the run will have; `UNLIMITED` while that is unknown."""
        steps = step + max(2, round(self.left / self.step)) if self.step else UNLIMITED
        return min(steps, max(self.largest or UNLIMITED, step + 2))

    def steps_text(self, state: Any) -> str:
        """Return how many steps the run will have, in words."""
        if self.over or state.max_steps == self.largest:
            return f"{state.max_steps:,}"
        rounded = max(state.global_step, float(f"{state.max_steps:.2g}"))
        return f"≈{rounded:,.0f}" if state.max_steps < UNLIMITED else "?"

    def time_left(self, state: Any) -> str:
        """Return the time until training ends, in words."""
        seconds = max(0.0, self.end - self.spent)
        if self.largest is not None and self.step:
            seconds = min(seconds, (self.largest - state.global_step) * self.step + self.evaluation + self.saving)
        return f"{in_short(seconds)} left"

    def share(self, step: int, work: float = 0.0, steps: int = 0) -> float:
        """Return which part of the run is over, from a step and the work done until it."""
        done, left = self.work - work, self.left
        parts = [1.0 if left <= 0 else done / (done + left)]
        if self.largest is not None:
            parts.append((step - steps) / max(1, self.largest - steps))
        return min(1.0, max(parts))

    def advance(self, step: int, warmup_steps: float) -> None:
        """Take a step that has just been made into the progress."""
        self.over = self.left <= self.step / 2 or (self.largest is not None and step >= self.largest)
        self.progress = 1.0 if self.over else max(self.progress, self.share(step))
        if warmup_steps < 1 or self.over:
            position = max(self.progress, min(step, UNCOUNTED_STEPS) / SCHEDULE_STEPS)  # at first it is unknown
        elif step <= warmup_steps:
            position, self.warmup_work = WARMUP_SHARE * step / warmup_steps, self.work
        else:
            share = self.share(step, self.warmup_work, int(warmup_steps))
            position = WARMUP_SHARE + (1 - WARMUP_SHARE) * share
        self.position = max(self.position, position)

    # ---------------------------------------------------------------------------------------- events of the Trainer
    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        super().on_train_begin(args, state, control, **kwargs)
        self.training = True
        if self.spent:  # before the run was interrupted
            self.origin = self.clock() - self.spent
            self.read(args.device)
        else:
            self.prepared = self.read(args.device)
        if state.global_step:
            self.advance(state.global_step, args.warmup_steps)
            for marks in self.marks.values():
                marks.last = self.progress
        state.max_steps = self.total_steps(state.global_step)
        self.over = self.over or self.ended >= self.seconds
        if self.over:
            self.stop(state, control)

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Measure a step, before the schedule asks for the next learning rate."""
        seconds = self.read(args.device)
        self.counted, self.busy = self.counted + 1, self.busy + seconds
        if self.counted > 0:
            self.work += seconds * (1 + UNCOUNTED_STEPS * (self.counted == 1))
            self.step += (seconds - self.step) * max(1 / self.counted, SMOOTHING)
        self.advance(state.global_step + 1, args.warmup_steps)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.over:
            self.stop(state, control)
            control.should_log |= args.logging_strategy != "no"
            control.should_save |= args.save_strategy != "no"
        else:
            state.max_steps = self.total_steps(state.global_step)
            self.plan(args, state, control)
        if control.should_log:
            tokens, self.tokens = total(self.tokens, args.device), 0
            self.rate, self.busy = tokens / max(self.busy, 1e-9), 0.0

    def stop(self, state: Any, control: Any) -> None:
        """End training after this step."""
        state.max_steps = state.global_step
        if self.largest is None or state.global_step < self.largest:  # the time is over
            self.ended = self.seconds
        control.should_training_stop = True

    def plan(self, args: Any, state: Any, control: Any) -> None:
        """Have logs, evaluations and checkpoints made whose intervals are given as fractions of the run."""
        run = self.work / self.progress if self.work else self.end - self.prepared  # seconds in steps
        shortest = (self.evaluation + self.saving) / EVALUATION_SHARE / run
        control.should_log |= planned(args, "logging") and self.due("logging", args.logging_steps)
        if not planned(args, "eval"):
            control.should_save |= planned(args, "save") and self.due("save", max(args.save_steps, shortest))
        elif args.eval_delay <= state.global_step and self.due("eval", max(args.eval_steps, shortest)):
            each = round(args.save_steps / args.eval_steps)
            control.should_evaluate = True
            control.should_save |= planned(args, "save") and self.evaluations % each == 0
            self.evaluations += 1

    def due(self, name: str, interval: float) -> bool:
        """Tell whether a mark has been passed."""
        return self.marks[name].due(self.progress, self.spent - self.prepared, interval)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.training:
            first, self.evaluation = not self.evaluation, self.read(args.device)
            if first and self.evaluation > self.seconds / 10:
                report(
                    f"An evaluation takes {in_short(self.evaluation)} of the {in_words(self.seconds)}: "
                    "with fewer rows, --max_validation_samples, there is more time to train."
                )
            self.pauses += self.evaluation

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.saving = self.read(args.device)
        self.pauses += self.saving

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.training = False


class BudgetTrainer(Trainer):
    """A `Trainer` that ends in time, if `max_time` is given."""

    args: Any  # of the run, with the arguments of this package
    model: Any
    budget: TimeBudget | None = None

    def __init__(self, model: Any, args: Any, *arguments: Any, **keywords: Any):
        if args.max_time is not None:
            args.max_steps = UNLIMITED  # the budget ends it; without, a stream would be refused
        super().__init__(model, args, *arguments, **keywords)
        if args.max_time is not None:
            self.budget = TimeBudget(args.max_time, args.started)
            self.add_callback(self.budget)

    def set_initial_training_values(self, args: Any, dataloader: Any) -> Any:
        values = super().set_initial_training_values(args, dataloader)
        steps_in_epoch = values[1]
        if self.budget is not None and args.max_epochs is not None and steps_in_epoch < UNLIMITED:  # not a stream
            self.budget.largest = math.ceil(args.max_epochs * steps_in_epoch)
        return values

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> LRScheduler:
        budget, warmup, created = self.budget, self.args.warmup_steps, self.lr_scheduler is None
        if budget is None or not created or (warmup >= 1 and self.args.lr_scheduler_type in ENDLESS):
            return super().create_scheduler(num_training_steps, optimizer)
        self.args.warmup_steps = warmup if warmup < 1 else WARMUP_SHARE
        try:
            scheduler = super().create_scheduler(SCHEDULE_STEPS, optimizer)
        finally:
            self.args.warmup_steps = warmup
        if isinstance(scheduler, LambdaLR):  # others follow a score
            scheduler.lr_lambdas = [follow(budget, schedule) for schedule in scheduler.lr_lambdas]
        return scheduler

    def training_step(self, model: nn.Module, inputs: dict[str, Any], *arguments: Any, **keywords: Any) -> Any:
        if self.budget is not None:
            self.budget.unit = "images" if "pixel_values" in inputs else "tokens"
            self.budget.tokens += count_tokens(inputs, encoder_decoder=self.model.config.is_encoder_decoder)
        return super().training_step(model, inputs, *arguments, **keywords)


def planned(args: Any, name: str) -> bool:
    """Tell whether an interval is given as a fraction of the run."""
    return getattr(args, f"{name}_strategy") == "steps" and getattr(args, f"{name}_steps") < 1


def follow(budget: TimeBudget, schedule: Callable[[Any], float]) -> Callable[[int], float]:
    """Return a schedule that is where the budget is, whatever the step."""

    def factor(step: int) -> float:
        return schedule(budget.position * SCHEDULE_STEPS)

    return factor


def count_tokens(inputs: dict[str, Any], *, encoder_decoder: bool) -> Any:
    """Return the tokens of a batch, source and target, without padding; of images, how many there are."""
    if "pixel_values" in inputs:
        return len(inputs["pixel_values"])
    mask = inputs.get("attention_mask")
    tokens = inputs["input_ids"].numel() if mask is None or mask.ndim != 2 else mask.sum()
    return tokens + (inputs["labels"] != -100).sum() if encoder_decoder else tokens
