"""The report of a comparison: a table, the differences, figures with their numbers, and how to run it again.

The figures are readable in print and without telling red from green.
"""

import json
import math
import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from vanillaformer import __version__
from vanillaformer.console.drawing import embedded, save, style, templates
from vanillaformer.console.parsing import read_settings
from vanillaformer.console.reporting import report
from vanillaformer.hub.atomic_files import write_text
from vanillaformer.training.metrics.scores import Score

from .claims import Claims
from .comparing import Comparison
from .results import Result, VariantResult
from .statistics import Test, interval

NOTHING = "-"
RULES = ("score", "sequential", "family", "baseline")  # keys of report.json that verdicts follow from

AXES: dict[str, tuple[str, Callable[[Result], float]]] = {  # of the curves, with how much of each a run consumed
    "tokens": ("training tokens", lambda run: run.consumed["tokens"]),
    "flops": ("floating-point operations", lambda run: run.consumed["flops"]),
    "seconds": ("seconds of training without interruption, evaluations included", lambda run: run.seconds),
}


def write_report(comparison: Comparison, folder: Path) -> str:
    """Write report.html, report.md, report.json, and the figures with their numbers.

    Returns the table and its conclusions as text.
    """
    with Claims(folder / "claims").holding("report"):
        return _write(comparison, folder, folder / "figures")


def _write(comparison: Comparison, folder: Path, figures: Path) -> str:
    drawn = [("Scores", score_figure(comparison, figures))]
    drawn += [(f"Validation over {AXES[axis][0]}", curve_figure(comparison, figures, axis)) for axis in AXES]
    if comparison.tuning:
        drawn.append(("Tuning", tuning_figure(comparison, figures)))
    pictures = [{"title": title, "name": names[1], "data": embedded(figures / names[0])} for title, names in drawn]
    content, pages = facts(comparison), templates("vanillaformer.comparison")
    for name in ("report.html", "report.md"):
        text = pages.get_template(f"{name}.jinja").render(pictures=pictures, **content)
        write_text(folder / name, text.rstrip() + "\n")
    found, path = verdicts(comparison), folder / "report.json"
    old = read_settings(path) if path.exists() else found
    if changes := [f"{key} {old[key]}, now {found[key]}" for key in RULES if old.get(key, found[key]) != found[key]]:
        report(f"Verdicts that were given before by other rules are given again: {', '.join(changes)}.")
    write_text(path, json.dumps(found, indent=2) + "\n")
    return pages.get_template("table.md.jinja").render(**content)


def verdicts(comparison: Comparison) -> dict[str, Any]:
    """Return the verdicts on variants, as scripts read them from report.json."""
    plan, found = comparison.plan, {}
    for name, variant in comparison.variants.items():
        found[name] = {
            "scores": {str(run.seed): run.score for run in variant.runs},
            "lost": {str(seed): f"{lost.state}: {lost.message}" for seed, lost in variant.lost.items()},
            "tuned": comparison.chosen.get(name),
        }
    for name, verdict in comparison.verdicts.items():
        tested = {"verdict": verdict.word, "test": verdict.test and asdict(verdict.test), "seeds": list(verdict.seeds)}
        found[name] = tested | found[name]
    return {
        **{"vanillaformer": __version__, "program": plan.program, "budget": {plan.budget: plan.amount}},
        **{"score": plan.score.name, "greater_is_better": plan.score.greater_is_better},
        **{"sequential": plan.sequential, "family": plan.tests, "baseline": plan.baseline, "variants": found},
    }


def facts(comparison: Comparison) -> dict[str, Any]:
    plan = comparison.plan
    tests = {name: verdict.test for name, verdict in comparison.verdicts.items() if verdict.test is not None}
    return {
        "plan": plan,
        "score": plan.score,
        "rows": [row(found, tests.get(name), plan) for name, found in comparison.variants.items()],
        "sentences": sentences(comparison, tests),
        "seeds": f"{'2 to ' if plan.sequential else ''}{len(plan.seeds)} seed{'s'[len(plan.seeds) == 1 :]}",
        "differences": {name: differences(found, comparison) for name, found in comparison.variants.items()},
        "version": __version__,
        "command": shlex.join(["vanillaformer", plan.program, "settings/runs-VARIANT-SEED.yaml"]),
    }


