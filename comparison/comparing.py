"""A comparison from the plan to its results: a few steps of each variant, tuning, and the runs that count."""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import pairwise, product
from pathlib import Path
from statistics import mean
from typing import Any

from transformers import AutoConfig

from vanillaformer.console.parsing import read_settings
from vanillaformer.console.reporting import report
from vanillaformer.data.caching import changed_splits
from vanillaformer.data.tasks import TASKS
from vanillaformer.hub.file_names import IMAGE_PROCESSOR
from vanillaformer.modeling.counts import build_on_meta, flops_of
from vanillaformer.training.run_folder.files import locked

from .plan import BUDGETS, Options, Plan, keep_added, merged
from .resolving import check_tokenizers, check_variants, tokenizer_print
from .results import COUNTED, LEAST_STEPS, Result, VariantResult, read_result
from .running import Job, Outcome, Runner, read_record
from .verdicts import Verdict, judge

MEASURED_STEPS = 4  # steps by whose mean a budget is found too small
EXTENSIONS = 3  # maximum number of values tried beyond the tuning's grid, on request
MULTIPLE = 8  # feed-forward widths are rounded to multiples of it
Tuning = dict[str, list[tuple[Options, float | None]]]


@dataclass
class Comparison:
    """A plan with its results: the runs of each variant, and its tuned values with their mean scores."""

    plan: Plan
    variants: dict[str, VariantResult]
    verdicts: dict[str, Verdict]  # for all variants but the baseline
    tuning: Tuning = field(default_factory=dict)
    chosen: dict[str, Options] = field(default_factory=dict)  # the tuned values that each variant is trained with


def compare(plan: Plan, folder: Path, *, jobs: int = 1, overwrite: bool = False, shared: bool = False) -> Comparison:
    """Run a plan, or what is left of it.

    With `overwrite`, runs with other settings are moved away; with `shared`, other processes with the same plan
    share the work. Raises ValueError if a variant's options are invalid, its first steps fail, the budget or the score
    does not suit it, or the folder is in use by another process or holds other runs.
    """
    if shared and plan.budget == "seconds":
        raise ValueError("budget: seconds cannot be shared (--share): hosts are not equally fast")
    check_variants(plan)
    seeds = plan.tuning_seeds if plan.widths else plan.seeds
    words = f"{len(plan.variants)} variants, {len(seeds)} seed{'s'[len(seeds) == 1 :]}; each run has"
    report(f"{words} {plan.amount:,.6g} {plan.budget} ({BUDGETS[plan.budget]})")
    runner = Runner(plan, folder, jobs, overwrite=overwrite, shared=shared)
    with nullcontext() if shared else locked(folder):
        if not shared and (owners := runner.claims.owners()):
            raise ValueError(f"{folder} is shared by processes on {', '.join(sorted(owners))}: --share joins them")
        work = Work(plan, folder, runner)
        added = work.measure()
        if plan.added:
            with runner.claims.holding("folder"):
                keep_added(plan, folder)
        tuning, chosen = work.tune(added) if plan.tune else ({}, {})
        if plan.widths:
            return Comparison(plan, {}, {}, tuning, chosen)
        options = {name: merged(added[name], chosen.get(name, {})) for name in plan.variants}
        variants = {name: VariantResult(name, merged(plan.variants[name], options[name])) for name in plan.variants}
        verdicts: dict[str, Verdict] = {}
        for start, end in pairwise((0, *plan.looks)):
            left = [name for name in plan.variants if name not in verdicts or not verdicts[name].decided]
            if left == [plan.baseline]:
                break
            results = work.train("runs", {name: (options[name],) for name in left}, plan.seeds[start:end])
            for (name, _, seed), result in results.items():
                variants[name].add(seed, result, work.run_folder("runs", f"{name}-{seed}"))
            scores = {name: {run.seed: run.score for run in found.runs} for name, found in variants.items()}
            verdicts = judge(plan, scores, end)
            if plan.sequential:
                known = [f"{name} {verdict.word}" for name, verdict in verdicts.items() if verdict.decided]
                report(f"After {end} seeds: {', '.join(known) or 'nothing is decided'}.")
    return Comparison(plan, variants, verdicts, tuning, chosen)


