"""The length of a run: in steps, in epochs, or a budget of time, tokens or floating-point operations."""

import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from vanillaformer.console.limits import BUDGETS, POSITIVE, check_limits
from vanillaformer.console.parsing import was_given
from vanillaformer.console.reporting import report

from .account import AccountingTrainer
from .budget import (
    COUNTS,
    SCHEDULE_STEPS,
    UNCOUNTED_STEPS,
    UNLIMITED,
    WARMUP_SHARE,
    Budget,
    CountedBudget,
    follow,
)
from .guards import from_first_process, total

Clock = Callable[[], float]

DEFAULT_TIME = 600.0
"""Seconds of a run that nobody gave a length."""
LENGTHS = ("max_steps", "num_train_epochs", *COUNTS)
"""Other lengths of a run, which exclude a time."""
NUMBER = r"(\d+(?:\.\d*)?)"
DURATION = re.compile(rf"(?:{NUMBER}\s*h)?\s*(?:{NUMBER}\s*m(?:in)?)?\s*(?:{NUMBER}\s*s?)?")
UNITS = (3600, 60, 1)

SMOOTHING = 0.02
"""Weight of a new step in the mean duration of steps."""
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
        metadata={"help": "Time until training ends, with data: 90s, 10m, 1h30m (default: 10m)"},
    )
    max_tokens: float | None = field(default=None, metadata={"help": "Tokens to read in training: 5e6"})
    max_flops: float | None = field(default=None, metadata={"help": "FLOPs of the training: 2e15"})
    max_epochs: float | None = field(default=None, metadata={"help": "Maximum number of passes within the budget"})

    def check(self: Any) -> None:
        """Note when the program starts, and set `max_time` to seconds; raise ValueError if it is not a time."""
        self.started = time.monotonic()
        if self.max_time is not None:
            self.max_time = seconds_of(self.max_time)
        self.max_tokens, self.max_flops = (None if x is None else float(x) for x in (self.max_tokens, self.max_flops))
        check_limits(self, dict.fromkeys(("max_epochs", *COUNTS), POSITIVE))


def set_length(training_args: Any) -> None:
    """Give a run that nobody gave a length the default time.

    Raises:
        ValueError: A budget is given together with another length, or `max_epochs` without a budget.
    """
    given = {name: getattr(training_args, name) for name in dict.fromkeys((*BUDGETS, *LENGTHS))}
    given = {name: value for name, value in given.items() if was_given(training_args, name) and (value or 0) > 0}
    if not given:
        training_args.max_time = DEFAULT_TIME
    elif training_args.max_epochs is not None and not given.keys() & set(BUDGETS):
        given = {"max_epochs": training_args.max_epochs} | given
    if len(given) > 1 and given.keys() & {*BUDGETS, "max_epochs"}:  # of steps and epochs, steps count
        first, second, *_ = given
        options = (f"--{name} {option_value(name, given[name])}" for name in (first, second))
        raise ValueError(f"{' and '.join(options)}: give one of them")


def budget_option(training_args: Any) -> str | None:
    """Return the option that gives a run a budget, if there is one."""
    return next((name for name in BUDGETS if getattr(training_args, name) is not None), None)


def option_value(name: str, value: float) -> str:
    """Return a length as its option is given."""
    return in_words(value, ("h", "m", "s")) if name == "max_time" else f"{value:g}"


def budget_in_words(name: str, amount: float) -> str:
    """Return an amount of a budget with its unit."""
    if name == "max_time":
        return in_words(amount)
    return f"{amount:{COUNTS[name][2]}} {COUNTS[name][1]}"


def spent_in_words(name: str, amount: float) -> str:
    """Return what is spent of a budget, rounded if it is a time."""
    return in_short(amount) if name == "max_time" else budget_in_words(name, amount)


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