def row(found: VariantResult, test: Test | None, plan: Any) -> dict[str, Any]:
    center, states = NOTHING, [outcome.state for outcome in found.lost.values()]
    memory = max((run.memory for run in found.runs), default=0.0)
    if found.scores:
        low, high = interval_of_mean(plan.score, found.scores)
        center = f"{mean(found.scores):.4g}" + (f" ({low:.4g} to {high:.4g})" if low == low else "")
    return {
        "name": found.name,
        "is_baseline": found.name == plan.baseline,
        "score": center,
        "each": ", ".join(f"{score:.4g}" for score in found.scores),
        "difference": "" if test is None else f"{test.difference:+.3g} ({test.low:+.3g} to {test.high:+.3g})",
        "p": "" if test is None else ("< 0.001" if test.p < 0.001 else f"{test.p:.3f}"),
        "found": test is not None and test.found,
        "parameters": f"{found.parameters:,}" if found.parameters else NOTHING,
        "flops_per_token": f"{found.flops_per_token:.3g}" if found.flops_per_token else NOTHING,
        "tokens_per_second": f"{found.speed:,.0f}" if found.speed else NOTHING,
        "memory": f"{memory:,.0f}" if memory else NOTHING,
        "lost": ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states)),
    }


def sentences(comparison: Comparison, tests: dict[str, Test]) -> list[str]:
    """Return what the table shows, and what it does not show."""
    plan, found = comparison.plan, []
    for word in ("better", "worse"):
        names = [name for name, verdict in comparison.verdicts.items() if verdict.word == word]
        found.append(f"{word.capitalize()} than {plan.baseline}: {', '.join(names) or 'none'}.")
    if rest := [name for name, test in tests.items() if not test.found]:
        found.append(f"No detectable difference from {plan.baseline}: {', '.join(rest)}.")
    if plan.sequential:
        found.append(
            f"Tested after every seed from the second on: over all {len(plan.looks)} looks together, with 95 % "
            "probability no difference is false and all intervals hold."
        )
    if plan.family:
        share = f"{plan.family} variants share the 5 % probability of a false difference"
        found.append(f"{share}; {len(comparison.verdicts)} are here.")
    if tests:
        if together := [test.resolution for test in tests.values() if not test.alone]:
            least = f"{max(together):.2g}"
            found.append(f"With these runs, differences below {least} cannot be detected (Dunnett and Welch, 95 %).")
        if alone := [name for name, test in tests.items() if test.alone]:
            found.append(f"With a wider spread, and tested with their own variance (Welch): {', '.join(alone)}.")
    for name, variant in comparison.variants.items():
        if variant.lost:
            total = len(variant.lost) + len(variant.runs)
            why = "; ".join(f"seed {seed} {lost.state}: {lost.message}" for seed, lost in variant.lost.items())
            found.append(f"{name}: {len(variant.lost)} of {total} runs are lost and not in the means ({why}).")
    if few := [name for name in comparison.variants if name not in tests and name != plan.baseline]:
        found.append(f"Not tested, for lack of two valid runs on both sides, or of any spread: {', '.join(few)}.")
    if (count := len(plan.seeds)) < 5 and not plan.sequential:
        shown = "One seed shows no difference" if count == 1 else f"{count} seeds show only large differences"
        found.append(f"{shown}; a claim needs at least 5.")
    found.append("The intervals are over seeds (weights and data order), not over validation rows.")
    for name, options in comparison.chosen.items():
        if plan.beyond([tried for tried, _ in comparison.tuning[name]], options):
            best = ", ".join(f"{option} {value}" for option, value in options.items())
            found.append(f"{name}: {best} is at the end of the values tried; one beyond may be better (--extend).")
    if not plan.tune:
        found.append("Nothing was tuned: the common settings may suit one variant better than another (--tune).")
    return found


def differences(found: VariantResult, comparison: Comparison) -> str:
    """Return a variant's options and the fields in which its config differs from the baseline's."""
    baseline, words = comparison.variants[comparison.plan.baseline], []
    words += [f"--{name} {value}" for name, value in found.options.items() if name != "overrides"]
    configs = [variant.config for variant in (baseline, found)]
    for name in sorted(configs[0].keys() | configs[1].keys()) if all(configs) else ():
        old, new = (config.get(name, "default") for config in configs)
        if old != new:
            words.append(f"{name}: {old} → {new}")
    return "; ".join(words) or ("the baseline" if found is baseline else "no difference")


