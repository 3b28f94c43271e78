"""`FIGURES` is the list of figures; `write_page` writes them as one HTML file that needs no network.

A figure is a function from an `Example` (a model with one input, recorded) to drawings: it calls a function that gives
the numbers, such as `attention.entropy`, and one of `pictures` that draws them. It raises `NotApplicable` with the
reason, a sentence, if it does not apply to the model. To add a figure, write such a function and a row of `FUNCTIONS`,
and its words in `figures.yaml`: program, page and browser read both. `draw_all` calls the functions:

    example = text_example(load(GenerateArguments("runs/demo"))[0], "May 6, 2031")
    drawn, missing = draw_all(example)
    for figure, drawings in drawn:
        for drawing in drawings:  # drawing.figure is matplotlib's, drawing.header and drawing.rows its numbers
            drawing.figure.savefig(f"{drawing.name}.png")
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from vanillaformer import __version__
from vanillaformer.console.drawing import embedded, save, templates
from vanillaformer.hub.atomic_files import write_text

from .attention import attention_maps, distances, entropies, rollout
from .attribution import patching, token_attributions
from .examples import Example
from .lens import lens
from .losses import ablations, position_losses
from .pictures import Drawing, NotApplicable
from .positions import positions
from .stream import factors, stream, sublayers


@dataclass(frozen=True)
class Figure:
    """An entry of `FIGURES`."""

    name: str  # for `--figures`
    function: Callable[[Example], list[Drawing]]  # draws it; raises `NotApplicable`
    title: str  # its heading
    explanation: str  # two sentences on what it shows, with the paper


Drawn = list[tuple[Figure, list[Drawing]]]
FUNCTIONS: dict[str, Callable[[Example], list[Drawing]]] = {
    "lens": lens,
    "attention": attention_maps,
    "rollout": rollout,
    "attribution": token_attributions,
    "patching": patching,
    "entropy": entropies,
    "distance": distances,
    "stream": stream,
    "sublayers": sublayers,
    "factors": factors,
    "positions": positions,
    "ablation": ablations,
    "loss": position_losses,
}
TEXTS = yaml.safe_load(Path(__file__).with_name("figures.yaml").read_text(encoding="utf-8"))
FIGURES = tuple(Figure(name, function=function, **TEXTS[name]) for name, function in FUNCTIONS.items())


def chosen(names: Sequence[str] | None) -> list[Figure]:
    """Return the figures of these names, by default all."""
    table = {figure.name: figure for figure in FIGURES}
    if unknown := [name for name in names or () if name not in table]:
        raise ValueError(f"--figures {unknown[0]}: the figures are {', '.join(table)}")
    return [table[name] for name in names or table]


def draw_all(example: Example, names: Sequence[str] | None = None) -> tuple[Drawn, dict[str, str]]:
    """Return the figures with their drawings, and the names of those that do not apply with the reasons.

    A figure that was asked for by name and does not apply is a ValueError.
    """
    drawn, missing = [], {}
    for figure in chosen(names):
        try:
            drawn.append((figure, figure.function(example)))
        except NotApplicable as reason:
            if names:
                raise ValueError(f"--figures {figure.name}: {reason}") from reason
            missing[figure.name] = str(reason)
    return drawn, missing


def write_page(example: Example, drawn: Drawn, missing: dict[str, str], folder: Path, name: str) -> Path:
    """Write what `draw_all` returned as index.html, and every picture as PNG with its numbers as CSV; return the page.

    The name is the folder or Hub id of the model.
    """
    sections = [
        {"figure": figure, "pictures": [written(drawing, folder / "figures") for drawing in drawings]}
        for figure, drawings in drawn
    ]
    text = (
        templates("vanillaformer.exploration")
        .get_template("page.html.jinja")
        .render(example=example, name=model_name(name), sections=sections, missing=missing, version=__version__)
    )
    write_text(folder / "index.html", text)
    return folder / "index.html"


def model_name(path: str) -> str:
    """Return the name of a model without the folders or the user before it."""
    return Path(os.path.abspath(path)).name


def written(drawing: Drawing, folder: Path) -> Drawing:
    """Write a drawing and its numbers, and return it for the page."""
    (png,) = save(drawing.figure, folder / drawing.name, drawing.header, drawing.rows, endings=(".png",))
    drawing.data = embedded(folder / png)
    return drawing
