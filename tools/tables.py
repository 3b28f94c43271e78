"""The tables in docs/parts.md and docs/deploy.md, which are made of the package's own entries.

`python tools/tables.py` makes them anew; a test says where they are not what the code makes.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from vanillaformer import PRESETS, preset
from vanillaformer.configuration.options import OPTIONS, POSITION_CHOICES, Choice
from vanillaformer.conversion.exports import EXPORTERS, targets
from vanillaformer.modeling.parts.residual import RESIDUALS
from vanillaformer.training.report.card.descriptions import references

DOCS = Path(__file__).parents[1] / "docs"
# Columns that one option has more than the others
COLUMNS: dict[str, tuple[str, Callable[[str], str]]] = {
    "norm_placement": ("needs a final norm", lambda name: "yes" if RESIDUALS[name].needs_final_norm else "no"),
    "position_embedding_type": (
        "longer inputs",
        lambda name: "error past the table" if POSITION_CHOICES[name].has_table else "work",
    ),
}


def short_reference(paper: str) -> str:
    """Return the authors and the year of a BibTeX entry: "Ba et al. 2016"."""
    entry = references()[paper]
    authors, year = (re.search(rf"{name} = {{(.*)}}", entry)[1] for name in ("author", "year"))
    names = [author.split(",")[0].strip("{}") for author in authors.split(" and ")]
    short = names[0] if len(names) == 1 else f"{names[0]} and {names[1]}" if len(names) == 2 else f"{names[0]} et al."
    return f"{short.replace(' and others', ' et al.')} {year}"


def row(option: str, name: str, choice: Choice) -> list[str]:
    """Return the cells of an option's value."""
    fields = ", ".join(f"`{field}`" for field in (*choice.fields, *choice.sizes))
    papers = ", ".join(map(short_reference, choice.papers))
    column = [COLUMNS[option][1](name)] if option in COLUMNS else []
    return [f"`{name}`", choice.words or "none", *column, fields, choice.seen_in, papers]


def option_table(option: str) -> str:
    """Return an option's values, without columns that are empty."""
    column = [COLUMNS[option][0]] if option in COLUMNS else []
    header = ["value", "what it is", *column, "fields that it reads", "seen in", "papers"]
    rows = [row(option, name, choice) for name, choice in OPTIONS[option].items()]
    used = [any(cells) for cells in zip(*rows)]
    return markdown_table([[cell for cell, is_used in zip(cells, used) if is_used] for cells in (header, *rows)])


def targets_table() -> str:
    """Return where the config of each preset can go; a cell without a yes has the first obstacle."""
    rows = [["config", "native architecture", *EXPORTERS]]
    for name in PRESETS:
        found = targets(preset(name))
        natives = ", ".join(f"`{native}`" for native in found.pop("native")) or "none"
        rows.append([f"`{name}`", natives, *("yes" if not reasons else reasons[0] for reasons in found.values())])
    return markdown_table(rows)


def engines_table() -> str:
    """Return what each engine is."""
    rows = [["`--engine`", "runs on", "models", "`--quantization`", "to write", "to run"]]
    for name, exporter in EXPORTERS.items():
        info = exporter.info
        extras = [f"`pip install 'vanillaformer[{extra.name}]'`" for extra in (info.writer, info.runner)]
        quantizations = ", ".join(f"`{quantization}`" for quantization in exporter.quantizations)
        rows.append([f"`{name}`", info.runtime, info.models, quantizations, *extras])
    return markdown_table(rows)


def markdown_table(rows: list[list[str]]) -> str:
    """Return rows in Markdown, the first as the header."""
    cells = [[cell.replace("|", "\\|") for cell in row] for row in (rows[0], ["---"] * len(rows[0]), *rows[1:])]
    return "".join(f"| {' | '.join(row)} |\n" for row in cells)


# Page, name of the table and what makes it
TABLES: dict[str, tuple[str, Callable[[], str]]] = {
    **{option: ("parts.md", lambda option=option: option_table(option)) for option in OPTIONS},
    "engines": ("deploy.md", engines_table),
    "configs": ("deploy.md", targets_table),
}


def split(name: str) -> tuple[str, str, str]:
    """Return the page before a table, the table, and what follows."""
    text = (DOCS / TABLES[name][0]).read_text(encoding="utf-8")
    begin, end = f"<!-- {name}: made by tools/tables.py -->\n", f"<!-- end of {name} -->"
    first, last = text.index(begin) + len(begin), text.index(end)
    return text[:first], text[first:last], text[last:]


def outdated() -> Iterator[str]:
    """Yield the names of tables that are not what the code makes."""
    for name, (_, make) in TABLES.items():
        if split(name)[1] != make():
            yield name


def write() -> None:
    """Make all tables anew."""
    for name, (page, make) in TABLES.items():
        before, _, after = split(name)
        (DOCS / page).write_text(before + make() + after, encoding="utf-8")


if __name__ == "__main__":
    write()
