"""Branches that a config decides: the one that is taken remains, and what is not known stays unchanged."""

import pytest

from vanillaformer.hub.definitions import Source
from vanillaformer.hub.folding import Known, folded

CONFIG = Known(kind="plain", rate=0.0, window=None)
SCOPE = {"config": CONFIG, "self": Known(config=CONFIG), "KINDS": {"plain": Known(is_gated=False)}}
SCOPE |= {"FUNCTIONS": {"packed"}, "Known": Known, "CLASSES": {"plain": Known}, "OTHERS": {"plain": Source}}
# What stands in the source, and what remains of it
FOLDS = {
    'x = 1 if config.kind == "plain" else 2': "x = 1",
    "x = f(a) if KINDS[config.kind].is_gated else g(b)": "x = g(b)",
    "x = config.rate and y": "x = 0.0", "x = config.window is None and y": "x = y", "x = config.rate or y": "x = y",
    "x = KINDS[config.kind].is_gated": "x = False", "x = CLASSES[config.kind](y)": "x = Known(y)",
    "a()\nacceleration.prepare(x)\nb()": "a()\nb()",
    "x = acceleration.attend(f, y, mask=z)": "x = f(y, mask=z)",
    "if (x := packed(y)) is not None:\n    a(x)\nb()": "b()",
    "if acceleration.loss(x) is None:\n    a()\nb()": "a()\nb()",
    "if config.rate:\n    a()\nb()": "b()",
    "if not config.rate:\n    a()  # why\nb()": "a()  # why\nb()",
    "if self.config.window is None:\n    a()\nelse:\n    b()": "a()",
    "if y:\n    a()\nelif config.rate:\n    b()\nelse:\n    c()": "if y:\n    a()\nelse:\n    c()",
    "if y:\n    a()\nelif not config.rate:\n    b()\nelse:\n    c()": "if y:\n    a()\nelse:\n    b()",
    "if config.rate:\n    a()\nelif y:\n    b()": "if y:\n    b()",
    "def f():\n    if config.window is None:\n        return 1\n    return 2": "def f():\n    return 1",
    "def f():\n    if config.rate:\n        a()": "def f():\n    pass",
    "if y and config.rate:\n    a()\nb()": "b()",
}  # fmt: skip
UNDECIDED = (
    "x = 1 if config.other else 2", "x = 1 if y.kind else 2", "if f(config.kind):\n    a()",
    "if y and config.window is None:\n    a()", "x = KINDS[y].is_gated", "for kind in KINDS:\n    a(kind)",
    "x = OTHERS[config.kind]",
)  # fmt: skip


@pytest.mark.parametrize("text", FOLDS)
def test_the_branch_that_is_taken_remains(text):
    assert folded(Source(text + "\n"), SCOPE).text.decode() == FOLDS[text] + "\n"


@pytest.mark.parametrize("text", UNDECIDED)
def test_what_is_not_known_stays(text):
    assert folded(Source(text), SCOPE).text.decode() == text