class Work:
    """The trainings of a comparison in a folder, executed by a runner."""

    def __init__(self, plan: Plan, folder: Path, runner: Runner):
        self.plan, self.folder, self.runner = plan, folder, runner

    def run_folder(self, kind: str, name: str) -> Path:
        return self.folder / kind / name

    def job(self, kind: str, name: str, variant: str, *options: Mapping[str, Any]) -> Job:
        output = {"output_dir": str(self.run_folder(kind, name))}
        return Job(f"{kind}-{name}", self.plan.options(variant, *options, output))

    def measure(self, *, all_needed: bool = False) -> dict[str, Options]:
        """Train each variant for a few steps if the budget or `equal` needs it; return overrides for equal sizes.

        One that diverges is left to its runs, unless all or its size are needed, or it is an untuned baseline.
        """
        added: dict[str, Options] = {name: {} for name in self.plan.variants}
        counted = self.plan.budget in ("tokens", "flops")
        if self.plan.equal is None and self.plan.budget == "steps":
            return added  # in seconds, the first run would be the one that tokenizes the rows for all
        few = {"max_steps": MEASURED_STEPS, "seed": self.plan.seeds[0], "eval_steps": MEASURED_STEPS}
        jobs = {name: self.job("measured", name, name, few) for name in self.plan.variants}
        outcomes = self.runner.run(list(jobs.values()), disposable=True)
        for name, job in list(jobs.items()):
            needed = all_needed or self.plan.equal or (name == self.plan.baseline and not self.plan.tune)
            if outcomes[job.name].state == "diverged" and not needed:
                del jobs[name]
            elif outcomes[job.name].state != "finished":
                raise ValueError(f"variant {name}: {outcomes[job.name].message} ({self.folder}/logs/{job.name}.log)")
        self._check_rows(list(jobs.values()))
        records = {name: read_record(job.folder) for name, job in jobs.items()}
        if bare := [name for name in records if f"eval_{self.plan.score.name}" not in records[name]["metrics"]]:
            raise ValueError(f"score: {self.plan.score.name}: the runs of variant {bare[0]} do not compute it")
        for name, record in records.items() if counted else ():
            consumed = record["details"]["consumed"]
            step = consumed[self.plan.budget] / consumed["steps"]
            if self.plan.amount < LEAST_STEPS * step:
                raise ValueError(
                    f"budget: {self.plan.budget}: {self.plan.amount:,.6g}; variant {name} takes {step:,.6g} in a "
                    f"step; with fewer than {LEAST_STEPS} steps, {LEAST_STEPS * step:,.6g}, runs cannot be made equal"
                )
        return added if self.plan.equal is None else self._widths(records[self.plan.baseline])

    def _widths(self, record: Mapping[str, Any]) -> dict[str, Options]:
        """Return the overrides that make each variant as large as the baseline, given the baseline's record."""
        added: dict[str, Options] = {self.plan.baseline: {}}

        def measure(config: Any) -> float:
            model = build_on_meta(config, TASKS[self.plan.task].auto_class.from_config)
            if self.plan.equal != "flops":
                return model.num_parameters()
            source, target = row_lengths(record["details"]["data"]["train"], config)
            lengths = (target, source) if config.is_encoder_decoder else (source, source)
            # FLOPs of the forward pass over a row of mean length
            return sum(flops_of(model, 1, *(max(1, round(length)) for length in lengths)).values())

        target = measure(AutoConfig.from_pretrained(self.run_folder("measured", self.plan.baseline)))
        for name in self.plan.variants.keys() - added.keys():
            config = AutoConfig.from_pretrained(self.run_folder("measured", name))
            try:
                added[name] = {"overrides": {"intermediate_size": matched_size(config, measure, target)}}
            except ValueError as error:
                raise ValueError(f"variant {name}: {error}") from error
        return added

    def tune(self, added: Mapping[str, Options]) -> tuple[Tuning, dict[str, Options]]:
        """Train each variant with each value and the tuning seeds; return the mean scores and the best values."""
        grids = {name: self.plan.grid() for name in self.plan.variants}
        for _ in range(1 + EXTENSIONS * self.plan.extend):
            tuning, best = self._tuned(added, grids)
            further = {name: value for name in grids if (value := self.plan.beyond(grids[name], best[name]))}
            if not further:
                break
            grids = {name: [*grid, *([further[name]] if name in further else [])] for name, grid in grids.items()}
        return tuning, best

    def _tuned(
        self, added: Mapping[str, Options], grids: Mapping[str, Sequence[Options]]
    ) -> tuple[Tuning, dict[str, Options]]:
        choices = {name: tuple(merged(added[name], options) for options in grid) for name, grid in grids.items()}
        results = self.train("tuning", choices, self.plan.tuning_seeds)
        direction = 1 if self.plan.score.greater_is_better else -1
        tuning: Tuning = {}
        best: dict[str, Options] = {}
        for name, grid in grids.items():
            scores: list[float | None] = []
            for number in range(len(grid)):
                runs = [results[name, number, seed] for seed in self.plan.tuning_seeds]
                good = [run.score for run in runs if isinstance(run, Result)]
                scores.append(mean(good) if len(good) == len(runs) else None)
            tuning[name] = list(zip(grid, scores))
            ranked = [(direction * score, -number) for number, score in enumerate(scores) if score is not None]
            if not ranked:
                lost = next(run for key, run in results.items() if key[0] == name and isinstance(run, Outcome))
                raise ValueError(f"variant {name}: no value tried in tuning produced a score: {lost.message}")
            best[name] = grid[-max(ranked)[1]]
        return tuning, best

    def train(
        self, kind: str, choices: Mapping[str, Sequence[Options]], seeds: Sequence[int]
    ) -> dict[tuple[str, int, int], Result | Outcome]:
        """Train variants with choices of options; return the results by variant, index of the choice and seed."""
        jobs: dict[tuple[str, int, int], Job] = {}
        for seed, variant in product(seeds, choices):  # if the machine slows down, it does so for all variants
            for number, options in enumerate(choices[variant]):
                name = f"{variant}-{number}-{seed}" if len(choices[variant]) > 1 else f"{variant}-{seed}"
                job = self.job(kind, name, variant, options, self.plan.length, {"seed": seed})
                jobs[variant, number, seed] = job
        outcomes = self.runner.run(list(jobs.values()))
        self._check_rows([job for job in jobs.values() if outcomes[job.name].state == "finished"])
        return {key: read_result(self.plan, job.folder, key[2], outcomes[job.name]) for key, job in jobs.items()}

    def _check_rows(self, jobs: Sequence[Job]) -> None:
        """Raise ValueError if finished runs were validated on different rows, or scored on different tokens."""
        check_tokenizers(self.plan, {job.name: tokenizer_print(job.folder) for job in jobs})
        data = {job.name: read_record(job.folder).get("data", {}) for job in jobs}
        first = next(iter(data), "")
        if self.plan.task == "masked_image":  # errors of pixels, which are divided by their deviation
            units = {job.name: read_settings(job.folder / IMAGE_PROCESSOR)["image_std"] for job in jobs}
            for name, unit in units.items():
                if any(abs(one / other - 1) > COUNTED for one, other in zip(unit, units[first])):
                    words = f"{name} divides pixels by {unit}, {first} by {units[first]}"
                    raise ValueError(f"{words}: their losses are not comparable")
        for name, splits in data.items():
            now = {split: rows for split, rows in splits.items() if split == "validation"}
            for what in changed_splits(data[first], now).values():
                raise ValueError(
                    f"{name} was validated on other rows than {first} ({what}): their scores are not comparable"
                )


# ----------------------------------------------------------------------------------------------------- equal sizes
def row_lengths(stats: dict[str, Any], config: Any) -> tuple[float, float]:
    """Return the mean tokens of a training row's source and target; for images, the number of patches and 0."""
    if "source mean length" in stats:
        return stats["source mean length"], stats["target mean length"]
    return stats.get("mean length") or math.prod(config.grid), 0.0


def matched_size(config: Any, measure: Callable[[Any], float], target: float) -> int:
    """Return the `intermediate_size` that brings a measure, which is linear in it, closest to a target."""
    size = getattr(config, "intermediate_size", None)
    if size is None:
        raise ValueError(f"a {config.model_type} has no intermediate_size to make it as large as the baseline")

    def at(width: int) -> float:
        changed = copy.deepcopy(config)
        changed.intermediate_size = width
        return measure(changed)

    slope = (at(size + MULTIPLE) - at(size)) / MULTIPLE
    found = size + (target - at(size)) / slope
    if found < MULTIPLE:
        raise ValueError(f"no intermediate_size of at least {MULTIPLE} makes it as small as the baseline")
    return MULTIPLE * round(found / MULTIPLE)
