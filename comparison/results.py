"""Results of the runs of a comparison, read from their folders."""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from transformers import AutoConfig

from vanillaformer.console.parsing import read_settings
from vanillaformer.training.report.plots import curve
from vanillaformer.training.run_folder.files import spent_of_budget

from .plan import Plan
from .running import Outcome, State, read_record

TOLERANCE = {"seconds": 0.05}  # largest relative difference of a run from its budget; of other budgets `COUNTED`
COUNTED = 0.02
LEAST_STEPS = round(0.5 / COUNTED)
"""Minimum steps of a budget in tokens or FLOPs: with fewer, half a step is more than the tolerance."""


@dataclass
class Result:
    """A finished run."""

    seed: int
    score: float  # on the validation data, with the last weights
    consumed: dict[str, Any]  # tokens, flops, rows and steps
    steps: int
    seconds: float  # of training
    whole: bool  # whether it was never interrupted, so that the seconds are those of all steps
    memory: float  # peak, in MiB
    # Steps and values on the validation data: of the `loss`, and of the score if that is another one
    curves: dict[str, list[tuple[int, float]]]


@dataclass
class VariantResult:
    """The runs of a variant."""

    name: str
    options: dict[str, Any]  # options that it adds to the plan's arguments
    parameters: int | None = None  # None if no run counts
    config: dict[str, Any] = field(default_factory=dict)  # the model's config, where it differs from the defaults
    runs: list[Result] = field(default_factory=list)  # the runs that count
    lost: dict[int, Outcome] = field(default_factory=dict)  # why the other runs do not count, by seed

    def add(self, seed: int, result: Result | Outcome, folder: Path) -> None:
        """Add the result of the run in a folder."""
        if not isinstance(result, Result):
            self.lost[seed] = result
            return
        self.runs.append(result)
        self.parameters = self.parameters or read_record(folder)["details"]["training"]["parameters"]
        self.config = self.config or AutoConfig.from_pretrained(folder).to_diff_dict()

    @property
    def scores(self) -> list[float]:
        return [run.score for run in self.runs]

    @property
    def flops_per_token(self) -> float | None:
        """Training FLOPs per token that was read."""
        return mean(run.consumed["flops"] / run.consumed["tokens"] for run in self.runs) if self.runs else None

    @property
    def speed(self) -> float | None:
        """Tokens per second, the mean over the runs that were never interrupted."""
        speeds = [run.consumed["tokens"] / run.seconds for run in self.runs if run.whole]
        return mean(speeds) if speeds else None

    def curve(self, name: str) -> list[tuple[float, float]]:
        """Return shares of a run and values of a curve, averaged over the runs, whose steps can differ in number."""
        runs = [run for run in self.runs if run.curves[name]]
        curves = [np.array([(step / run.steps, value) for step, value in run.curves[name]]).T for run in runs]
        shares = min(curves, key=np.size, default=np.empty((1, 0)))[0].tolist()
        return [(share, mean(float(np.interp(share, *curve)) for curve in curves)) for share in shares]


def read_result(plan: Plan, folder: Path, seed: int, outcome: Outcome) -> Result | Outcome:
    """Return the result of a run, or why it does not count: it failed, diverged or did not keep the budget."""
    if outcome.state != "finished":
        return outcome

    def lost(state: State, message: str) -> Outcome:
        return replace(outcome, state=state, message=message)

    record = read_record(folder)
    details, score = record["details"], record["metrics"].get(f"eval_{plan.score.name}")
    history = read_settings(folder / "trainer_state.json")["log_history"]
    if score is None:
        return lost("failed", f"its record has no {plan.score.name}")
    if not math.isfinite(score):
        return lost("diverged", f"its {plan.score.name} is {score}")
    spent = spent_of_budget(folder) if plan.budget == "seconds" else details["consumed"][plan.budget]
    tolerance = TOLERANCE.get(plan.budget, COUNTED) * plan.amount
    if abs(spent - plan.amount) > tolerance:
        low, high = plan.amount - tolerance, plan.amount + tolerance
        return lost("unequal", f"it took {spent:,.6g} {plan.budget}; {low:,.6g} to {high:,.6g} are allowed")
    return Result(
        seed=seed,
        score=float(score),
        consumed=details["consumed"],
        steps=details["steps"],
        seconds=record["metrics"]["train_runtime"],
        whole=details["training"].get("resumed") is None,
        memory=outcome.memory,
        curves={name: curve(history, f"eval_{name}") for name in ("loss", plan.score.name)},
    )
