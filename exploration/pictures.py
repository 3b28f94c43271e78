"""Style of the figures: maps, grids of maps, tables, curves and bars, readable in print and to color-blind people."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import CenteredNorm, LogNorm, Normalize, PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter

from vanillaformer.console.drawing import COLORS, style, visible

LONGEST = 40  # tokens of a text that are drawn, so that their names can be read
WIDEST = 12  # characters of a token's name
CROWDED = 10  # ratio of the ends of a logarithmic scale up to which all its marks have room for numbers
NUMBERED = 256  # cells of a map up to which each shows its number
PROBABILITIES = (0, 0.05, 0.2, 0.5, 1)  # marks of a color scale, which follows their square roots
ONE_SIDED, TWO_SIDED = "Blues", "PuOr_r"
Found = TypeVar("Found")


class NotApplicable(ValueError):
    """A figure does not apply to a model; the message says why."""


def needed(found: Found, reason: str) -> Found:
    """Return what a figure shows; raise `NotApplicable` with the reason if it is empty."""
    if not found:
        raise NotApplicable(reason)
    return found


@dataclass
class Drawing:
    """A picture (matplotlib) with its numbers, and a caption that sums them up."""

    name: str  # name of its files, without ending
    caption: str
    figure: Figure
    header: Sequence[str] = ()
    rows: Iterable[Sequence[Any]] = field(default_factory=list)
    data: str = ""  # the picture as a data URL, once it is written

    def __post_init__(self) -> None:
        """Round the numbers for the CSV file."""
        self.rows = [
            [f"{value:.4g}" if isinstance(value, float | np.floating) else value for value in row] for row in self.rows
        ]

    @property
    def width(self) -> int:
        """The width on the page, in pixels."""
        return round(96 * self.figure.get_figwidth())

    @property
    def remark(self) -> str:
        """The caption without the picture's title."""
        rest = self.caption.removeprefix(self.figure.axes[0].get_title()).lstrip(".,:; ")
        return rest[:1].upper() + rest[1:]


def table(values: np.ndarray) -> list[tuple[Any, ...]]:
    """Return the rows of a table: the indices of each vector of an array, and its numbers."""
    return [(*index, *values[index]) for index in np.ndindex(values.shape[:-1])]


def shortened(length: int) -> str:
    """Return a note on how much of a text is drawn, empty if all of it is."""
    return f" (the first {LONGEST} of {length} tokens)" if length > LONGEST else ""


def label(token: str) -> str:
    """Return a token's name as a label of an axis, short and with its spaces visible."""
    return visible(token if len(token) <= WIDEST else token[: WIDEST - 1] + "…")


def counted(count: int) -> list[str]:
    """Return labels of layers and heads, which are counted from 0 as in the code."""
    return [str(each) for each in range(count)]


def canvas(size: tuple[float, float], title: str, axes: tuple[str, str], **options: Any) -> tuple[Figure, Axes]:
    """Return a figure of a size in inches with a title, and its plot; axes are the names of y and x."""
    figure = Figure(figsize=size, layout="constrained")
    plot = figure.add_subplot(**options)
    plot.set_title(title, fontsize=10)
    plot.set_ylabel(axes[0], fontsize=9)
    plot.set_xlabel(axes[1], fontsize=9)
    return figure, plot


def color_bar(figure: Figure, image: Any, name: str, ticks: Sequence[float] | None = None) -> Axes:
    """Add the color bar of a map, at most three inches long; return its axes."""
    bar = figure.colorbar(image, ticks=ticks, shrink=min(1.0, 3 / figure.get_figheight()), aspect=15)
    bar.set_label(name, fontsize=8)
    bar.ax.tick_params(labelsize=8)
    return bar.ax


def draw_map(figure: Figure, plot: Axes, values: np.ndarray, signed: str, **options: Any) -> None:
    """Draw probabilities as colors, or the numbers that `signed` names, whose colors are centered at 0."""
    norm = CenteredNorm() if signed else PowerNorm(0.5, 0, 1)
    image = plot.imshow(values, aspect="auto", cmap=TWO_SIDED if signed else ONE_SIDED, norm=norm, **options)
    color_bar(figure, image, signed or "probability", None if signed else PROBABILITIES)


