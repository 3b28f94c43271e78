"""The tables of docs/parts.md, which are made of the entries in `configuration/options.py`.

`python tests/test_parts_page.py --write` makes them anew.
"""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from vanillaformer.configuration.options import OPTIONS, POSITION_CHOICES, Choice
from vanillaformer.modeling.parts.residual import RESIDUALS
from vanillaformer.training.report.card.citations import references

PAGE = Path(__file__).parents[1] / "docs" / "parts.md"
# Columns that one option has more than the others
COLUMNS: dict[str, tuple[str, Callable[[str], str]]] = {
    "norm_placement": ("needs a final norm", lambda name: "yes" if RESIDUALS[name].needs_final_norm else "no"),
    "position_embedding_type": (
        "longer inputs",
        lambda name: "error past the table" if POSITION_CHOICES[name].has_table else "work",
    ),
}


def short_reference(paper: str) -> str:
    """The authors and the year of a BibTeX entry: "Ba et al. 2016"."""
    entry = references()[paper]
    authors, year = (re.search(rf"{name} = {{(.*)}}", entry)[1] for name in ("author", "year"))
    names = [author.split(",")[0].strip("{}") for author in authors.split(" and ")]
    short = names[0] if len(names) == 1 else f"{names[0]} and {names[1]}" if len(names) == 2 else f"{names[0]} et al."
    return f"{short.replace(' and others', ' et al.')} {year}"


def row(option: str, name: str, choice: Choice) -> list[str]:
    fields = ", ".join(f"`{field}`" for field in (*choice.fields, *choice.sizes))
    papers = ", ".join(map(short_reference, choice.papers))
    column = [COLUMNS[option][1](name)] if option in COLUMNS else []
    return [f"`{name}`", choice.words or "none", *column, fields, choice.seen_in, papers]


def table(option: str) -> str:
    """An option's values in Markdown, without columns that are empty."""
    column = [COLUMNS[option][0]] if option in COLUMNS else []
    header = ["value", "what it is", *column, "fields that it reads", "seen in", "papers"]
    rows = [row(option, name, choice) for name, choice in OPTIONS[option].items()]
    used = [any(cells) for cells in zip(*rows)]
    lines = [
        [cell for cell, is_used in zip(cells, used) if is_used] for cells in (header, ["---"] * len(header), *rows)
    ]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def split(text: str, option: str) -> tuple[str, str, str]:
    """The page before a table, the table, and what follows."""
    begin, end = f"<!-- {option}: made by tests/test_parts_page.py --write -->\n", f"<!-- end of {option} -->"
    first, last = text.index(begin) + len(begin), text.index(end)
    return text[:first], text[first:last], text[last:]


@pytest.mark.parametrize("option", OPTIONS)
def test_the_page_has_the_table_of_every_option(option):
    assert split(PAGE.read_text(encoding="utf-8"), option)[1] == table(option), "run this file with --write"


if __name__ == "__main__" and "--write" in sys.argv:
    page = PAGE.read_text(encoding="utf-8")
    for option in OPTIONS:
        before, _, after = split(page, option)
        page = before + table(option) + after
    PAGE.write_text(page, encoding="utf-8")
