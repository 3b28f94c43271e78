"""The page of an example: one HTML file that needs no network, with every figure and what it shows."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from vanillaformer import __version__
from vanillaformer.console.drawing import embedded, save
from vanillaformer.hub.atomic_files import write_text

from .examples import Example
from .figures import Figure
from .pictures import Drawing

ENGINE = Environment(
    loader=PackageLoader("vanillaformer.exploration", "."),
    undefined=StrictUndefined,
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
)


@dataclass(frozen=True)
class Picture:
    """A drawing on the page."""

    name: str
    caption: str
    remark: str
    data: str
    width: int


def write_page(
    example: Example,
    drawn: Sequence[tuple[Figure, Sequence[Drawing]]],
    missing: dict[str, str],
    folder: Path,
    name: str,
) -> Path:
    """Write index.html, and every picture as PNG with its numbers as CSV; return the page.

    Args:
        example: The model with its input.
        drawn: The figures with their drawings, of `draw_all`.
        missing: Names of figures that do not apply, with the reasons.
        folder: Where to write.
        name: Folder or Hub id of the model.
    """
    sections: list[dict[str, Any]] = []
    for figure, drawings in drawn:
        pictures = [written(drawing, folder / "figures") for drawing in drawings]
        sections.append({"figure": figure, "pictures": pictures})
    text = ENGINE.get_template("page.html.jinja").render(
        example=example, name=model_name(name), sections=sections, missing=missing, version=__version__
    )
    write_text(folder / "index.html", text)
    return folder / "index.html"


def model_name(path: str) -> str:
    """Return the name of a model without the folders or the user that it belongs to."""
    return Path(os.path.abspath(path)).name


def written(drawing: Drawing, folder: Path) -> Picture:
    """Write a drawing and its numbers, and return it for the page."""
    (png,) = save(drawing.figure, folder / drawing.name, drawing.header, drawing.rows, endings=(".png",))
    width = round(96 * drawing.figure.get_figwidth())
    return Picture(drawing.name, drawing.caption, drawing.remark, embedded(folder / png), width)