class TimeBudget(Budget):
    """A budget of time.

    What is left for steps is the budget without what is spent and without what evaluations will take. The last
    evaluation is part of it. Steps get at least half of the budget, however long the data and evaluations take.

    Args:
        seconds: The budget.
        started: When it began, by the clock.
        clock: Returns a time in seconds; the first process's counts.
    """

    saved_attributes = (*Budget.saved_attributes, "pauses", "evaluation", "saving")
    option = "max_time"

    def __init__(self, seconds: float, started: float, clock: Clock = time.monotonic):
        self.first = min(FIRST_EVALUATION, seconds / 5), FIRST_LOG
        super().__init__(seconds)
        self.origin, self.clock = started, clock
        self.pauses = 0.0  # seconds in evaluations and checkpoints
        self.evaluation = self.saving = 0.0  # seconds of the next evaluation and checkpoint
        self.counted = -UNCOUNTED_STEPS  # steps of this process
        self.busy = self.rate = 0.0  # seconds in steps since the last report, and tokens a second until it

    def read(self, device: torch.device) -> float:
        """Read the clock; return the seconds since the last time."""
        before, self.spent = self.spent, from_first_process(self.clock() - self.origin, device)
        return self.spent - before

    @property
    def end(self) -> float:
        """When training ends, its last evaluation included, in seconds of the budget."""
        return max(self.amount, self.prepared + self.pauses + self.evaluation + self.saving + self.amount / 2)

    @property
    def left(self) -> float:
        """Seconds that are left for steps."""
        cost = self.evaluation + self.saving
        evaluations = min(EVALUATION_SHARE, 10 * cost / (self.end - self.prepared))  # about ten, or fewer
        return max(0.0, self.end - self.spent - cost) * (1 - evaluations)

    def time_left(self, state: Any) -> str:
        """Return the time until training ends, in words."""
        seconds = max(0.0, self.end - self.spent)
        if self.largest is not None and self.step:
            seconds = min(seconds, (self.largest - state.global_step) * self.step + self.evaluation + self.saving)
        return f"{in_short(seconds)} left"

    @property
    def seconds_of_training(self) -> float:  # type: ignore[override]
        return self.spent - self.prepared

    @property
    def shortest_interval(self) -> float:  # type: ignore[override]
        run = self.work / self.progress if self.work else self.end - self.prepared  # seconds in steps
        return (self.evaluation + self.saving) / EVALUATION_SHARE / run

    def texts(self, state: Any, seconds: float) -> tuple[list[str], list[str]]:
        return [f"{self.spent:.0f} s", self.time_left(state)], [f"{self.rate:,.0f} {self.unit}/s"]

    def begin(self, device: torch.device) -> None:
        if self.spent:  # before the run was interrupted
            self.origin = self.clock() - self.spent
            self.read(device)
        else:
            self.prepared = self.read(device)

    def measure_step(self, device: torch.device) -> None:
        seconds = self.read(device)
        self.counted, self.busy = self.counted + 1, self.busy + seconds
        if self.counted > 0:
            self.work += seconds * (1 + UNCOUNTED_STEPS * (self.counted == 1))
            self.step += (seconds - self.step) * max(1 / self.counted, SMOOTHING)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        super().on_step_end(args, state, control, **kwargs)
        if control.should_log:
            tokens, self.tokens = total(self.tokens, args.device), 0
            self.rate, self.busy = tokens / max(self.busy, 1e-9), 0.0

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.training:
            first, seconds = not self.evaluation, self.read(args.device)
            self.evaluation = seconds * self.growth
            if first and seconds > self.amount / 10:
                report(
                    f"An evaluation takes {in_short(seconds)} of the {in_words(self.amount)}: "
                    "with fewer rows, --max_validation_samples, there is more time to train."
                )
            self.pauses += seconds

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.saving = self.read(args.device)
        self.pauses += self.saving


class BudgetTrainer(AccountingTrainer):
    """A `Trainer` that ends with its budget, if it has one."""

    budget: Budget | None = None
    ahead: tuple[Any, Any] = None, None  # the data of an epoch, and the step that was read of it ahead

    def __init__(self, model: Any, args: Any, *arguments: Any, **keywords: Any):
        option = budget_option(args)
        if option is not None:
            args.max_steps = UNLIMITED  # the budget ends it; without, a stream would be refused
        super().__init__(model, args, *arguments, **keywords)
        if option == "max_time":
            self.budget = TimeBudget(args.max_time, args.started)
        elif option is not None:
            self.budget = CountedBudget(option, getattr(args, option), self.account)
        if self.budget is not None:
            self.add_callback(self.budget)

    def set_initial_training_values(self, args: Any, dataloader: Any) -> Any:
        values = super().set_initial_training_values(args, dataloader)
        steps_in_epoch = values[1]
        if self.budget is not None and args.max_epochs is not None and steps_in_epoch < UNLIMITED:  # not a stream
            self.budget.largest = math.ceil(args.max_epochs * steps_in_epoch)
        return values

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> Any:
        """Read a step ahead, so that a budget that is counted ends with the step that comes nearest to it."""
        if not isinstance(self.budget, CountedBudget):
            return super().get_batch_samples(epoch_iterator, num_batches, device)
        iterator, step = self.ahead
        if iterator is not epoch_iterator:  # of a new epoch
            step = self.read_step(epoch_iterator, num_batches, device)
        following = self.read_step(epoch_iterator, self.args.gradient_accumulation_steps, device)
        self.ahead = epoch_iterator, following
        flops = self.budget.option == "max_flops"
        sizes = [
            sum(self.size_of(inputs, flops=flops) for inputs in samples) for (samples, _), *_ in (step, following)
        ]
        self.budget.sizes = total(sizes[0], device), total(sizes[1], device)
        samples, self.idle, self.second_items = step
        return samples

    def read_step(self, epoch_iterator: Any, num_batches: int, device: Any) -> tuple[Any, bool, Any]:
        """Return the batches of a step, and what is noted of them when they are read."""
        return super().get_batch_samples(epoch_iterator, num_batches, device), self.idle, self.second_items

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
        loss = super().training_step(model, inputs, *arguments, **keywords)
        if self.budget is not None:
            images = "pixel_values" in inputs
            self.budget.unit = "images" if images else "tokens"
            self.budget.tokens += self.reading.rows if images else self.reading.tokens
        return loss
