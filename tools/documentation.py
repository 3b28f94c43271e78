"""Build the site of the documentation: `make docs`, which calls `python tools/documentation.py build/docs`.

The pages are laid out in a folder as they are in the repository, so that a relative link on GitHub is one on the site
too; the exceptions are in `place`. Sphinx reads the pages there with docs/conf.py, and `broken_links` checks the HTML
that it wrote.
"""

import importlib
import inspect
import os
import pkgutil
import re
import shutil
import sys
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote, urlsplit

import vanillaformer

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "docs/notebooks"
EXECUTED = ROOT / "build/notebooks"
# The navigation: the pages below a page, by headings
BELOW = {
    "README.md": {
        "Guide": "docs/tutorial docs/training docs/parts docs/scale docs/comparing docs/exploring docs/deploy "
        "docs/hub docs/ecosystem docs/faq",
        "Notebooks": "docs/notebooks/*",
        "Findings": "docs/study docs/experiments",
        "Reference": "API<api/vanillaformer> genindex",
        "Project": "docs/README docs/architecture CONTRIBUTING tests/README tools/contract/README scripts/recipes "
        "scripts/plans SECURITY CHANGELOG",
        "中文": "介绍<README.zh> docs/notebooks/zh/*",
    },
    "docs/study.md": {"Scores": "study/*"},
}
SOURCES = {".md", ".ipynb", ".rst"}
LINK = re.compile(r"""((?<=\]\()[^()#\s]+|(?<=src=")[^"#]+|(?<=src=\\")[^"#\\]+)""")


def pages() -> list[Path]:
    """Return the Markdown files that are pages of the site."""
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return sorted([*found, ROOT / "tests/README.md", ROOT / "tools/contract/README.md"])


def public_modules() -> list[str]:
    """Return the names of all modules, also of those that a package's `__all__` leaves out."""
    found = pkgutil.walk_packages(vanillaformer.__path__, f"{vanillaformer.__name__}.")
    public = [module.name for module in found if not any(part.startswith("_") for part in module.name.split("."))]
    return [vanillaformer.__name__, *public]


def executed(notebook: Path) -> Path:
    """Return the file that tools/notebooks.py writes of a notebook."""
    return EXECUTED / notebook.relative_to(NOTEBOOKS).with_suffix(".ipynb")


def place(path: Path, site: Path) -> Path:
    """Return where a file or a folder of the repository is among the pages."""
    name = path.relative_to(ROOT)
    if path == ROOT / "README.md":
        return site / "index.md"
    if path.is_relative_to(NOTEBOOKS) and executed(path).exists():
        return site / name.with_suffix(".ipynb")
    if (api := site / "api" / ".".join(["vanillaformer", *name.with_suffix(".rst").parts])).exists():
        return api
    return site / f"{name}.md" if path.is_dir() else site / name


def moved(link: str, page: Path, site: Path) -> str:
    """Return a page's link as it is on the site, and put the file that it names there."""
    path = Path(os.path.normpath(page.parent / link))
    if "://" in link or not path.exists() or not path.is_relative_to(ROOT):
        return link
    target = place(path, site)
    if path.is_dir():
        write(target, listing(path))
    elif target.suffix not in SOURCES:
        write(target, path.read_bytes())
    return os.path.relpath(target, place(page, site).parent)


def lay_out(site: Path, modules: list[str]) -> None:
    """Write what Sphinx reads: a page for each module, the pages of the repository, and the files that they link."""
    for module in modules:
        write(site / f"api/{module}.rst", api_page(module, modules))
    for page in pages():
        target = place(page, site)
        source = executed(page) if target.suffix == ".ipynb" else page
        parts = LINK.split(source.read_text(encoding="utf-8"))
        parts[1::2] = [moved(link, page, site) for link in parts[1::2]]
        write(target, "".join(parts) + navigation(page))


