"""How the figures look: grids of maps, one large map with tokens; readable in print and to color-blind people."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure

from vanillaformer.training.evaluation.plots import visible

LONGEST = 40  # tokens that are drawn of a text, so that their names can be read
WIDEST = 12  # characters of a token's name
PROBABILITIES = (0, 0.05, 0.2, 0.5, 1)  # named on a scale of color, which is that of their square roots


class NotApplicable(ValueError):
    """A model has nothing that a figure could show; the message says why."""


@dataclass
class Drawing:
    """A picture with its numbers.

    Args:
        name: Name of its files, without ending.
        caption: What is special about this one, in words.
        figure: The picture (matplotlib).
        header: Names of the columns of numbers.
        rows: The numbers.
    """

    name: str
    caption: str
    figure: Figure
    header: Sequence[str] = ()
    rows: Iterable[Sequence[Any]] = field(default_factory=list)


def label(token: str) -> str:
    """Return a token's name as a label of an axis, short and with its spaces visible."""
    return visible(token if len(token) <= WIDEST else token[: WIDEST - 1] + "…")


def number(value: float) -> str:
    """Return a number for a CSV file."""
    return f"{value:.4g}"


def map_grid(maps: np.ndarray, title: str) -> Figure:
    """Draw one small map per layer (rows) and head (columns), in one scale: (L, H, T, S)."""
    layers, heads, height, width = maps.shape
    gap_y, gap_x = max(1, height // 12), max(1, width // 12)
    # one picture of all maps: axes for each would take a tenth of a second each
    mosaic = np.pad(maps, ((0, 0), (0, 0), (0, gap_y), (0, gap_x)), constant_values=np.nan)
    mosaic = mosaic.transpose(0, 2, 1, 3).reshape(layers * (height + gap_y), -1)[:-gap_y, :-gap_x]
    tall = min(max(height / width, 0.5), 2.0)
    panel = min(1.5, 11 / heads)
    figure = Figure(figsize=(panel * heads + 1.6, panel * tall * layers + 0.9), layout="constrained")
    axes = figure.add_subplot(facecolor="0.75")
    image = axes.imshow(mosaic, cmap="Blues", norm=PowerNorm(0.5, 0, 1), aspect="auto", interpolation="nearest")
    axes.set_xticks((width + gap_x) * np.arange(heads) + (width - 1) / 2, [str(head + 1) for head in range(heads)])
    axes.set_yticks((height + gap_y) * np.arange(layers) + (height - 1) / 2, [str(each + 1) for each in range(layers)])
    axes.tick_params(length=0, labelsize=8)
    axes.set(xlabel="head", ylabel="layer")
    axes.set_title(title, fontsize=10)
    figure.colorbar(image, label="probability", ticks=PROBABILITIES, shrink=min(1.0, 3 / (panel * tall * layers)))
    return figure


def large_map(values: np.ndarray, rows: Sequence[str], columns: Sequence[str], title: str) -> Figure:
    """Draw one map with the names of its rows and columns: (T, S)."""
    size = (2.4 + 0.24 * len(columns), 1.6 + 0.22 * len(rows))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(values, cmap="Blues", norm=PowerNorm(0.5, 0, 1), aspect="auto")
    axes.set_xticks(range(len(columns)), [label(name) for name in columns], rotation=90, fontsize=7)
    axes.set_yticks(range(len(rows)), [label(name) for name in rows], fontsize=7)
    figure.colorbar(image, label="probability", shrink=min(1.0, 3 / size[1]), ticks=PROBABILITIES)
    axes.set_title(title, fontsize=10)
    return figure
