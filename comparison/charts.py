"""The figures of a comparison, each with its numbers: readable in print, and without telling red from green."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from vanillaformer.console.drawing import save, style
from vanillaformer.training.metrics.scores import Score

from .comparing import Comparison
from .results import Result
from .statistics import interval

AXES: dict[str, tuple[str, Callable[[Result], float]]] = {
    "tokens": ("training tokens", lambda run: run.consumed["tokens"]),
    "flops": ("floating-point operations", lambda run: run.consumed["flops"]),
    "seconds": ("seconds of training, evaluations included", lambda run: run.seconds),
}
"""Axes that curves are drawn over, with how much of each a run took."""


def score_figure(comparison: Comparison, folder: Path) -> list[str]:
    """Draw every run as a point, and each variant's mean with its 95 % interval; return the pictures' names."""
    variants = list(comparison.variants.values())
    label = comparison.plan.score.label
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
    """Return the ends of the interval of a mean score, which it does not cross its least or greatest value with."""
    center, half = float(np.mean(values)), interval(values)
    high = center + half  # comes first in a comparison, which lets NaN through
    return max(center - half, 0.0), min(high, score.unit) if score.greater_is_better else high


def curve_figure(comparison: Comparison, folder: Path, axis: str) -> list[str]:
    """Draw each variant's mean validation loss, and the score that decides; return the pictures' names."""
    title = AXES[axis][0]
    score = comparison.plan.score
    labels = {"loss": "validation loss (log scale)"} | ({score.name: score.label} if score.name != "loss" else {})
    figure = Figure(figsize=(7.5, 0.6 + 3.4 * len(labels)), layout="constrained")
    rows: list[Sequence[Any]] = []
    for line, (name, label) in enumerate(labels.items(), start=1):
        scale = "log" if name == "loss" else "linear"
        axes = figure.add_subplot(len(labels), 1, line, xlabel=title, ylabel=f"{label}, mean", yscale=scale)
        for number, variant in enumerate(comparison.variants.values()):
            for run in variant.runs:
                rows += [(variant.name, run.seed, name, f"{taken(run, axis, x):.6g}", y) for x, y in run.curves[name]]
            if mean := variant.curve(name):
                axes.plot(
                    [np.mean([taken(run, axis, step) for run in variant.runs]) for step, _ in mean],
                    [y for _, y in mean],
                    label=variant.name,
                    marker=".",
                    **style(number),
                )
        axes.yaxis.set_major_formatter("{x:.3g}")
        axes.yaxis.set_minor_formatter("{x:.3g}")
        axes.grid(alpha=0.3, which="both")
    if figure.axes[0].lines:
        figure.legend(
            *figure.axes[0].get_legend_handles_labels(), loc="outside right upper", frameon=False, fontsize=8
        )
    return save(figure, folder / f"curves_{axis}", ("variant", "seed", "score", title, "validation"), rows)


def taken(run: Result, axis: str, step: int) -> float:
    """Return what a run had taken when its model came to a step; the teachers of an ensemble are trained before."""
    amount, teachers = AXES[axis][1](run), run.consumed.get("teachers", {})
    unit = axis if axis in run.consumed else "flops"  # which stand for seconds
    before = amount * teachers.get(unit, 0) / run.consumed[unit]
    return before + (amount - before) * step / run.steps


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