# --------------------------------------------------------------------------------------------------------- figures
def score_figure(comparison: Comparison, folder: Path) -> list[str]:
    """Draw every run as a point, and each variant's mean with its 95 % interval; return the pictures' names."""
    variants, label = list(comparison.variants.values()), comparison.plan.score.label
    figure = Figure(figsize=(7.5, 1.2 + 0.36 * len(variants)), layout="constrained")
    axes = figure.add_subplot(xlabel=f"{label}, validation: each seed, mean and 95 % t interval")
    rows: list[Sequence[Any]] = []
    for line, variant in enumerate(variants):
        color = style(line)["color"]
        axes.plot(variant.scores, [line] * len(variant.scores), "o", color=color, alpha=0.5, markersize=4)
        if variant.scores:
            center = sum(variant.scores) / len(variant.scores)
            low, high = interval_of_mean(comparison.plan.score, variant.scores)
            error = None if math.isnan(low) else [[center - low], [high - center]]
            axes.errorbar(center, line, xerr=error, fmt="|", color=color, capsize=4, markersize=14)
            if variant.name == comparison.plan.baseline:
                axes.axvline(center, color="0.6", linewidth=1, zorder=0)
        rows += [(variant.name, run.seed, run.score) for run in variant.runs]
    axes.set_yticks(range(len(variants)), [variant.name for variant in variants])
    axes.set_ylim(len(variants) - 0.5, -0.5)
    axes.grid(axis="x", alpha=0.3)
    return save(figure, folder / "scores", ("variant", "seed", label), rows)


def interval_of_mean(score: Score, values: Sequence[float]) -> tuple[float, float]:
    """Return the ends of the interval of a mean score, within the score's least and greatest values."""
    center, half = float(np.mean(values)), interval(values)  # max and min return NaN if it comes first
    least = -1.0 if score.name in ("pearson", "spearman") else 0.0
    return max(center - half, least), min(center + half, score.unit if score.greater_is_better else math.inf)


def curve_figure(comparison: Comparison, folder: Path, axis: str) -> list[str]:
    """Draw each variant's mean validation loss, and the score that decides; return the pictures' names."""
    title, score = AXES[axis][0], comparison.plan.score
    labels = {"loss": "validation loss (log scale)"} | ({score.name: score.label} if score.name != "loss" else {})
    figure = Figure(figsize=(7.5, 0.6 + 3.4 * len(labels)), layout="constrained")
    rows: list[Sequence[Any]] = []
    for line, (name, label) in enumerate(labels.items(), start=1):
        scale = "log" if name == "loss" else "linear"
        axes = figure.add_subplot(len(labels), 1, line, xlabel=title, ylabel=f"{label}, mean", yscale=scale)
        for number, variant in enumerate(comparison.variants.values()):
            runs = [run for run in variant.runs if run.whole or axis != "seconds"]
            for run in runs:
                each = AXES[axis][1](run) / run.steps
                rows += [(variant.name, run.seed, name, f"{step * each:.6g}", y) for step, y in run.curves[name]]
            if curve := replace(variant, runs=runs).curve(name):
                shares, values = zip(*curve)
                whole = mean(AXES[axis][1](run) for run in runs)
                axes.plot(np.multiply(whole, shares), values, label=variant.name, marker=".", **style(number))
        axes.yaxis.set_major_formatter("{x:.3g}")
        axes.yaxis.set_minor_formatter("{x:.3g}")
        axes.grid(alpha=0.3, which="both")
    if figure.axes[0].lines:
        lines_and_labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(*lines_and_labels, loc="outside right upper", frameon=False, fontsize=8)
    return save(figure, folder / f"curves_{axis}", ("variant", "seed", "score", title, "validation"), rows)


def tuning_figure(comparison: Comparison, folder: Path) -> list[str]:
    """Draw how the score of each variant depends on the option that was tuned; return the pictures' names."""
    label, name = comparison.plan.score.label, next(iter(comparison.plan.tune))
    values = list(comparison.plan.tune[name])
    if more := [each[name] for tried in comparison.tuning.values() for each, _ in tried if each[name] not in values]:
        values = sorted({*values, *more})
    figure = Figure(figsize=(7.5, 3.8), layout="constrained")
    axes = figure.add_subplot(xlabel=name, ylabel=f"{label}, seeds of the tuning")
    rows: list[Sequence[Any]] = []
    direction = 1 if comparison.plan.score.greater_is_better else -1
    for number, (variant, tried) in enumerate(comparison.tuning.items()):
        rows += [(variant, *options.values(), score) for options, score in tried]
        best = []  # over the other options, if several are tuned
        for value in values:
            scores = [direction * score for options, score in tried if options[name] == value and score is not None]
            best.append(direction * max(scores) if scores else math.nan)
        axes.plot(range(len(values)), best, label=variant, marker="o", markersize=4, **style(number))
    axes.set_xticks(range(len(values)), [str(value) for value in values])
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    return save(figure, folder / "tuning", ("variant", *comparison.plan.tune, label), rows)
