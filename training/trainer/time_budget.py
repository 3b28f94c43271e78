"""The length of a run: in steps, in epochs, or a budget of time, tokens or floating-point operations."""

import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from vanillaformer.console.limits import BUDGETS, POSITIVE, check_limits, option
from vanillaformer.console.parsing import was_given
from vanillaformer.console.reporting import report

from .account import from_all
from .budget import COUNTS, UNCOUNTED_STEPS, Budget

DEFAULT_TIME = 600.0
"""Seconds of a run for which no length is given."""
LENGTHS = ("max_steps", "num_train_epochs", *COUNTS)
"""Other lengths of a run, which exclude a time."""
NUMBER = r"(\d+(?:\.\d*)?)"
DURATION = re.compile(rf"(?:{NUMBER}\s*h)?\s*(?:{NUMBER}\s*m(?:in)?)?\s*(?:{NUMBER}\s*s?)?")
UNITS = (3600, 60, 1)

SMOOTHING = 0.02
"""Weight of a new step in the mean duration of steps."""
EVALUATION_SHARE = 0.1
"""Largest part of the time that evaluations and checkpoints take; with the first and the last one it can be more."""


@dataclass
class TimeBudgetArguments:
    """How long a run may take."""

    HELP_GROUP = "Training"

    max_time: str | None = option(None, "Time to train, as 90s or 1h30m (default: 10m)")
    max_tokens: float | None = option(None, "Tokens to read in training: 5e6")
    max_flops: float | None = option(None, "FLOPs of the training: 2e15")
    max_epochs: float | None = option(None, "Maximum number of passes within the budget")

    def check(self: Any) -> None:
        """Note when the program starts, and set `max_time` to seconds; raise ValueError if it is not a time."""
        self.started = time.monotonic()
        if self.max_time is not None:
            self.max_time = seconds_of(self.max_time)
        self.max_tokens, self.max_flops = (None if x is None else float(x) for x in (self.max_tokens, self.max_flops))
        check_limits(self, dict.fromkeys(("max_epochs", *COUNTS), POSITIVE))


def set_length(training_args: Any) -> None:
    """Give a run without a length the default time.

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
    """Return the spent part of a budget, rounded if it is a time."""
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

    The rest for steps excludes the spent time and the time that evaluations will take, the last one included. Steps
    get at least half of the budget, however long the data and evaluations take. The first process's clock counts.
    """

    saved_attributes = (*Budget.saved_attributes, "pauses", "evaluation", "saving")
    option = "max_time"

    def __init__(self, seconds: float, started: float, clock: Callable[[], float] = time.monotonic):
        super().__init__(seconds)
        self.origin, self.clock = started, clock
        self.pauses = 0.0  # seconds in evaluations and checkpoints
        self.evaluation = self.saving = 0.0  # seconds of the next evaluation and checkpoint
        self.counted = -UNCOUNTED_STEPS  # steps of this process
        self.busy = self.rate = 0.0  # seconds in steps since the last report, and tokens a second until it

    def read(self, device: torch.device) -> float:
        """Read the clock; return the seconds since the last time."""
        before, self.spent = self.spent, from_all(self.clock() - self.origin, device)[0]
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

    @property
    def shortest_interval(self) -> float:  # type: ignore[override]
        run = self.work / self.progress if self.work else self.end - self.prepared  # seconds in steps
        return (self.evaluation + self.saving) / EVALUATION_SHARE / run

    def texts(self, state: Any, seconds: float) -> tuple[list[str], list[str]]:
        left = max(0.0, self.end - self.spent)
        if self.largest is not None and self.step:
            left = min(left, (self.largest - state.global_step) * self.step + self.evaluation + self.saving)
        return [f"{self.spent:.0f} s", f"{in_short(left)} left"], [f"{self.rate:,.0f} {self.unit}/s"]

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
            tokens, self.tokens = sum(from_all(self.tokens, args.device)), 0
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
