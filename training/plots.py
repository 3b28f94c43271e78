"""Pictures of a run: how loss and score went, and what the decoder looks at."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from .scores import ENTRIES


def loss_curve(log_history: Sequence[dict[str, Any]], path: Path) -> Path:
    """Draw training and validation loss, and the validation score, over the steps.

    Args:
        log_history: What the Trainer logged (`trainer.state.log_history`).
        path: The picture to write; its ending says the format.
    """
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot(xlabel="step", ylabel="loss (log scale)", yscale="log")
    for name, label in (("loss", "training loss"), ("eval_loss", "validation loss")):
        steps, values = _series(log_history, name)
        if steps:
            axes.plot(steps, values, label=label, marker="." if name == "eval_loss" else None)
    score = next((score for score in ENTRIES if score.drawn and _series(log_history, f"eval_{score.name}")[0]), None)
    if score is not None:
        right = axes.twinx()
        right.plot(*_series(log_history, f"eval_{score.name}"), color="tab:green", marker=".", label=score.label)
        right.set_ylabel(score.label)
    axes.grid(alpha=0.3)
    if axes.lines:
        figure.legend(loc="outside upper center", ncols=3, frameon=False)
    figure.savefig(path, dpi=150)
    return path


def confusion_picture(matrix: np.ndarray, names: Sequence[str], path: Path) -> Path:
    """Draw how often each class (row) was taken for each (column): colours are shares of the row, numbers are rows.

    Args:
        matrix: Counts (C, C), as scikit-learn's `confusion_matrix` gives them.
        names: The C classes.
        path: The picture to write.
    """
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    size = 2.5 + 0.45 * len(names)
    figure = Figure(figsize=(size + 1, size), layout="constrained")
    axes = figure.add_subplot(xlabel="predicted", ylabel="reference")
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    ticks = [str(name).replace("$", "\\$") for name in names]  # which would start mathematical text
    axes.set_xticks(range(len(names)), ticks, rotation=90, fontsize=8)
    axes.set_yticks(range(len(names)), ticks, fontsize=8)
    for (row, column), count in np.ndenumerate(matrix):
        colour = "white" if shares[row, column] > 0.5 else "black"
        axes.text(column, row, str(count), ha="center", va="center", fontsize=7, color=colour)
    figure.colorbar(image, label="share of the reference's rows")
    figure.savefig(path, dpi=150)
    return path


def attention_map(
    weights: np.ndarray, source: Sequence[str], target: Sequence[str], path: Path, *, title: str = ""
) -> Path:
    """Draw cross-attention weights, one panel per head and one for their mean.

    Args:
        weights: Attention of one layer (H, T, S): what each of T target tokens takes from S source tokens.
        source: The S source tokens; spaces are made visible.
        target: The T target tokens, each beside the weights it was predicted with.
        path: The picture to write.
        title: Shown above the panels.

    Raises:
        ValueError: The tokens do not fit the weights.
    """
    if weights.ndim != 3 or weights.shape[1:] != (len(target), len(source)):
        raise ValueError(
            f"weights of shape {weights.shape} do not fit {len(target)} target and {len(source)} source tokens"
        )
    panels = [("mean of the heads", weights.mean(axis=0)), *((f"head {i + 1}", w) for i, w in enumerate(weights))]
    columns = min(len(panels), 3)
    rows = -(-len(panels) // columns)
    size = (columns * (1.5 + 0.2 * len(source)), rows * (1.3 + 0.2 * len(target)))
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False).flat
    for axes in list(grid):
        axes.set_axis_off()
    for axes, (name, values) in zip(figure.axes, panels):
        axes.set_axis_on()
        axes.imshow(values, cmap="viridis", vmin=0, vmax=1, aspect="auto")
        axes.set_title(name, fontsize=9)
        axes.set_xticks(range(len(source)), [_visible(token) for token in source], rotation=90, fontsize=7)
        axes.set_yticks(range(len(target)), [_visible(token) for token in target], fontsize=7)
    figure.suptitle(title, fontsize=10)
    figure.supxlabel("source", fontsize=9)
    figure.supylabel("target", fontsize=9)
    figure.savefig(path, dpi=150)
    return path


def _visible(token: str) -> str:
    # A dollar sign would start mathematical text.
    return token.replace(" ", "␣").replace("$", "\\$") or "␣"


def _series(log_history: Sequence[dict[str, Any]], name: str) -> tuple[list[int], list[float]]:
    points = {entry["step"]: entry[name] for entry in log_history if name in entry}
    return sorted(points), [points[step] for step in sorted(points)]
