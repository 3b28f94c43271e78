"""What Sphinx has no setting for: formulas as MathML, Markdown in docstrings, search for Chinese words."""

import re
import sys
from dataclasses import fields, is_dataclass
from inspect import get_annotations
from pathlib import Path

import sphinx.search
from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from docutils.utils.math.unichar2tex import uni2tex_table
from sphinx.search.en import SearchEnglish
from sphinx.util.logging import getLogger

ROOT = str(Path(__file__).resolve().parents[1])
# Commands of LaTeX that docutils does not know, and what it knows instead
KNOWN_COMMANDS = {"dots": "ldots", "tfrac": "frac", "texttt": "mathtt", "textbf": "mathbf"}


class Mixed(SearchEnglish):
    """English words, and each pair of neighboring Chinese characters."""

    js_splitter_code = r"""
function splitQuery(query) {
  const runs = query.match(/\p{Script=Han}+|(?:(?!\p{Script=Han})[\p{L}\p{N}_])+/gu) || [];
  return runs.flatMap((run) => {
    if (!/^\p{Script=Han}{3,}$/u.test(run)) return [run];
    return Array.from(run).slice(1).map((character, place) => run[place] + character);
  });
}
"""

    def split(self, input: str) -> list[str]:
        """Return the words of a text."""
        words = []
        for word in re.findall(r"[一-鿿]+|[^\W一-鿿]+", input):
            pairs = [word[place : place + 2] for place in range(len(word) - 1)] if "一" <= word[0] <= "鿿" else []
            words += pairs or [word]
        return words


def read_docstring(app, what, name, object, options, lines: list[str]) -> None:
    """Write what docstrings have of Markdown as reStructuredText, and add the help of a class's options."""
    text = "" if lines[:1] and lines[0].startswith("Alias for field number") else "\n".join(lines)
    text = re.sub(r":\n\n(?=    )", "::\n\n", text)
    text = re.sub(r"^\|.*\n\| ?-.*\n(?:\|.*\n)+", list_table, text, flags=re.MULTILINE)
    lines[:] = text.split("\n")
    if what == "class" and is_dataclass(object):
        own = get_annotations(object)
        helps = [(field.name, field.metadata.get("help")) for field in fields(object)]
        lines += ["", *(f":param {name}: {help}" for name, help in helps if help and name in own)]


def skip_paths(app, what, name, object, skip, options) -> bool | None:
    """Leave out constants with paths of the machine that builds the site."""
    constant = isinstance(object, str | Path | tuple | list | dict)
    return True if constant and any(folder in repr(object) for folder in (ROOT, sys.prefix)) else None


def list_table(table: re.Match) -> str:
    """Return a Markdown table as a list of rows."""
    first, _, *rest = table[0].splitlines()
    lines = [".. list-table::", "   :header-rows: 1", ""]
    for row in (first, *rest):
        cells = re.split(r" *\| *", row.strip("| "))
        lines += [f"   {'* ' if not place else '  '}- {cell}" for place, cell in enumerate(cells)]
    return "\n".join([*lines, "", ""])


def write_math(writer, node: nodes.Element) -> None:
    """Write a formula as MathML, which browsers draw without a script."""
    block, formula = isinstance(node, nodes.math_block), node.astext().translate(uni2tex_table)
    formula = re.sub(rf"\\({'|'.join(KNOWN_COMMANDS)})\b", lambda command: f"\\{KNOWN_COMMANDS[command[1]]}", formula)
    formula = re.sub(r"\\[Bb]igg?[lrm]?\b", "", formula)
    try:
        formula = str(tex2mathml(formula, as_block=block))
    except MathError as error:
        getLogger(__name__).warning("%s in the formula %s", error, node.astext(), location=node)
    writer.body.append(f'<div class="math">{formula}</div>' if block else formula)
    raise nodes.SkipNode


def set_language(app, page: str, template: str, context: dict, doctree) -> None:
    """Say that a page is Chinese, so that browsers choose the fonts of its characters."""
    if re.search(r"(/zh/|\.zh$)", page):
        context["language"] = "zh-CN"


def setup(app) -> dict:
    """Tell Sphinx of all this."""
    sphinx.search.languages["mixed"] = Mixed
    app.add_html_math_renderer("mathml", (write_math, None), (write_math, None))
    app.connect("autodoc-process-docstring", read_docstring, priority=100)  # before napoleon
    app.connect("autodoc-skip-member", skip_paths)
    app.connect("html-page-context", set_language)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
