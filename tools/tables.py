"""The tables in docs/parts.md and docs/deploy.md, and that of the programs' options in console/options.json.

`python tools/tables.py` makes them again; a test says where they are not what the code makes.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import patch

import vanillaformer_cli
from vanillaformer import PRESETS, preset
from vanillaformer.configuration.options import OPTIONS, POSITION_CHOICES, Choice
from vanillaformer.console.help_page import HelpPage
from vanillaformer.conversion.exports import EXPORTERS, targets
from vanillaformer.modeling.parts.residual import RESIDUALS
from vanillaformer.training.report.card.writing import references

DOCS = Path(__file__).parents[1] / "docs"
OPTIONS_FILE = DOCS.parent / "console" / "options.json"
ACTIONS = {
    "StoreTrue": "store_true",
    "StoreFalse": "store_false",
    "Append": "append",
    "Extend": "extend",
    "Help": "help",
}
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
    """Return where the config of each preset can go; a cell other than yes has the first obstacle."""
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


def option_entry(action: argparse.Action, described: tuple[str, str] | None) -> list[Any]:
    """Return an option's names, its arguments of `add_argument` without the type, and its group and help text."""
    kind = type(action).__name__.removeprefix("_").removesuffix("Action")
    words = action.option_strings or [action.dest]
    how: dict[str, Any] = {} if kind == "Store" else {"action": ACTIONS[kind]}
    if kind in ("Store", "Append", "Extend"):
        names = ("metavar", "nargs", "const", "choices", "required")[: None if action.option_strings else 3]
        how |= {name: value for name in names if (value := getattr(action, name))}
    if "choices" in how:
        how["choices"] = list(how["choices"])
    if action.option_strings and action.dest != words[0].lstrip("-"):
        how["dest"] = action.dest
    if described is not None and action.default is not None and kind != "Help":
        how["default"] = str(action.default) if isinstance(action.default, Path) else action.default
    return [words, how, described]


def program_entry(program: str) -> dict[str, Any]:
    """Return what `--help` of a program prints, and its options."""
    actions: list[argparse.Action] = []
    printed: list[Any] = []
    add = HelpPage.add

    def keep(page: HelpPage, action: argparse.Action) -> None:
        actions.append(action)
        add(page, action)

    def text(*words: Any) -> str:
        printed.append(words)
        return ""

    main = import_module(f"vanillaformer.scripts.{program.replace('-', '_')}").main
    patches = patch.object(HelpPage, "add", keep), patch.object(HelpPage, "text", text)
    with patches[0], patches[1], patch.object(sys, "argv", [program]), suppress(SystemExit):
        main(["--help"])
    page, usage, description, *_ = printed[0]
    return {
        "usage": usage.removeprefix(f"usage: {program} ").strip(),
        "description": description,
        "notes": page.notes,
        "names": page.names,
        "options": [option_entry(action, page.described.get(action.dest)) for action in actions],
    }


def options_table() -> str:
    """Return the options of all programs as the command `vanillaformer` reads them before it imports a library."""
    programs = {name: program_entry(name) for name in vanillaformer_cli.PROGRAMS if name != "demo"}
    lines: dict[str, int] = {}  # each option once, with its number
    for entry in programs.values():
        texts = [json.dumps(option, ensure_ascii=False) for option in entry["options"]]
        entry["options"] = [lines.setdefault(text, len(lines)) for text in texts]
    rest = [f'"{name}": {json.dumps(entry, ensure_ascii=False)}' for name, entry in programs.items()]
    options, rest = ",\n".join(lines), ",\n".join(rest)
    return f'{{"transformers": "{version("transformers")}",\n"options": [\n{options}],\n"programs": {{\n{rest}}}}}\n'


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
    if OPTIONS_FILE.read_text(encoding="utf-8") != options_table():
        yield OPTIONS_FILE.name


def write() -> None:
    """Make all tables again."""
    for name, (page, make) in TABLES.items():
        before, _, after = split(name)
        (DOCS / page).write_text(before + make() + after, encoding="utf-8")
    OPTIONS_FILE.write_text(options_table(), encoding="utf-8")


if __name__ == "__main__":
    write()
