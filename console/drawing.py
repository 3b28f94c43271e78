"""Style and saving of all figures and pages: colors, labels, files, templates."""

import base64
import csv
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from matplotlib.figure import Figure

# Okabe and Ito's colors, safe for color-blind readers, then the same with other lines
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
LINES = ("-", "--", ":", "-.")


def style(number: int) -> dict[str, Any]:
    return {"color": COLORS[number % len(COLORS)], "linestyle": LINES[number // len(COLORS) % len(LINES)]}


def visible(token: str) -> str:
    """Return a token with its spaces made visible, for a label (a dollar sign would start mathematical text)."""
    return token.replace(" ", "␣").replace("$", "\\$") or "␣"


def save_figure(figure: Figure, path: Path) -> Path:
    with warnings.catch_warnings():  # one for each character that the font lacks and draws as a box
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(path, dpi=150)
    return path


def save(
    figure: Figure,
    path: Path,
    header: Sequence[str],
    rows: Iterable[Sequence[Any]],
    endings: Sequence[str] = (".svg", ".png"),
) -> list[str]:
    """Save a figure in the formats of these endings, and its numbers as CSV; return the names of the pictures."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pictures = [save_figure(figure, path.with_suffix(ending)).name for ending in endings]
    with path.with_suffix(".csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return pictures


def templates(package: str) -> Environment:
    """Return the page templates of a package: HTML is escaped, and a missing value is an error."""
    return Environment(
        loader=PackageLoader(package, "."),
        undefined=StrictUndefined,
        autoescape=select_autoescape(["html.jinja"]),
        trim_blocks=True,
        lstrip_blocks=True,
    )


def embedded(picture: Path) -> str:
    """Return a picture as a data URL."""
    kind = "svg+xml" if picture.suffix == ".svg" else picture.suffix.removeprefix(".")
    return f"data:image/{kind};base64,{base64.b64encode(picture.read_bytes()).decode()}"
