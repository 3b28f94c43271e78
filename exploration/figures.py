"""`FIGURES` is the list of figures; `write_page` writes them as one HTML file that needs no network.

A figure is a function from an `Example` (a model with one input, recorded) to drawings: it calls a function that gives
the numbers, such as `attention.entropy`, and one of `pictures` that draws them. It raises `NotApplicable` with the
reason, a sentence, where a model has no such thing. To add a figure, write such a function and a row of the table:
program, page and browser read it. `draw_all` calls the functions:

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

from vanillaformer import __version__
from vanillaformer.console.drawing import embedded, save, templates
from vanillaformer.hub.atomic_files import write_text

from .attention import attention_maps, distances, entropies, rollout
from .attribution import token_attributions
from .examples import Example
from .lens import lens
from .losses import ablations, position_losses
from .patching import patching
from .pictures import Drawing, NotApplicable
from .positions import positions
from .stream import factors, stream, sublayers


@dataclass(frozen=True)
class Figure:
    """A figure in the list."""

    name: str  # for `--figures`
    title: str  # its heading
    function: Callable[[Example], list[Drawing]]  # draws it; raises `NotApplicable`
    explanation: str  # two sentences on what it shows, with the paper


Drawn = list[tuple[Figure, list[Drawing]]]
FIGURES: tuple[Figure, ...] = (
    Figure(
        "lens", "Logit lens", lens,
        "Each layer's state goes through the final norm and the head, as if the layers after it did nothing "
        "(nostalgebraist 2020). It shows in which layer an answer comes up; the last layer's is the model's own.",
    ),
    Figure(
        "attention", "Attention", attention_maps,
        "Each row is a token that reads, each column one that is read, and every row sums to 1 (Vaswani et al. 2017). "
        "All maps have one scale of color; what is attended to need not be what matters (Jain and Wallace 2019).",
    ),
    Figure(
        "rollout", "Attention over the picture", rollout,
        "Roll-out multiplies the attention of all layers, half of each for the residual connection (Abnar and Zuidema "
        "2020). It shows from which patches the vector that is classified is made.",
    ),
    Figure(
        "attribution", "Attribution", token_attributions,
        "What each token contributes to the logit of an answer, by integrated gradients (Sundararajan et al. 2017): "
        "the sum of a row is the difference to a text of padding.",
    ),
    Figure(
        "patching", "Activation patching", patching,
        "The model reads a second text, with the output of one head as it was on the first: how much of the first "
        "answer comes back (Vig et al. 2020). 1 is a head that carries the difference by itself.",
    ),
    Figure(
        "entropy", "Entropy of attention", entropies,
        "The entropy of a head's attention, mean over the tokens that read: 0 for a head that looks at one token "
        "(Clark et al. 2019). Heads near uniform attention average over the text.",
    ),
    Figure(
        "distance", "Distance of attention", distances,
        "How far a head looks on average, in tokens or patches (Dosovitskiy et al. 2021, figure 7). Small numbers are "
        "local heads, as convolutions are.",
    ),
    Figure(
        "stream", "Residual stream", stream,
        "The norm of the vectors that the layers read and add to: largest, mean and smallest over the tokens. It "
        "grows with depth where norms stand before the sublayers (Xiong et al. 2020).",
    ),
    Figure(
        "sublayers", "What each sublayer adds", sublayers,
        "The share of a sublayer's output in the sum with the stream, and its direction: a cosine below 0 erases what "
        "is there. A share near 0 is a sublayer that hardly matters (Veit et al. 2016).",
    ),
    Figure(
        "factors", "Factors of the residual connections", factors,
        "What training made of ReZero's α (Bachlechner et al. 2020), Admin's ω (Liu et al. 2020) and layer scale's λ "
        "(Touvron et al. 2021): bars are means over the dimensions, lines go from the smallest to the largest.",
    ),
    Figure(
        "positions", "Positions", positions,
        "How the model distinguishes positions: similarity of position vectors (Vaswani et al. 2017; Dosovitskiy et "
        "al. 2021, figure 7), rotation (Su et al. 2021) or bias of the scores over distance (Press et al. 2022; "
        "Raffel et al. 2020). It depends on the model only, not on the input.",
    ),
    Figure(
        "ablation", "Ablation", ablations,
        "By how much the mean loss of a token, row or image grows on held-out rows when a head, a sublayer or a layer "
        "is left out (Michel et al. 2019). Below 0 the model is better without it.",
    ),
    Figure(
        "loss", "Loss by position", position_losses,
        "The mean loss of a token over its position in held-out rows. It falls as far as the model uses what came "
        "before, and rises where it has seen few training texts.",
    ),
)  # fmt: skip


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
    """Return the name of a model without the folders or the user that it belongs to."""
    return Path(os.path.abspath(path)).name


def written(drawing: Drawing, folder: Path) -> Drawing:
    """Write a drawing and its numbers, and return it for the page."""
    (png,) = save(drawing.figure, folder / drawing.name, drawing.header, drawing.rows, endings=(".png",))
    drawing.data = embedded(folder / png)
    return drawing
