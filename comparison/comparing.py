"""A comparison from the plan to its results: one step of each variant, tuning, and the runs that count."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

from transformers import AutoConfig

from vanillaformer.hub.reporting import report

from .plan import BUDGETS, Options, Plan, check_options
from .results import Result, VariantResult, read_result
from .running import Job, Outcome, Runner, interleaved
from .sizes import Size, equal_measure, matched_size, size_of


@dataclass
class Comparison:
    """What a plan came to.

    Attributes:
        plan: The plan.
        variants: The results of the variants, the baseline's among them.
        tuning: For each variant the values that were tried with their mean scores, if there was tuning.
    """

    plan: Plan
    variants: dict[str, VariantResult]
    tuning: dict[str, list[tuple[Options, float | None]]] = field(default_factory=dict)


def compare(plan: Plan, folder: Path, *, jobs: int = 1) -> Comparison:
    """Run what a plan asks for, or what is left of it.

    Args:
        plan: The plan.
        folder: Where runs, logs and settings are kept.
        jobs: Trainings at once.

    Raises:
        ValueError: A variant's options cannot be, or none of its steps could be trained.
    """
    work = Work(plan, folder, jobs)
    report(
        f"{len(plan.variants)} variants, {len(plan.seeds)} seeds; each run has {plan.amount:,.6g} {plan.budget} "
        f"({BUDGETS[plan.budget]})"
    )
    added = work.measure()
    tuning, chosen = work.tune(added) if plan.tune else ({}, {})
    options = {name: added[name] | chosen.get(name, {}) for name in plan.variants}
    found = work.train("runs", {name: (options[name],) for name in plan.variants}, plan.seeds)
    variants = {name: VariantResult(name, plan.variants[name] | options[name]) for name in plan.variants}
    for name, variant in variants.items():
        for seed, result in found[name].items():
            if isinstance(result, Result):
                variant.size = variant.size or size_of(work.place("runs", f"{name}-{seed}"))
                variant.runs.append(result)
            else:
                variant.lost[seed] = result
    return Comparison(plan, variants, tuning)


class Work:
    """The trainings of a comparison.

    Args:
        plan: The plan.
        folder: Where they are kept.
        jobs: How many run at once.
    """

    def __init__(self, plan: Plan, folder: Path, jobs: int):
        self.plan, self.folder = plan, folder
        self.runner = Runner(plan.program, folder, jobs)
        self.sizes: dict[str, Size] = {}

    def place(self, kind: str, name: str) -> Path:
        """Return the folder of a training."""
        return self.folder / kind / name

    def job(self, kind: str, name: str, variant: str, *options: Mapping[str, Any]) -> Job:
        """Return a training of a variant."""
        place = {"output_dir": str(self.place(kind, name))}
        return Job(f"{kind}-{name}", self.plan.options(variant, *options, place))

    def measure(self) -> dict[str, Options]:
        """Train one step of each variant, if the budget or equal sizes ask for it; return what makes them equal.

        Raises:
            ValueError: A variant's options cannot be, or its step could not be trained, or no width makes it equal.
        """
        added: dict[str, Options] = {name: {} for name in self.plan.variants}
        for name in self.plan.variants:
            job = self.job("checked", name, name)
            check_options(self.plan, name, self.runner.settings(job))
        if self.plan.equal is None and self.plan.budget not in ("tokens", "flops"):
            return added
        self._train_a_step()
        if self.plan.equal is not None:
            added = self._widths()
        for name in self.plan.variants:
            self.sizes[name] = size_of(self.place("measured", name), **added[name].get("overrides", {}))
        return added

    def _train_a_step(self) -> None:
        one_step = {"max_steps": 1, "seed": self.plan.seeds[0], "eval_strategy": "no"}
        jobs = {name: self.job("measured", name, name, one_step) for name in self.plan.variants}
        outcomes = self.runner.run(list(jobs.values()))
        for name, job in jobs.items():
            if outcomes[job.name].state != "finished":
                raise ValueError(f"variant {name}: {outcomes[job.name].message} ({self.folder}/logs/{job.name}.log)")

    def _widths(self) -> dict[str, Options]:
        """Return the overrides that make each variant as large as the baseline."""
        added: dict[str, Options] = {self.plan.baseline: {}}
        measure = equal_measure(self.plan, self.place("measured", self.plan.baseline))
        target = measure(AutoConfig.from_pretrained(self.place("measured", self.plan.baseline)))
        for name in self.plan.variants.keys() - added.keys():
            config = AutoConfig.from_pretrained(self.place("measured", name))
            try:
                added[name] = {"overrides": {"intermediate_size": matched_size(config, measure, target)}}
            except ValueError as error:
                raise ValueError(f"variant {name}: {error}") from error
        return added

    def tune(
        self, added: Mapping[str, Options]
    ) -> tuple[dict[str, list[tuple[Options, float | None]]], dict[str, Options]]:
        """Train each variant with each value, with other seeds; return the mean scores and the best values."""
        grid = [dict(zip(self.plan.tune, values)) for values in product(*self.plan.tune.values())]
        choices = {name: tuple(added[name] | options for options in grid) for name in self.plan.variants}
        found = self.train("tuning", choices, self.plan.tuning_seeds)
        direction = 1 if self.plan.score.greater_is_better else -1
        tuning: dict[str, list[tuple[Options, float | None]]] = {}
        best: dict[str, Options] = {}
        for name in self.plan.variants:
            scores: list[float | None] = []
            for number in range(len(grid)):
                runs = [found[name][number, seed] for seed in self.plan.tuning_seeds]
                good = [run.score for run in runs if isinstance(run, Result)]
                scores.append(mean(good) if len(good) == len(runs) else None)
            tuning[name] = list(zip(grid, scores))
            ranked = [(direction * score, -number) for number, score in enumerate(scores) if score is not None]
            if ranked:
                best[name] = grid[-max(ranked)[1]]
        return tuning, best

    def train(
        self, kind: str, choices: Mapping[str, tuple[Options, ...]], seeds: Sequence[int]
    ) -> dict[str, dict[Any, Result | Outcome]]:
        """Train variants with one choice of options each, or with several.

        Returns:
            For each variant what its runs came to: by seed, or by number of the choice and seed.
        """
        jobs: dict[tuple[str, Any, int], Job] = {}
        for variant, seed in interleaved(list(self.plan.variants), seeds):
            for number, options in enumerate(choices[variant]):
                several = len(choices[variant]) > 1
                name = f"{variant}-{number}-{seed}" if several else f"{variant}-{seed}"
                key = (variant, (number, seed) if several else seed, seed)
                jobs[key] = self.job(kind, name, variant, options, self.length(variant), {"seed": seed})
        outcomes = self.runner.run(list(jobs.values()))
        found: dict[str, dict[Any, Result | Outcome]] = {name: {} for name in self.plan.variants}
        for (variant, key, seed), job in jobs.items():
            place = Path(job.options["output_dir"])
            found[variant][key] = read_result(self.plan, place, seed, outcomes[job.name])
        return found

    def length(self, variant: str) -> Options:
        """Return the options that end a run, and its schedule, with the budget."""
        if self.plan.budget == "seconds":
            return {"max_time": f"{self.plan.amount:g}s"}
        cost = 1.0 if self.plan.budget == "steps" else getattr(self.sizes[variant], self.plan.budget)
        return {"max_steps": max(1, round(self.plan.amount / cost))}
