"""`make docs` writes a page for every public module."""

import runpy

from layout import ROOT, sources


def test_every_public_module_gets_a_page():
    modules = list(runpy.run_path(str(ROOT / "docs/api/make.py"))["public_modules"]())
    public = [name for name in sources() if not any(part.startswith("_") for part in name.split("."))]
    assert sorted(modules) == sorted(public)
