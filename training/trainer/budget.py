"""A budget of a training, and the progress by which everything before its end is planned.

The progress of a run is the share of its budget that is spent on steps. The learning rate, evaluations, checkpoints
and reports follow the progress; how many steps that will be is estimated.
"""

from collections.abc import Callable
from typing import Any

from .account import Account, StatefulCallback

UNLIMITED = 10**9
"""More steps than any run has."""
PLANNED = ("eval", "save", "logging")
"""What is made at equal parts of a run."""
UNCOUNTED_STEPS = 3
"""First steps of a process, in which caches are filled and models compiled: they count as much as the next one."""
SCHEDULE_STEPS = 1_000
"""Steps of the schedule, which progress runs through, and between them."""
WARMUP_SHARE = 0.05
"""Part of the schedule that a warm-up given in steps takes."""
COUNTS = {"max_tokens": ("tokens", "tokens", ",.0f"), "max_flops": ("flops", "FLOPs", ".4g")}
"""For each budget that is counted its number in the account, its unit and how it is written."""


class Budget(StatefulCallback):
    """Ends a training when its budget is spent, and plans the events before by its progress.

    Progress is `w / (w + r)`, with w spent in steps and r left for steps; or the share of the largest number of steps,
    if that is more. It never goes back.
    """

    saved_attributes: tuple[str, ...] = (
        *("spent", "prepared", "work", "warmup_work", "step", "ended"),
        *("passed", "evaluations"),
    )
    option: str
    shortest_interval = 0.0
    """Progress from one evaluation to the next at the least."""

    def __init__(self, amount: float):
        self.amount = amount
        self.largest: int | None = None  # number of steps; None for no limit
        self.spent = self.prepared = 0.0  # until now, before an interruption too, and before training began
        self.work = self.warmup_work = 0.0  # of all steps, and of the steps of the warm-up
        self.step = 0.0  # of a step
        self.ended = 0.0  # the budget that was used up
        self.progress = self.position = 0.0  # the latter in the schedule, where warm-up steps are not progress
        self.over = self.training = False
        self.evaluations = 0  # those planned here
        self.passed = dict.fromkeys(PLANNED, 0.0)  # the progress when each was made last
        self.growth = 1.0  # how many times as long the next evaluation may take as the last one
        self.tokens: Any = 0  # of this process since the last report
        self.unit = "tokens"

    # ------------------------------------------------------------------------------------------- measurements
    left: Any
    """The rest of the budget for steps."""

    def begin(self, device: Any) -> None:
        """Measure the part spent before training begins, or before it was interrupted."""
        raise NotImplementedError

    def measure_step(self, device: Any) -> None:
        """Measure the part spent in a step."""
        raise NotImplementedError

    @property
    def next_step(self) -> float:
        """The estimated cost of the next step."""
        return self.step

    def texts(self, state: Any, seconds: float) -> tuple[list[str], list[str]]:
        """Return the spent and the remaining budget and the speed, in words; `seconds` are those of training."""
        raise NotImplementedError

    # -------------------------------------------------------------------------------------------- progress
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
        """Add a step that has just been made to the progress."""
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

    # ------------------------------------------------------------------------------------- events of the Trainer
    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        super().on_train_begin(args, state, control, **kwargs)
        self.training = True
        self.begin(args.device)
        if state.global_step:
            self.advance(state.global_step, args.warmup_steps)
            known = {name: max(0.0, progress) for name, progress in self.passed.items()}  # other versions had fewer
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
        """End training after this step."""
        state.max_steps = state.global_step
        if self.largest is None or state.global_step < self.largest:  # the budget is spent
            self.ended = self.amount
        control.should_training_stop = True

    def plan(self, args: Any, state: Any, control: Any) -> None:
        """Have logs, evaluations and checkpoints made whose intervals are given as fractions of the run."""
        names = ("logging", "eval", "save")
        logs, evaluates, saves = (
            getattr(args, f"{name}_strategy") == "steps" and getattr(args, f"{name}_steps") < 1 for name in names
        )
        control.should_log |= logs and self.due("logging", args.logging_steps)
        ratio = args.save_steps / args.eval_steps if evaluates else 0.0
        each = round(ratio) if abs(ratio - round(ratio)) < 1e-6 else 0  # checkpoints are of each of these evaluations
        if evaluates and args.eval_delay <= state.global_step and self.due("eval", args.eval_steps):
            control.should_evaluate = True
            control.should_save |= saves and each > 0 and self.evaluations % each == 0
            self.evaluations += 1
        control.should_save |= saves and not each and self.due("save", args.save_steps)

    def due(self, name: str, interval: float) -> bool:
        """Tell whether something is due, an interval after the last time; nothing is shortly before the end."""
        interval = interval if name == "logging" else max(interval, self.shortest_interval)
        due = self.passed[name] + interval <= self.progress <= 1 - interval / 2
        if due:
            self.passed[name] = self.progress
        return due

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.training = False


class CountedBudget(Budget):
    """A budget of tokens or floating-point operations, those of an ensemble's teachers too: equal steps everywhere."""

    def __init__(self, option: str, amount: float, account: Account):
        super().__init__(amount)
        self.option, self.account = option, account
        self.name, self.unit_of_budget, self.format = COUNTS[option]
        self.last = 0.0  # the cost of the last step
        self.sizes = 0, 0  # of the last step and the next one, in one pass; 0 if unknown

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
        return self.step if self.last or self.ended else 0.0  # an interrupted run continues where it had continued

    def texts(self, state: Any, seconds: float) -> tuple[list[str], list[str]]:
        return [f"{seconds:.0f} s", f"{self.left:{self.format}} {self.unit_of_budget} left"], []


def follow(budget: Budget, schedule: Callable[[Any], float]) -> Callable[[int], float]:
    """Return a schedule that is where the budget is, whatever the step."""

    def factor(step: int) -> float:
        return schedule(budget.position * SCHEDULE_STEPS)

    return factor
