"""`make docs`: every public module and page is on the site, Sphinx has no warnings, and no link is broken."""

import ast
import re
import runpy
import sys
from html import unescape

import pytest
from layout import ROOT, sources, tree

SITE = runpy.run_path(str(ROOT / "tools/documentation.py"))
# For a site that is built in seconds
MODULES = [
    *("vanillaformer", "vanillaformer.modeling", "vanillaformer.modeling.parts"),
    *("vanillaformer.modeling.parts.residual", "vanillaformer.acceleration", "vanillaformer.acceleration.plug_in"),
    *("vanillaformer.configuration", "vanillaformer.configuration.block", "vanillaformer.data"),
    *("vanillaformer.training", "vanillaformer.training.trainer", "vanillaformer.training.trainer.losses"),
    *("vanillaformer.comparison", "vanillaformer.comparison.running", "vanillaformer.data.files"),
]


def test_every_public_module_gets_a_page():
    public = [name for name in sources() if not any(part.startswith("_") for part in name.split("."))]
    assert sorted(SITE["public_modules"]()) == sorted(public)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    assert SITE["build"](folder / "pages", folder / "site", MODULES) == []
    return folder / "site"


def text_of(page):
    """Return a page's text without code, which says what was not understood as formula, table or link."""
    article = re.search(r"<article.*</article>", page.read_text(encoding="utf-8"), re.DOTALL)[0]
    return unescape(re.sub(r"<[^>]+>", "", re.sub(r"<(code|pre|math|dt)\b.*?</\1>", "", article, flags=re.DOTALL)))


def test_every_page_and_module_is_on_the_site(site):
    expected = {page.relative_to(ROOT).with_suffix(".html").as_posix() for page in SITE["pages"]()} - {"README.html"}
    expected |= {f"api/{module}.html" for module in MODULES} | {"index.html", "search.html", "scripts/recipes.html"}
    assert expected <= {page.relative_to(site).as_posix() for page in site.rglob("*.html")}
    assert (site / ".nojekyll").exists()
    text = "".join(page.read_text(encoding="utf-8") for page in site.rglob("*.html"))
    assert not any(folder in text for folder in (str(ROOT), sys.prefix, str(site)))


def test_formulas_and_tables_are_rendered(site):
    for page in site.rglob("*.html"):
        if "_modules" not in page.parts and page.name not in {"genindex.html", "search.html", "py-modindex.html"}:
            assert not re.search(r"\$[^$]+\$|^ *\|.*\||\*\*\w|`", text_of(page), re.MULTILINE), page
    table = (site / "api/vanillaformer.acceleration.plug_in.html").read_text(encoding="utf-8")
    assert table.count("<tr") == 8
    assert "minimum share of gold inputs" in text_of(site / "api/vanillaformer.training.trainer.losses.html")
    assert "<math" in (site / "docs/notebooks/1_attention.html").read_text(encoding="utf-8")
    assert '<html class="no-js" lang="zh-CN"' in (site / "README.zh.html").read_text(encoding="utf-8")


def test_broken_links_are_found(tmp_path):
    (tmp_path / "a.html").write_text('<a href="b.html#there">1</a><a href="#here">2</a><img id="here" src="a.png">')
    (tmp_path / "b.html").write_text('<a href="a.html#here">3</a><a href="c.html">4</a><script src="//cdn/x.js">')
    found = ["a.html links a.png", "a.html links b.html#there", "b.html links c.html", "b.html loads //cdn/x.js"]
    assert sorted(SITE["broken_links"](tmp_path)) == found


# Said by Python, argparse and transformers
OF_OTHERS = ("invalid continuation byte", "unrecognized arguments", "Please pass the argument")
VARIABLE = r"'[^']*'|\.\.\.|\d[\d.]*|[():;,=?]|--\S+|\S+_\S+|\S+\.json|\bVanilla\w+|\b(?:gguf|marian|finished)\b"


def test_messages_in_the_faq_are_those_of_the_product():
    nodes = (node for name in sources() for node in ast.walk(tree(name)))
    texts = [str(node.value) for node in nodes if isinstance(node, ast.Constant)]
    product = " ".join("\n".join(texts).replace("`", "").split())
    page = (ROOT / "docs/faq.md").read_text(encoding="utf-8")
    messages = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    assert len(messages) > 15
    for message in messages:  # its words between values, options and fields, without single ones
        parts = [part.strip() for part in re.split(VARIABLE, message)]
        lost = [part for part in parts if " " in part and part not in product and not part.startswith(OF_OTHERS)]
        assert not lost, message
