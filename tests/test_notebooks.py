"""The notebooks run, and say the same in both languages."""

import ast
import asyncio
import os
import re
import runpy

import jupytext
import pytest
from IPython.core.inputtransformer2 import TransformerManager
from layout import ROOT

FOLDER = ROOT / "docs" / "notebooks"
ENGLISH = sorted(FOLDER.glob("*.md"))
LONGEST_CELL = 20
SHORT = {"1_attention", "6_parts"}


def code(cell) -> str:
    """Return a code cell's meaning, without comments and docstrings."""
    tree = ast.parse(TransformerManager().transform_cell(cell.source))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
            del node.body[0]
    return ast.dump(tree)


def test_every_notebook_is_in_both_languages():
    assert [path.name for path in ENGLISH] == sorted(path.name for path in FOLDER.glob("zh/*.md"))


@pytest.mark.parametrize("path", ENGLISH, ids=lambda path: path.stem)
def test_the_languages_have_the_same_cells(path):
    english, chinese = (jupytext.read(each).cells for each in (path, FOLDER / "zh" / path.name))
    assert [cell.cell_type for cell in english] == [cell.cell_type for cell in chinese]
    for ours, theirs in zip(english, chinese):
        if ours.cell_type == "code":
            assert code(ours) == code(theirs)
            assert len(ours.source.splitlines()) <= LONGEST_CELL
        else:
            assert re.search("[一-鿿]", theirs.source) or theirs.source == ours.source, theirs.source


@pytest.mark.parametrize(
    "path", [*ENGLISH, *FOLDER.glob("zh/*.md")], ids=lambda path: f"{path.parent.name}-{path.stem}"
)
def test_links_lead_to_files_and_blocks_are_cells(path):
    text = path.read_text("utf-8")
    assert set(re.findall(r"^ *```(\S+)", text, re.M)) <= {"python"}, "other blocks become cells of another language"
    cells = [cell.source for cell in jupytext.read(path).cells if cell.cell_type == "markdown"]
    links = re.findall(r"\]\(([^)#]+)", "\n".join(cells))
    assert not [link for link in links if "://" not in link and not (path.parent / link).exists()]


@pytest.mark.parametrize("path", ENGLISH, ids=lambda path: path.stem)
def test_what_is_imported_is_there(path):
    """Of this package; the cells themselves run only with TEST_NOTEBOOKS=all."""
    cells = [cell.source for cell in jupytext.read(path).cells if cell.cell_type == "code"]
    code = "\n".join(line for cell in cells for line in cell.splitlines() if not line.startswith("%"))
    imports = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ImportFrom)]
    ours = [node for node in imports if str(node.module).startswith("vanillaformer")]
    assert ours
    for node in ours:
        exec(compile(ast.Module([node], []), str(path), "exec"), {})


@pytest.mark.parametrize("path", ENGLISH, ids=lambda path: path.stem)
def test_the_notebook_runs(path):
    """Those that train for long by `make test-notebooks` and `make docs` alone."""
    if path.stem not in SHORT and os.environ.get("TEST_NOTEBOOKS") != "all":
        pytest.skip("it runs with TEST_NOTEBOOKS=all")
    asyncio.run(runpy.run_path(str(ROOT / "tools" / "notebooks.py"))["execute"](path))
