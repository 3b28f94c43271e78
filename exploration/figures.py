"""`FIGURES` is the list of figures.

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

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .attention import attention_maps
from .examples import Example
from .pictures import Drawing, NotApplicable


@dataclass(frozen=True)
class Figure:
    """A figure in the list.

    Attributes:
        name: Its name for `--figures`.
        title: Its heading.
        explanation: Two sentences on what it shows, with the paper.
        function: Draws it; raises `NotApplicable`.
    """

    name: str
    title: str
    explanation: str
    function: Callable[[Example], list[Drawing]]


FIGURES: tuple[Figure, ...] = (
    Figure(
        "attention",
        "Attention",
        "Each row is a token that reads, each column one that is read, and every row sums to 1 (Vaswani et al. 2017). "
        "All maps have one scale of color.",
        attention_maps,
    ),
)


def chosen(names: Sequence[str] | None) -> list[Figure]:
    """Return the figures of these names, by default all.

    Raises:
        ValueError: There is no figure of a name.
    """
    table = {figure.name: figure for figure in FIGURES}
    unknown = [name for name in names or () if name not in table]
    if unknown:
        raise ValueError(f"--figures {unknown[0]}: the figures are {', '.join(table)}")
    return [table[name] for name in names or table]


def draw_all(
    example: Example, names: Sequence[str] | None = None
) -> tuple[list[tuple[Figure, list[Drawing]]], dict[str, str]]:
    """Return the figures with their drawings, and the names of those that do not apply with the reasons.

    Raises:
        ValueError: There is no figure of a name.
    """
    drawn, missing = [], {}
    for figure in chosen(names):
        try:
            drawn.append((figure, figure.function(example)))
        except NotApplicable as reason:
            missing[figure.name] = str(reason)
    return drawn, missing
