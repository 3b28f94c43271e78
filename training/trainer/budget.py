"""The length of a run: steps, epochs, or a budget of time, tokens or operations, by whose progress all is planned.

The progress of a run is the share of its budget that is spent on steps. The learning rate, evaluations, checkpoints
and reports follow the progress; how many steps that will be is estimated.
"""

import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from vanillaformer.console.limits import BUDGETS, POSITIVE, option
from vanillaformer.console.parsing import was_given
from vanillaformer.console.reporting import report

from .account import Account, StatefulCallback, from_all

UNLIMITED = 10**9  # more steps than any run has
PLANNED = ("eval", "save", "logging")  # events at equal intervals of progress
UNCOUNTED_STEPS = 3
"""First steps of a process, in which caches are filled and models compiled: they count as much as the next one."""
SCHEDULE_STEPS = 1_000  # length of the schedule in steps, to which progress is mapped without rounding
WARMUP_SHARE = 0.05  # share of the schedule for a warm-up that is given in steps
COUNTS = {"max_tokens": ("tokens", "tokens", ",.0f"), "max_flops": ("flops", "FLOPs", ".4g")}
"""For each counted budget: its attribute of the account, its unit and its format."""
DEFAULT_TIME = 600.0  # seconds of a run for which no length is given
LENGTHS = ("max_steps", "num_train_epochs", *COUNTS)  # other lengths of a run, which exclude a time
NUMBER = r"(\d+(?:\.\d*)?)"
DURATION = re.compile(rf"(?:{NUMBER}\s*h)?\s*(?:{NUMBER}\s*m(?:in)?)?\s*(?:{NUMBER}\s*s?)?")
UNITS = (3600, 60, 1)
SMOOTHING = 0.02  # minimum weight of a new step in the mean duration of steps
EVALUATION_SHARE = 0.1
"""Maximum share of time for evaluations and checkpoints; with the first and the last one it can be more."""


