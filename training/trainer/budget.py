"""A budget of a training: what it may take, and the progress by which all that comes before its end is planned.

Nothing is counted in steps: the progress of a run is the share of its budget, and the learning rate, evaluations,
checkpoints and reports follow the progress.
"""

from collections.abc import Callable
from typing import Any

from .account import Account
from .guards import StatefulCallback

UNLIMITED = 10**9
"""Steps that no run comes to."""
UNCOUNTED_STEPS = 3
"""First steps of a process, in which caches are filled and models compiled: they count as much as the next one."""
SCHEDULE_STEPS = 1_000
"""Steps of the schedule, which progress runs through, and between them."""
WARMUP_SHARE = 0.05
"""Part of the schedule that a warm-up given in steps takes."""
COUNTS = {"max_tokens": ("tokens", "tokens", ",.0f"), "max_flops": ("flops", "FLOPs", ".4g")}
"""For each budget that is counted its number in the account, its unit and how it is written."""


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


class Budget(StatefulCallback):
    """Ends a training when its budget is spent, and plans what comes before by its progress.

    Progress is `w / (w + r)`, with w spent in steps and r left for steps; or the share of the largest number of steps,
    if that is more. It never goes back.

    Args:
        amount: The budget.

    Attributes:
        spent: What is spent of it, before an interruption included.
        largest: The largest number of steps; None for no limit.
        progress: The progress of the run.
        position: The position in the schedule: the progress, if the warm-up is not given in steps.
    """

    saved_attributes: tuple[str, ...] = ("spent", "prepared", "work", "warmup_work", "step", "ended")
    option: str
    first = 0.0, 0.0
    """Seconds until the first evaluation and the first report at the latest."""

    def __init__(self, amount: float):
        self.amount = amount
        self.largest: int | None = None
        self.spent = self.prepared = 0.0  # until now, and before training began
        self.work = self.warmup_work = 0.0  # of all steps, and of the steps of the warm-up
        self.step = 0.0  # of a step
        self.ended = 0.0  # the budget that has come to its end
        self.progress = self.position = 0.0
        self.over = self.training = False
        self.evaluations = 0  # those at marks
        evaluation, report = self.first
        self.marks = {"eval": Marks(evaluation), "save": Marks(evaluation), "logging": Marks(report)}
        self.passed: dict[str, float] = {}  # the progress at the last mark, by name
        self.growth = 1.0  # how many times as long the next evaluation may take as the last one
        self.tokens: Any = 0  # of this process since the last report
        self.unit = "tokens"

    # ----------------------------------------------------------------------------------------- what is measured
    left: Any
    """What is left for steps."""
    seconds_of_training = 0.0
    shortest_interval = 0.0
    """Progress from one evaluation to the next at the least."""

    def begin(self, device: Any) -> None:
        """Take notice of what was spent before training begins, or before it was interrupted."""
        raise NotImplementedError

    def measure_step(self, device: Any) -> None:
        """Take notice of what a step has spent."""
        raise NotImplementedError

    @property
    def next_step(self) -> float:
        """What the next step will spend."""
        return self.step

    def texts(self, state: Any, seconds: float) -> tuple[list[str], list[str]]:
        """Return for reports what is spent and what is left, and the speed; `seconds` are those of training."""
        raise NotImplementedError

    # -------------------------------------------------------------------------------------------- the progress
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
        """Return which part of the run is over, from a step and the work done until it."""
        done, left = self.work - work, self.left
        parts = [1.0 if left <= 0 else done / (done + left)]
        if self.largest is not None:
            parts.append((step - steps) / max(1, self.largest - steps))
        return min(1.0, max(parts))

    def advance(self, step: int, warmup_steps: float) -> None:
        """Take a step that has just been made into the progress."""
        self.over = self.left <= self.next_step / 2 or (self.largest is not None and step >= self.largest)
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
        self.begin(args.device)
        if state.global_step:
            self.advance(state.global_step, args.warmup_steps)
            for name, marks in self.marks.items():
                marks.last = min(self.passed.get(name, self.progress), self.progress)
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
        """End training after this step."""
        state.max_steps = state.global_step
        if self.largest is None or state.global_step < self.largest:  # the budget is spent
            self.ended = self.amount
        control.should_training_stop = True

    def plan(self, args: Any, state: Any, control: Any) -> None:
        """Have logs, evaluations and checkpoints made whose intervals are given as fractions of the run."""
        shortest, saves, evaluates = self.shortest_interval, planned(args, "save"), planned(args, "eval")
        control.should_log |= planned(args, "logging") and self.due("logging", args.logging_steps)
        ratio = args.save_steps / args.eval_steps if evaluates else 0.0
        each = round(ratio) if abs(ratio - round(ratio)) < 1e-6 else 0  # checkpoints are of each of these evaluations
        if evaluates and args.eval_delay <= state.global_step and self.due("eval", max(args.eval_steps, shortest)):
            control.should_evaluate = True
            control.should_save |= saves and each > 0 and self.evaluations % each == 0
            self.evaluations += 1
        if not each:
            control.should_save |= saves and self.due("save", max(args.save_steps, shortest))

    def due(self, name: str, interval: float) -> bool:
        """Tell whether a mark has been passed."""
        due = self.marks[name].due(self.progress, self.seconds_of_training, interval)
        self.passed[name] = self.marks[name].last
        return due

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.training = False


class CountedBudget(Budget):
    """A budget of tokens or floating-point operations: the same steps on any machine.

    Args:
        option: `max_tokens` or `max_flops`.
        amount: The budget.
        account: Counts what is spent; what it has of the teachers of an ensemble is part of it.
    """

    saved_attributes = (*Budget.saved_attributes, "passed", "evaluations")

    def __init__(self, option: str, amount: float, account: Account):
        super().__init__(amount)
        self.option, self.account = option, account
        self.name, self.unit_of_budget, self.format = COUNTS[option]
        self.last = 0.0  # what the last step has spent
        self.sizes = 0, 0  # what is read in it, in one pass, and in the next step; 0 if that is not known

    def begin(self, device: Any) -> None:
        self.work = getattr(self.account, self.name)
        self.spent = self.account.consumed(self.name)
        self.prepared = self.spent - self.work
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
        return self.step if self.last or self.ended else 0.0  # an interrupted run goes on where it had gone on

    def texts(self, state: Any, seconds: float) -> tuple[list[str], list[str]]:
        return [f"{seconds:.0f} s", f"{self.left:{self.format}} {self.unit_of_budget} left"], []


def planned(args: Any, name: str) -> bool:
    """Tell whether an interval is given as a fraction of the run."""
    return getattr(args, f"{name}_strategy") == "steps" and getattr(args, f"{name}_steps") < 1


def follow(budget: Budget, schedule: Callable[[Any], float]) -> Callable[[int], float]:
    """Return a schedule that is where the budget is, whatever the step."""

    def factor(step: int) -> float:
        return schedule(budget.position * SCHEDULE_STEPS)

    return factor
