"""The figures of a comparison, each with its numbers: readable in print, and without telling red from green."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from vanillaformer.training.drawing import save, style

from .comparing import Comparison
from .results import Result
from .sizes import Size
from .statistics import interval

AXES: dict[str, tuple[str, Callable[[Size, Result, int], float]]] = {
    "tokens": ("training tokens", lambda size, run, step: step * size.tokens),
    "flops": ("floating-point operations", lambda size, run, step: step * size.flops),
    "seconds": ("seconds of training, evaluations included", lambda size, run, step: step / run.steps * run.seconds),
}
"""What a loss is drawn over."""


def score_figure(comparison: Comparison, folder: Path) -> list[str]:
    """Draw every run as a point, and each variant's mean with its 95 % interval; return the pictures' names."""
    variants = list(comparison.variants.values())
    label = comparison.plan.score.label
    figure = Figure(figsize=(7.5, 1.2 + 0.36 * len(variants)), layout="constrained")
    axes = figure.add_subplot(xlabel=f"{label}, validation: each seed, mean and 95 % t interval")
    rows: list[Sequence[Any]] = []
    for place, variant in enumerate(variants):
        look = style(place)
        axes.plot(variant.scores, [place] * len(variant.scores), "o", color=look["color"], alpha=0.5, markersize=4)
        if variant.scores:
            center = sum(variant.scores) / len(variant.scores)
            half = interval(variant.scores)
            error = None if math.isnan(half) else half
            axes.errorbar(center, place, xerr=error, fmt="|", color=look["color"], capsize=4, markersize=14)
            if variant.name == comparison.plan.baseline:
                axes.axvline(center, color="0.6", linewidth=1, zorder=0)
        rows += [(variant.name, run.seed, run.score) for run in variant.runs]
    axes.set_yticks(range(len(variants)), [variant.name for variant in variants])
    axes.set_ylim(len(variants) - 0.5, -0.5)
    axes.grid(axis="x", alpha=0.3)
    return save(figure, folder / "scores", ("variant", "seed", label), rows)


def loss_figure(comparison: Comparison, folder: Path, axis: str) -> list[str]:
    """Draw the mean validation loss of each variant over tokens, operations or seconds; return the pictures' names."""
    title, at = AXES[axis]
    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    axes = figure.add_subplot(xlabel=title, ylabel="validation loss (log scale), mean of the seeds", yscale="log")
    rows: list[Sequence[Any]] = []
    for number, variant in enumerate(comparison.variants.values()):
        size = variant.size
        if size is None:
            continue
        lines = [[(at(size, run, step), loss) for step, loss in run.losses] for run in variant.runs]
        rows += [(variant.name, run.seed, f"{x:.6g}", y) for run, line in zip(variant.runs, lines) for x, y in line]
        points = [np.mean(both, axis=0) for both in zip(*lines)]  # of each evaluation, over the seeds
        if points:
            axes.plot(*np.transpose(points), label=variant.name, marker=".", **style(number))
    axes.yaxis.set_major_formatter("{x:.3g}")
    axes.yaxis.set_minor_formatter("{x:.3g}")
    axes.grid(alpha=0.3, which="both")
    if axes.lines:
        figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    return save(figure, folder / f"loss_{axis}", ("variant", "seed", title, "validation loss"), rows)


def tuning_figure(comparison: Comparison, folder: Path) -> list[str]:
    """Draw how the score of each variant depends on the option that was tuned; return the pictures' names."""
    label = comparison.plan.score.label
    name = next(iter(comparison.plan.tune))
    values = comparison.plan.tune[name]
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