def write(path: Path, content: str | bytes) -> None:
    """Write a file and the folders that it is in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def listing(folder: Path) -> str:
    """Return a page with the files of a folder."""
    text = f"# {folder.relative_to(ROOT).as_posix()}\n"
    for path in sorted(folder.glob("*.yaml")):
        text += f"\n## {path.name}\n\n```yaml\n{path.read_text(encoding='utf-8')}```\n"
    return text


def navigation(page: Path) -> str:
    """Return the pages below a page as Sphinx reads them after its text; they are shown beside every page."""
    text = ""
    for caption, names in BELOW.get(page.relative_to(ROOT).as_posix(), {}).items():
        listed = "\n".join(names.split())
        text += f"\n```{{toctree}}\n:hidden:\n:glob:\n:caption: {caption}\n\n{listed}\n```\n"
    return text


def api_page(name: str, modules: list[str]) -> str:
    """Return the page of a module: where it is, what it defines, what it exports from others, the modules in it."""
    module = importlib.import_module(name)
    parts = name.split(".")
    above = [".".join(parts[:count]) for count in range(1, len(parts))]
    inside = [each for each in modules if each.rpartition(".")[0] == name]
    packages = [each for each in inside if any(other.startswith(f"{each}.") for other in modules)]
    # Only packages are in the navigation beside every page, which would be ten times as large otherwise.
    lines = [] if inside else [":orphan:", ""]
    lines += [name, "=" * len(name), "", " / ".join(f":doc:`{each}`" for each in above), "", f".. automodule:: {name}"]
    if exports := list(reexported(module)):
        lines += ["", ".. rubric:: Exports", "", *exports]
    if inside:
        lines += ["", ".. rubric:: Modules", "", *(f"- :doc:`{each}`: {summary(each)}" for each in inside)]
        lines += ["", ".. toctree::", "   :hidden:", ""]
        lines += [f"   {each.rpartition('.')[2]} <{each}>" for each in packages]
    return "\n".join(lines) + "\n"


def reexported(module: ModuleType) -> Iterator[str]:
    """Yield a line for each class and function that a package's `__all__` has from its modules."""
    for name in getattr(module, "__all__", []):
        value = getattr(module, name)
        if (inspect.isclass(value) or inspect.isfunction(value)) and value.__module__ != module.__name__:
            sentence = (inspect.getdoc(value) or "").partition("\n")[0]
            yield f"- :py:obj:`{name} <{value.__module__}.{value.__qualname__}>`: {sentence}"


def summary(module: str) -> str:
    """Return the first line of a module's docstring."""
    return (importlib.import_module(module).__doc__ or "").partition("\n")[0]


class Links(HTMLParser):
    """The ids of a page, what it links, and what it loads."""

    def __init__(self, page: Path):
        super().__init__()
        self.ids: set[str] = {""}
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        of_tag = dict(attrs)
        self.ids.add(of_tag.get("id") or "")
        links = [of_tag[name] or "" for name in ("href", "src") if name in of_tag]
        (self.links if tag == "a" else self.loaded).extend(links)


def broken_links(folder: Path) -> Iterator[str]:
    """Yield what pages link that is not there, and what they would load from elsewhere; other sites are not asked."""
    found = {page.resolve(): Links(page) for page in sorted(folder.rglob("*.html"))}
    for page, parsed in found.items():
        name = page.relative_to(folder.resolve())
        yield from (f"{name} loads {link}" for link in parsed.loaded if re.match(r"(\w+:)?//", link))
        for link in {*parsed.links, *parsed.loaded}:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if parts.scheme not in {"", "http", "https", "mailto", "data"}:
                    yield f"{name} has the address {link}"
                continue
            target = Path(os.path.normpath(page.parent / unquote(parts.path))) if parts.path else page
            anchors = found[target].ids if target in found else {""}
            if not target.is_file() or unquote(parts.fragment) not in anchors:
                yield f"{name} links {link}"


def build(site: Path, folder: Path, modules: list[str], *options: str) -> list[str]:
    """Build the site, warnings being errors, and return what is wrong with its links."""
    from sphinx.cmd.build import build_main

    for old in (site, folder):
        shutil.rmtree(old, ignore_errors=True)
    lay_out(site, modules)
    settings = ["-c", str(ROOT / "docs"), "-d", str(site / ".doctrees")]
    if build_main(["-q", "-W", "--keep-going", *options, *settings, str(site), str(folder)]):
        sys.exit("Sphinx has warnings")
    return sorted(broken_links(folder))


def main(folder: Path) -> None:
    """Build the site with all modules, and stop if a link is broken."""
    begin = time.perf_counter()
    if broken := build(ROOT / "build/site", folder, public_modules(), "-j", "auto"):
        sys.exit("\n".join(broken))
    count = len(list(folder.rglob("*.html")))
    print(f"{count} pages in {time.perf_counter() - begin:.0f} s; the first is {folder / 'index.html'}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
