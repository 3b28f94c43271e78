"""Files and functions stay small enough to read in one go, and no forward compares option names."""

import ast

import pytest
from layout import functions, sources

FILE_LINES = 400
FUNCTION_LINES = 60
FORWARD_CODE_LINES = 50

# What runs in every forward pass
RUN_EVERY_TIME = (
    "forward", "self_attend", "cross_attend", "feed_forward", "before", "after", "embed", "position_embeddings",
    "rotate_all", "rotate_part", "bias", "bucket", "masks", "run_layers", "position_biases", "query_key_value",
    "loss_and_logits",
)  # fmt: skip


def lines_of(node: ast.AST) -> int:
    return node.end_lineno - node.lineno + 1


def code_lines(function: ast.FunctionDef) -> int:
    """Lines of a function's body without its docstring and comments."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return len(ast.unparse(body).splitlines()) if body else 0


@pytest.mark.parametrize("module", sources())
def test_nothing_is_longer_than_agreed(module):
    assert len(sources()[module].read_text("utf-8").splitlines()) <= FILE_LINES
    for function in functions(module):
        assert lines_of(function) <= FUNCTION_LINES, function.name
        assert function.name != "forward" or code_lines(function) <= FORWARD_CODE_LINES, function.lineno


@pytest.mark.parametrize("module", [name for name in sources() if name.startswith("vanillaformer.modeling.")])
def test_no_forward_compares_an_option(module):
    """The choice is made once, in `__init__`: a forward compares nothing with a string."""
    for function in functions(module):
        for node in ast.walk(function) if function.name in RUN_EVERY_TIME else ():
            if isinstance(node, ast.Compare):
                compared = [child.value for child in ast.walk(node) if isinstance(child, ast.Constant)]
                strings = [value for value in compared if isinstance(value, str)]
                assert not strings, f"{function.name} compares with {strings}"
            assert not isinstance(node, ast.Match), f"{function.name} matches on a value"


def test_functions_are_short_as_a_rule():
    lengths = sorted(lines_of(function) for module in sources() for function in functions(module))
    assert lengths[len(lengths) // 2] <= 15, "the median function has grown"
