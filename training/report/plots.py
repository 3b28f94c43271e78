"""Pictures of a run: learning curves, confusion matrix."""

from collections.abc import Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font

from vanillaformer.console.drawing import save_figure

from ..metrics.scores import SCORES

NUMBERED = 40  # maximum number of classes for numbers in a picture


def loss_curve(log_history: Sequence[dict[str, Any]], path: Path) -> Path:
    """Draw training and validation loss, and the validation score, over the steps."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot(xlabel="step", ylabel="loss (log scale)", yscale="log")
    for name, label in (("loss", "training loss"), ("eval_loss", "validation loss")):
        if points := curve(log_history, name):
            axes.plot(*zip(*points), label=label, marker="." if name == "eval_loss" else None)
    score = next(
        (score for score in SCORES.values() if score.drawn and curve(log_history, f"eval_{score.name}")), None
    )
    if score is not None:
        right = axes.twinx()
        right.plot(*zip(*curve(log_history, f"eval_{score.name}")), color="tab:green", marker=".", label=score.label)
        right.set_ylabel(score.label)
    axes.grid(alpha=0.3)
    if axes.lines:
        figure.legend(loc="outside upper center", ncols=3, frameon=False)
    return save_figure(figure, path)


def confusion_picture(matrix: np.ndarray, names: Sequence[str], path: Path, *, title: str = "") -> Path:
    """Draw how often each class (row) was taken for each (column): colors are shares of the row, numbers are rows.

    The matrix has the counts (C, C). With more than `NUMBERED` classes there are no numbers, and the picture does not
    grow further. A class whose name the font lacks is shown by its number.
    """
    shares = matrix / np.maximum(matrix.sum(axis=1), 1)[:, None]
    size = 2.5 + 0.45 * min(len(names), NUMBERED)
    figure = Figure(figsize=(size + 1, size), layout="constrained")
    axes = figure.add_subplot(xlabel="predicted", ylabel="reference", title=title)
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    glyphs = {*get_font(findfont("DejaVu Sans")).get_charmap()}
    known = [name if {*map(ord, str(name))} <= glyphs else f"class {number}" for number, name in enumerate(names)]
    ticks = [shorten(str(name), 40, placeholder=" ...").replace("$", "\\$") for name in known]
    font = 8 if len(names) <= NUMBERED else 5
    axes.set_xticks(range(len(names)), ticks, rotation=90, fontsize=font)
    axes.set_yticks(range(len(names)), ticks, fontsize=font)
    for (row, column), count in np.ndenumerate(matrix if len(names) <= NUMBERED else np.empty((0, 0))):
        color = "white" if shares[row, column] > 0.5 else "black"
        number = axes.text(column, row, str(count), ha="center", va="center", fontsize=7, color=color)
        number.set_in_layout(False)  # it lies inside the axes: looking for room for it takes most of the time
    figure.colorbar(image, label="share of the reference's rows")
    return save_figure(figure, path)


def curve(log_history: Sequence[dict[str, Any]], name: str) -> list[tuple[int, float]]:
    return sorted({entry["step"]: float(entry[name]) for entry in log_history if name in entry}.items())