def map_grid(maps: np.ndarray, title: str, *, signed: str = "", axes: tuple[str, str] = ("layer", "head")) -> Figure:
    """Draw one small map per layer (rows) and head (columns), in one scale: (L, H, T, S).

    They are probabilities, or with `signed` the numbers that it names, whose colors are centered at 0.
    """
    layers, heads, height, width = maps.shape
    gap_y, gap_x = max(1, height // 12), max(1, width // 12)
    # one picture of all maps: axes for each would take a tenth of a second each
    mosaic = np.pad(maps, ((0, 0), (0, 0), (0, gap_y), (0, gap_x)), constant_values=np.nan)
    mosaic = mosaic.transpose(0, 2, 1, 3).reshape(layers * (height + gap_y), -1)[:-gap_y, :-gap_x]
    panel, tall = min(max(1.5, 4.5 / heads), 10 / heads), min(max(height / width, 0.5), 2.0)
    figure, plot = canvas((panel * heads + 1.6, panel * tall * layers + 0.9), title, axes, facecolor="0.75")
    draw_map(figure, plot, mosaic, signed, interpolation="nearest")
    plot.set_xticks((width + gap_x) * np.arange(heads) + (width - 1) / 2, counted(heads))
    plot.set_yticks((height + gap_y) * np.arange(layers) + (height - 1) / 2, counted(layers))
    plot.tick_params(length=0, labelsize=8)
    return figure


def large_map(
    values: np.ndarray,
    rows: Sequence[str] | None,
    columns: Sequence[str] | None,
    title: str,
    *,
    signed: str = "",
    axes: tuple[str, str] = ("", ""),
) -> Figure:
    """Draw one map (T, S), as in `map_grid`, with the names of its rows and columns, or numbers."""
    size = (2.6 + 0.24 * len(columns), 1.6 + 0.22 * len(rows)) if rows and columns else (5.6, 4.6)
    figure, plot = canvas(size, title, axes)
    draw_map(figure, plot, values, signed)
    if rows and columns:
        plot.set_xticks(range(len(columns)), [label(name) for name in columns], rotation=90, fontsize=7)
        plot.set_yticks(range(len(rows)), [label(name) for name in rows], fontsize=7)
    return figure


def heat_map(
    values: np.ndarray,
    rows: Sequence[str],
    columns: Sequence[str],
    title: str,
    *,
    what: str,
    axes: tuple[str, str] = ("layer", "head"),
    signed: bool = False,
    norm: Normalize | None = None,
    style: str = ".2f",
    words: np.ndarray | None = None,
) -> Figure:
    """Draw numbers as colors, each with its number or word where there is room: (R, C), NaN for none.

    The color scale is `norm`, by default from 0 to the largest; that of `signed` numbers is centered at 0.
    """
    wide = 0.78 if words is not None else 0.42
    size = (2.2 + max(wide * len(columns), 1.5), 1.3 + max(0.24 * len(rows), 0.8))
    figure, plot = canvas(size, title, axes)
    norm = norm or (CenteredNorm() if signed else Normalize(0))
    image = plot.imshow(values, cmap=TWO_SIDED if signed else ONE_SIDED, norm=norm, aspect="auto")
    plot.set_xticks(range(len(columns)), columns, fontsize=8)
    plot.set_yticks(range(len(rows)), rows, fontsize=8)
    bar = color_bar(figure, image, what)
    if isinstance(norm, LogNorm):
        bar.yaxis.set_major_formatter("{x:,.0f}")
    if values.size <= NUMBERED or words is not None:
        for (row, column), value in np.ndenumerate(values):
            if np.isfinite(value):
                text = format(value, style) if words is None else str(words[row, column])
                red, green, blue, _ = image.to_rgba(value)
                color = "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 0.5 else "black"
                cell = plot.text(column, row, text, ha="center", va="center", fontsize=7, color=color)
                cell.set_in_layout(False)  # it is inside the axes: including it in the layout takes most of the time
    return figure


def curves(
    lines: Mapping[str, np.ndarray],
    x: Sequence[float] | np.ndarray,
    title: str,
    *,
    axes: tuple[str, str],
    log: bool = False,
    limits: tuple[float, float] | None = None,
) -> Figure:
    """Draw named curves over x, within limits of y; axes are the names of y and x."""
    figure, plot = canvas((7.0, 3.8), title, axes, yscale="log" if log else "linear")
    for index, (name, values) in enumerate(lines.items()):
        plot.plot(x, values, label=name, marker="." if len(x) <= LONGEST else None, **style(index))
    if log:
        ends = [end(list(lines.values())) for end in (np.nanmin, np.nanmax)]
        plot.yaxis.set_major_formatter("{x:.3g}")
        plot.yaxis.set_minor_formatter("{x:.3g}" if ends[1] < CROWDED * ends[0] else NullFormatter())
    if limits:
        plot.set_ylim(limits)
    plot.xaxis.set_major_locator(MaxNLocator(integer=True))
    plot.grid(alpha=0.3)
    if len(lines) > 1:
        figure.legend(loc="outside lower center", ncols=min(len(lines), 6), frameon=False, fontsize=8)
    return figure


def bars(
    groups: Mapping[str, np.ndarray],
    names: Sequence[str],
    title: str,
    *,
    axes: tuple[str, str],
    looks: Sequence[int] = range(len(COLORS)),
    limits: tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]] | None = None,
) -> Figure:
    """Draw bars side by side, one color of `looks` for each group; NaN for none. Limits are lines on the bars."""
    figure, plot = canvas((max(6.0, 1.5 + 0.2 * len(names) * len(groups)), 3.4), title, axes)
    width = 0.8 / len(groups)
    for index, (name, values) in enumerate(groups.items()):
        x = np.arange(len(names)) + (index - (len(groups) - 1) / 2) * width
        plot.bar(x, values, width * 0.9, label=name, color=COLORS[looks[index]])
        if limits is not None:
            plot.vlines(x, limits[0][name], limits[1][name], color="black", linewidth=1)
    plot.axhline(0, color="black", linewidth=0.8)
    plot.set_xticks(range(len(names)), names, fontsize=8)
    plot.grid(axis="y", alpha=0.3)
    figure.legend(loc="outside lower center", ncols=len(groups), frameon=False, fontsize=8)
    return figure