class Budget(StatefulCallback):
    """Ends a training when its budget is spent, and plans the events until then by its progress.

    Progress is `w / (w + r)`, with w spent in steps and r left for steps; or the share of the largest number of steps,
    if that is more. It never decreases.
    """

    saved_attributes: tuple[str, ...] = (
        *("spent", "prepared", "work", "warmup_work", "step", "ended", "passed", "evaluations"),
    )
    option: str
    shortest_interval = 0.0  # minimum progress between two evaluations

    def __init__(self, amount: float):
        self.amount = amount
        self.largest: int | None = None  # number of steps; None for no limit
        self.spent = self.prepared = 0.0  # so far, interrupted runs included, and before training began
        self.work = self.warmup_work = 0.0  # spent in all steps, and in those of the warm-up
        self.step = 0.0  # mean cost of a step
        self.ended = 0.0  # the amount of a budget that was used up
        self.progress = self.position = 0.0  # the latter in the schedule, whose warm-up can be in steps
        self.over = self.training = False
        self.evaluations = 0  # number of those planned here
        self.passed = dict.fromkeys(PLANNED, 0.0)  # progress at the last one of each
        self.growth = 1.0  # factor by which the next evaluation may take longer than the last one
        self.tokens = 0.0  # of this process since the last report
        self.unit = "tokens"

    left: Any  # the rest of the budget for steps
    begin: Callable[[Any], None]  # measures the part spent before training begins, or before it was interrupted
    measure_step: Callable[[Any], None]  # measures the part spent in a step
    # Returns the spent and the remaining budget and the speed, in words, by the state and the seconds of training
    texts: Callable[[Any, float], tuple[list[str], list[str]]]

    @property
    def next_step(self) -> float:
        """The estimated cost of the next step."""
        return self.step

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

    def share(self, step: int, work: float = 0.0, steps: int = 0) -> float:
        """Return the share of the run that is over at a step, counted from after `steps` steps with their `work`."""
        done, left = self.work - work, self.left
        parts = [1.0 if left <= 0 else done / (done + left)]
        if self.largest is not None:
            parts.append((step - steps) / max(1, self.largest - steps))
        return min(1.0, max(parts))

    def advance(self, step: int, warmup_steps: float) -> None:
        """Add a step that has just been made to the progress."""
        self.over = self.left <= self.next_step / 2 or (self.largest is not None and step >= self.largest)
        self.progress = 1.0 if self.over else max(self.progress, self.share(step))
        if warmup_steps < 1 or self.over:
            position = max(self.progress, min(step, UNCOUNTED_STEPS) / SCHEDULE_STEPS)  # progress is unknown at first
        elif step <= warmup_steps:
            position, self.warmup_work = WARMUP_SHARE * step / warmup_steps, self.work
        else:
            share = self.share(step, self.warmup_work, int(warmup_steps))
            position = WARMUP_SHARE + (1 - WARMUP_SHARE) * share
        self.position = max(self.position, position)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        super().on_train_begin(args, state, control, **kwargs)
        self.training = True
        self.begin(args.device)
        if state.global_step:
            self.advance(state.global_step, args.warmup_steps)
            known = {name: max(0.0, progress) for name, progress in self.passed.items()}  # older versions had fewer
            self.passed = {name: min(known.get(name, self.progress), self.progress) for name in PLANNED}
        state.max_steps = self.total_steps(state.global_step)
        self.over = self.over or self.ended >= self.amount
        if self.over:
            self.stop(state, control)

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Measure a step, before the schedule asks for the next learning rate."""
        self.measure_step(args.device)
        self.advance(state.global_step + 1, args.warmup_steps)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.over:
            self.stop(state, control)
            control.should_log |= args.logging_strategy != "no"
            control.should_save |= args.save_strategy != "no"
        else:
            state.max_steps = self.total_steps(state.global_step)
            self.plan(args, state, control)

    def stop(self, state: Any, control: Any) -> None:
        state.max_steps = state.global_step
        if self.largest is None or state.global_step < self.largest:  # the budget is spent
            self.ended = self.amount
        control.should_training_stop = True

    def plan(self, args: Any, state: Any, control: Any) -> None:
        """Trigger logs, evaluations and checkpoints whose intervals are fractions of the run."""
        names = ("logging", "eval", "save")
        logs, evaluates, saves = (
            getattr(args, f"{name}_strategy") == "steps" and getattr(args, f"{name}_steps") < 1 for name in names
        )
        control.should_log |= logs and self.due("logging", args.logging_steps)
        ratio = args.save_steps / args.eval_steps if evaluates else 0.0
        each = round(ratio) if abs(ratio - round(ratio)) < 1e-6 else 0  # a checkpoint for each so many evaluations
        if evaluates and args.eval_delay <= state.global_step and self.due("eval", args.eval_steps):
            control.should_evaluate = True
            control.should_save |= saves and each > 0 and self.evaluations % each == 0
            self.evaluations += 1
        control.should_save |= saves and not each and self.due("save", args.save_steps)

    def due(self, name: str, interval: float) -> bool:
        """Return whether an event is due, an interval after the last one; none is shortly before the end."""
        interval = interval if name == "logging" else max(interval, self.shortest_interval)
        due = self.passed[name] + interval <= self.progress <= 1 - interval / 2
        if due:
            self.passed[name] = self.progress
        return due

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.training = False


class CountedBudget(Budget):
    """A budget of tokens or floating-point operations: equal steps everywhere."""

    def __init__(self, option: str, amount: float, account: Account):
        super().__init__(amount)
        self.option, self.account = option, account
        self.last = 0.0  # the cost of the last step
        self.sizes = 0, 0  # of the last step and the next one, in one pass; 0 if unknown

    def begin(self, device: Any) -> None:
        self.spent = self.work = getattr(self.account, COUNTS[self.option][0])
        self.step = self.work / self.account.steps if self.account.steps else 0.0

    def measure_step(self, device: Any) -> None:
        before = self.work
        self.begin(device)
        self.last = self.work - before

    @property
    def left(self) -> float:  # type: ignore[override]
        return max(0.0, self.amount - self.spent)

    @property
    def next_step(self) -> float:
        size, following = self.sizes
        if size and following:
            return self.last * following / size
        return self.step if self.last or self.ended else 0.0  # 0 after resuming: the run had decided to continue

    def texts(self, state: Any, seconds: float) -> tuple[list[str], list[str]]:
        return [f"{seconds:.0f} s", f"{budget_in_words(self.option, self.left)} left"], []


class TimeBudget(Budget):
    """A budget of time.

    What is left for steps excludes the time that evaluations will take, the last one included. Steps get at least half
    of the budget, however long the data and evaluations take. The first process's clock counts.
    """

    saved_attributes = (*Budget.saved_attributes, "pauses", "evaluation", "saving")
    option = "max_time"

    def __init__(self, seconds: float, started: float, clock: Callable[[], float] = time.monotonic):
        super().__init__(seconds)
        self.origin, self.clock = started, clock
        self.pauses = 0.0  # seconds in evaluations and checkpoints
        self.evaluation = self.saving = 0.0  # seconds of the next evaluation and checkpoint
        self.counted = -UNCOUNTED_STEPS  # steps of this process
        self.busy = self.rate = 0.0  # seconds in steps since the last report, and its tokens per second

    def read(self, device: torch.device) -> float:
        """Read the clock; return the seconds since the last reading."""
        before, self.spent = self.spent, from_all(self.clock() - self.origin, device)[0]
        return self.spent - before

    @property
    def end(self) -> float:
        """Second of the budget at which training ends, its last evaluation included."""
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

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if "loss" in (logs or {}):  # not the scores of an evaluation
            tokens, self.tokens = sum(from_all(self.tokens, args.device)), 0.0
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


def follow(budget: Budget, schedule: Callable[[Any], float]) -> Callable[[int], float]:
    """Return a schedule that follows the position of the budget instead of the step."""
    return lambda step: schedule(budget.position * SCHEDULE_STEPS)


# ---------------------------------------------------------------------------------------- the length of a run
@dataclass
class TimeBudgetArguments:
    """Arguments that limit the length of a run."""

    HELP_GROUP = "Training"

    max_time: str | None = option(None, "Time to train, as 90s or 1h30m (default: 10m)")
    max_tokens: float | None = option(None, "Tokens to read in training: 5e6", limit=POSITIVE)
    max_flops: float | None = option(None, "FLOPs of the training: 2e15", limit=POSITIVE)
    max_epochs: float | None = option(None, "Maximum number of passes within the budget", limit=POSITIVE)

    def check(self: Any) -> None:
        """Note when the program starts, and set `max_time` to seconds; raise ValueError if it is not a time."""
        self.started = time.monotonic()
        if self.max_time is not None:
            self.max_time = seconds_of(self.max_time)
        self.max_tokens, self.max_flops = (None if x is None else float(x) for x in (self.max_tokens, self.max_flops))


def set_length(training_args: Any) -> None:
    """Give a run without a length the default time; raise ValueError where two lengths are given."""
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
    return next((name for name in BUDGETS if getattr(training_args, name) is not None), None)


def option_value(name: str, value: float) -> str:
    return in_words(value, ("h", "m", "s")) if name == "max_time" else f"{value:g}"


def budget_in_words(name: str, amount: float, *, rounded: bool = False) -> str:
    """Return an amount of a budget with its unit; a rounded time has only its largest unit."""
    if name == "max_time":
        return in_short(amount) if rounded else in_words(amount)
    return f"{amount:{COUNTS[name][2]}} {COUNTS[name][1]}"


def seconds_of(duration: str | float) -> float:
    """Return the seconds of a duration such as 90s, 10m, 1h30m or a number; raise ValueError if it is not above 0."""
    match = DURATION.fullmatch(str(duration).strip().lower())
    numbers = match.groups("0") if match else ()
    seconds = sum((float(number) * unit for number, unit in zip(numbers, UNITS)), 0.0)
    if not 0 < seconds < math.inf:
        raise ValueError(f"--max_time {duration}: it must be a time above 0, such as 90s, 10m or 1h30m")
    return seconds


def in_words(seconds: float, units: Sequence[str] = (" hour", " minute", " second")) -> str:
    """Return a duration in hours, minutes and seconds; one-letter units are joined as in an option."""
    counts = (seconds // 3600, seconds % 3600 // 60, round(seconds % 60, 3))
    short = len(units[0]) == 1
    parts = [f"{count:g}{unit}{'' if short or count == 1 else 's'}" for count, unit in zip(counts, units) if count]
    return ("" if short else " ").join(parts)


def in_short(seconds: float) -> str:
    """Return a duration in its largest unit."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 99.5 * 60 else f"{seconds / 3600:.1f} h"
