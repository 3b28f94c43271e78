"""What the runs of a comparison came to, read from their folders."""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

from .plan import Plan
from .running import Outcome
from .sizes import Size


@dataclass
class Result:
    """A run that finished.

    Attributes:
        seed: Its seed.
        score: Its score on the validation data, by its last weights.
        steps: Its steps.
        seconds: Seconds of training.
        whole: Whether it was trained in one go, so that the seconds are those of all steps.
        memory: The most memory in MiB.
        losses: Steps and validation losses.
    """

    seed: int
    score: float
    steps: int
    seconds: float
    whole: bool
    memory: float
    losses: list[tuple[int, float]]


@dataclass
class VariantResult:
    """The runs of a variant.

    Attributes:
        name: Its name.
        options: What it adds to the arguments.
        size: What a step computes; None if no run finished.
        runs: The runs that finished.
        lost: How the others ended, by seed.
    """

    name: str
    options: dict[str, Any]
    size: Size | None = None
    runs: list[Result] = field(default_factory=list)
    lost: dict[int, Outcome] = field(default_factory=dict)

    @property
    def scores(self) -> list[float]:
        """The scores of its runs."""
        return [run.score for run in self.runs]

    @property
    def speed(self) -> float | None:
        """Tokens per second, the mean over the runs that were trained in one go."""
        times = [run.seconds / run.steps for run in self.runs if run.whole]
        return self.size.tokens / mean(times) if self.size and times else None


def read_result(plan: Plan, folder: Path, seed: int, outcome: Outcome) -> Result | Outcome:
    """Return the result of a run; how it ended, if it diverged or failed.

    A run diverged if its score is not a number or its last training loss is above its first.
    """
    if outcome.state != "finished":
        return outcome
    record = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    history = json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))["log_history"]
    score = record["metrics"].get(f"eval_{plan.score.name}")
    training, held_out = curve(history, "loss"), curve(history, "eval_loss")
    if score is None or not math.isfinite(score) or (len(training) > 1 and not training[-1][1] <= training[0][1]):
        return Outcome("diverged", "its loss is above where it began", outcome.seconds, outcome.memory)
    return Result(
        seed=seed,
        score=float(score),
        steps=record["details"]["steps"],
        seconds=record["metrics"]["train_runtime"],
        whole=record["details"]["training"].get("resumed") is None,
        memory=outcome.memory,
        losses=held_out,
    )


def curve(history: list[dict[str, Any]], name: str) -> list[tuple[int, float]]:
    """Return the steps and values of what was logged by a name."""
    found = {entry["step"]: float(entry[name]) for entry in history if name in entry}
    return sorted(found.items())
