"""A ladder of trainings, from which the loss of a larger model is predicted before it is trained."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from vanillaformer.comparison.comparing import Work
from vanillaformer.comparison.plan import Plan, mapping, read_plan
from vanillaformer.comparison.resolving import check_variants
from vanillaformer.comparison.results import LEAST_STEPS, Result, read_result
from vanillaformer.comparison.running import Job, Outcome, Runner, read_record
from vanillaformer.console.drawing import save, style
from vanillaformer.console.parsing import read_settings
from vanillaformer.console.reporting import report
from vanillaformer.hub.atomic_files import write_text
from vanillaformer.training.run_folder.files import locked
from vanillaformer.training.trainer.budget import in_short

from .law import QUANTILES, Law, Points, fit, interval, iso_flop, lack_of_fit, resampled
from .transfer import sizes_at

NOT_KEYS = ("variants", "budget", "tune", "tuning_seeds", "extend", "equal", "sequential", "family", "baseline")
KEYS = ("widths", "tokens_per_parameter", "held_out")
LEAST_RUNS = 8  # to which five numbers are fitted
UNMEASURED = 1e15  # tokens, until it is known how many each run gets
LONGER = "trust neither the prediction nor its interval. Longer runs may follow the law."
BUDGETS = (1, 10, 100)  # multiples of the held-out run's, for which the report names the best model


@dataclass(frozen=True)
class Ladder:
    """Sizes and lengths of the trainings."""

    widths: tuple[int, ...]  # in ascending order; the last one is held out
    ratios: tuple[float, ...]  # tokens per parameter for all widths but the last
    held_out: float  # tokens per parameter for the last width


def read_ladder(path: Path, seeds: Sequence[int] | None = None) -> tuple[Plan, Ladder]:
    """Return the plan of a file with a key `ladder`, with a variant for each width, and the ladder."""
    content = read_settings(path)
    steps = mapping(path, "ladder", content.get("ladder"))
    if missing := [key for key in KEYS if key not in steps] + [key for key in steps if key not in KEYS]:
        raise ValueError(f"{path}: ladder: {missing[0]}; it needs {', '.join(KEYS)} and nothing else")
    if given := [key for key in NOT_KEYS if key in content]:
        raise ValueError(f"{path}: {given[0]}: not in a plan with a ladder, which has a training for each size")
    for key, value in steps.items():
        numbers = value if isinstance(value, list) else [value]
        whole = all(type(number) is int if key == "widths" else type(number) in (int, float) for number in numbers)
        if not whole or not all(0 < number < math.inf for number in numbers) or sorted(set(numbers)) != numbers:
            raise ValueError(f"{path}: ladder: {key}: {value!r}; it must be numbers above 0 in ascending order")
    widths, ratios = steps["widths"], steps["tokens_per_parameter"]
    runs = (len(widths) - 1) * len(ratios) if isinstance(widths, list) and isinstance(ratios, list) else 0
    if runs < LEAST_RUNS or min(len(widths) - 1, len(ratios)) < 3 or isinstance(steps["held_out"], list):
        raise ValueError(
            f"{path}: ladder: the five numbers of the law need at least three widths besides the largest, three "
            f"tokens_per_parameter and {LEAST_RUNS} runs; held_out is one number"
        )
    names = {f"width-{width}": width for width in widths}
    seeds = seeds or content.get("seeds", [1])
    plan = read_plan(path, variants=dict.fromkeys(names), budget={"tokens": UNMEASURED}, seeds=seeds)
    sizes = {name: {"overrides": sizes_at(plan.arguments, plan.task, size, str(path))} for name, size in names.items()}
    return replace(plan, variants=sizes), Ladder(tuple(widths), tuple(ratios), steps["held_out"])


class LadderRuns:
    """The trainings of a ladder in a folder."""

    def __init__(self, plan: Plan, ladder: Ladder, folder: Path, jobs: int, overwrite: bool):
        self.plan, self.ladder, self.folder = plan, ladder, folder
        self.work = Work(plan, folder, Runner(plan, folder, jobs, overwrite=overwrite))
        self.parameters: dict[int, int] = {}
        self.epochs = 0.0  # largest number of passes over the data

    def measure(self) -> None:
        """Train a few steps of each width to count parameters; raise ValueError if a run would be too short."""
        self.work.measure(all_needed=True)
        for width in self.ladder.widths:
            measured = self.folder / "measured" / f"width-{width}"
            details = read_record(measured)["details"]
            self.parameters[width], consumed = details["training"]["parameters"], details["consumed"]
            least = LEAST_STEPS * consumed["tokens"] / consumed["steps"]
            shortest = self.ladder.held_out if width == self.ladder.widths[-1] else self.ladder.ratios[0]
            if shortest * self.parameters[width] < least:
                ratio = least / self.parameters[width]
                raise ValueError(
                    f"ladder: width {width} has {self.parameters[width]:,} parameters; {LEAST_STEPS} steps take "
                    f"{least:,.0f} tokens, so tokens_per_parameter must be {ratio:.2g} or more"
                )

    def train(self, runs: list[tuple[int, float]]) -> list[tuple[int, int, Result]]:
        """Train widths with tokens per parameter; return parameters, tokens and result for each width and seed."""
        jobs: dict[tuple[int, int, int], Job] = {}
        for seed in self.plan.seeds:
            for width, ratio in runs:
                tokens = round(ratio * self.parameters[width])
                options = {"max_tokens": tokens, "seed": seed}
                job = self.work.job("runs", f"{width}-{ratio:g}-{seed}", f"width-{width}", options)
                jobs[width, tokens, seed] = job
        outcomes = self.work.runner.run(list(jobs.values()))
        found = []
        for (width, tokens, seed), job in jobs.items():
            result = read_result(replace(self.plan, amount=tokens), job.folder, seed, outcomes[job.name])
            if isinstance(result, Outcome):
                raise ValueError(f"{job.name} was lost, {result.state}: {result.message} ({self.folder}/logs)")
            self.epochs = max(self.epochs, read_record(job.folder)["details"]["training"]["epochs"])
            found.append((self.parameters[width], tokens, result))
        return found


def forecast(path: Path, folder: Path, *, jobs: int = 1, overwrite: bool = False, seeds: Any = None) -> str:
    """Train a plan's ladder, predict the loss of its largest width, train that and write the report; return its text.

    The prediction is in forecast.json before that training begins. Raises ValueError for an invalid plan.
    """
    plan, ladder = read_ladder(path, seeds)
    if plan.score.name != "loss":
        raise ValueError(f"{path}: score: {plan.score.name}; the law only predicts the loss")
    check_variants(plan)
    with locked(folder):
        ladder_runs = LadderRuns(plan, ladder, folder, jobs, overwrite)
        ladder_runs.measure()
        lower = ladder_runs.train([(width, ratio) for width in ladder.widths[:-1] for ratio in ladder.ratios])
        rows = [(parameters, tokens, run.score, run.consumed["flops"]) for parameters, tokens, run in lower]
        *columns, flops = np.array(rows, dtype=float).T  # each seed is a point
        points = Points(*columns)
        law = fit(points)
        laws, residuals = resampled(points, law)
        size = ladder_runs.parameters[ladder.widths[-1]]
        tokens = round(ladder.held_out * size)
        low, high = interval(laws, residuals, size, tokens)
        predicted = float(law.loss(size, tokens))
        content: dict[str, Any] = {"law": asdict(law), "parameters": size, "tokens": tokens}
        content |= {"loss": predicted, "interval": [low, high], "lack_of_fit": lack_of_fit(residuals)}
        old = read_settings(file) if (file := folder / "forecast.json").exists() else {}
        others = old.get("others", {})  # predictions that a training followed, by its size
        if old:
            others[f"{old['parameters']}-{old['tokens']}"] = [*old["earlier"], *[old["loss"]] * ("trained" in old)]
        known = others.pop(f"{size}-{tokens}", [])
        content |= {"earlier": [loss for loss in known if not math.isclose(loss, predicted)], "others": others}
        write_text(folder / "forecast.json", json.dumps(content, indent=2) + "\n")
        report(f"Predicted for width {ladder.widths[-1]}: loss {predicted:.4g} (90 %: {low:.4g} to {high:.4g}).")
        top = ladder_runs.train([(ladder.widths[-1], ladder.held_out)])
    found = mean(run.score for _, _, run in top)
    write_text(folder / "forecast.json", json.dumps(content | {"trained": found}, indent=2) + "\n")
    text = words(ladder_runs, law, laws, lower, top, content) + "\n" + budgets(law, points, flops, [*lower, *top])
    draw(folder, law, points, (size, tokens, found))
    write_text(folder / "forecast.md", text + "\n")
    return text


def words(ladder_runs: LadderRuns, law: Law, laws: list[Law], lower: list, top: list, content: dict[str, Any]) -> str:
    """Return the runs, the law and how close its prediction was."""
    lines = ["| parameters | tokens | loss | by the law |", "| --- | --- | --- | --- |"]
    for parameters, tokens, run in [*lower, *top]:
        by_law = float(law.loss(parameters, tokens))
        lines.append(f"| {parameters:,} | {tokens:,} | {run.score:.4f} | {by_law:.4f} |")
    ends = {name: np.quantile([getattr(each, name) for each in laws], QUANTILES) for name in ("e", "alpha", "beta")}
    ends["e"] = np.exp(ends["e"])
    ranges = {name: f"({low:.2f} to {high:.2f})" for name, (low, high) in ends.items()}
    found = mean(run.score for _, _, run in top)
    low, high = content["interval"]
    earlier = ", ".join(f"{loss:.4f}" for loss in content["earlier"])
    notes = [f"- Earlier predictions here: {earlier}; the held-out run was known before this one."] * bool(earlier)
    if content["lack_of_fit"] < 0.01:
        notes.append(f"- These runs do not follow the law (lack of fit, p = {content['lack_of_fit']:.1g}): {LONGER}")
    if rate := ladder_runs.plan.arguments.get("learning_rate"):
        notes.append(f"- All widths, and the models below, have the learning rate {rate}.")
    if ladder_runs.epochs > 1.05:
        notes.append(f"- The data was read up to {ladder_runs.epochs:.1f} times, and counts as new each time.")
    return "\n".join([
        *lines, "",
        f"- L = E + A / N^a + B / D^b with E = {np.exp(law.e):.3f} {ranges['e']}, A = {np.exp(law.a):.4g}, a = "
        f"{law.alpha:.3f} {ranges['alpha']}, B = {np.exp(law.b):.4g}, b = {law.beta:.3f} {ranges['beta']}.",
        f"- Width {ladder_runs.ladder.widths[-1]}, {content['parameters']:,} parameters, predicted from smaller ones: "
        f"{content['loss']:.4f}, 90 % between {low:.4f} and {high:.4f}.",
        f"- Trained: {found:.4f}, {'inside' if low <= found <= high else 'outside'} the interval; the prediction was "
        f"off by {abs(content['loss'] / found - 1):.2%}.",
        *notes,
    ])  # fmt: skip


def budgets(law: Law, points: Points, flops: np.ndarray, runs: list) -> str:
    """Return the best model for some budgets, and its training time on this machine."""
    size, length, last = runs[-1]
    cost = last.consumed["flops"]
    per = cost / (size * length)  # of the largest model: tables weigh more in small ones
    speeds = [run.consumed["flops"] / run.seconds for _, _, run in runs if run.whole]
    unclear = " and ".join(law.undetermined(points))
    lines = ["", "| FLOPs | best parameters | tokens | loss | time on this machine |", f"{'| --- ' * 5}|"]
    for times in BUDGETS:
        parameters, tokens = law.best(times * cost, per)
        loss, took = float(law.loss(parameters, tokens)), in_short(times * cost / speeds[-1]) if speeds else "unknown"
        lines.append(f"| {times * cost:.2g} | {parameters:,.0f} | {tokens:,.0f} | {loss:.3f} | {took} |")
    if unclear:
        lines = ["", f"- No best model for a budget: the loss of these runs does not measurably fall with {unclear}."]
    levels = np.geomspace(flops.min(), flops.max(), 7)[1:-1].tolist()
    seen = [f"{size:,.0f} for {level:.2g} FLOPs" for level, size in iso_flop(points, flops, levels)]
    parabolas = f"- Parabolas of equal FLOPs have their lowest loss at these parameters: {', '.join(seen) or 'none'}."
    return "\n".join([*lines, "", parabolas])


def draw(folder: Path, law: Law, points: Points, top: tuple[float, float, float]) -> None:
    """Draw losses over tokens for each size, with the law's curves, and the run that was predicted."""
    figure = Figure(figsize=(7.5, 4), layout="constrained")
    axes = figure.add_subplot(xlabel="tokens", ylabel="validation loss", xscale="log")
    for number, size in enumerate([*np.unique(points.parameters), top[0]]):
        chosen = points.parameters == size
        tokens, losses = (points.tokens[chosen], points.losses[chosen]) if chosen.any() else ([top[1]], [top[2]])
        grid = np.geomspace(min(tokens) / 1.5, max(tokens) * 1.5, 50)
        axes.plot(grid, law.loss(size, grid), **style(number))
        marker = {"marker": "o", "color": style(number)["color"], "label": f"{size:,.0f} parameters"}
        axes.scatter(tokens, losses, **marker | ({} if chosen.any() else {"marker": "*", "s": 120}))
    figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    rows = [*zip(points.parameters, points.tokens, points.losses), top]
    save(figure, folder / "figures" / "forecast", ("parameters", "tokens", "loss"), rows)
