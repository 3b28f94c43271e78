"""Branches of code that a config decides: the one that is taken remains, with its source unchanged."""

import ast
import copy
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from .definitions import Edit, Source

# An expression of only these nodes has one value for a config
DECIDABLE = (
    ast.expr_context, ast.Name, ast.Attribute, ast.Subscript, ast.Constant, ast.Tuple,
    ast.Compare, ast.cmpop, ast.BoolOp, ast.boolop, ast.UnaryOp, ast.unaryop,
)  # fmt: skip

# The hooks of `modeling/acceleration.py`, which the saved code of a model does not need: they do nothing, or call
# their first argument with the others
HOOKS = {"acceleration.prepare", "acceleration.packed_masks", "acceleration.loss"}
CALLING_HOOKS = ("acceleration.attend", "acceleration.cross_attend")


class Undecided(Exception):
    """An expression depends on unknown values."""


class Known:
    """An object of which some attributes are known."""

    def __init__(self, **attributes: Any):
        self.__dict__.update(attributes)

    def __getattr__(self, name: str) -> Any:
        raise Undecided(name)


class WithoutCalls(ast.NodeTransformer):
    """Replaces calls of some functions, and named expressions of their results, by `NOTHING`."""

    def __init__(self, functions: set[str]):
        self.functions = functions

    def visit_Call(self, node: ast.Call) -> ast.AST:
        return ast.Name("NOTHING", ast.Load()) if ast.unparse(node.func) in self.functions else node

    def visit_NamedExpr(self, node: ast.NamedExpr) -> ast.AST:
        return value if isinstance(value := self.visit(node.value), ast.Name) else node


def folded(source: Source, scope: dict[str, Any]) -> Source:
    """Return a text without the branches that known values, and constants in capitals, rule out.

    `FUNCTIONS` in the scope may name functions that return `None`, besides `HOOKS`.
    """
    scope = {**scope, "NOTHING": None, "FUNCTIONS": HOOKS | scope.get("FUNCTIONS", set())}
    while (edit := next(folds(source, scope), None)) is not None:
        source = Source(source.edited([edit]))
    return source


def value_of(node: ast.AST, scope: dict[str, Any]) -> Any:
    """Return the value of an expression (of `and` and `or`, their truth); raise `Undecided` if it is unknown."""
    if isinstance(node, ast.BoolOp):
        return truth(node, scope)
    if any(isinstance(part, ast.Call) for part in ast.walk(node)):
        node = WithoutCalls(scope["FUNCTIONS"]).visit(copy.deepcopy(node))
    names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    known = all(name in scope and (name in ("config", "self") or name.isupper()) for name in names)
    if not (names and known and all(isinstance(part, DECIDABLE) for part in ast.walk(node))):
        raise Undecided
    return eval(ast.unparse(node), {}, scope)


def truth(node: ast.BoolOp, scope: dict[str, Any]) -> bool:
    """Return whether an `and` or `or` is true, which a single operand may decide."""
    is_and, undecided = isinstance(node.op, ast.And), False
    for operand in node.values:
        try:
            if bool(value_of(operand, scope)) != is_and:
                return not is_and
        except Undecided:
            undecided = True
    if undecided:
        raise Undecided
    return is_and


def folds(source: Source, scope: dict[str, Any]) -> Iterator[Edit]:
    """Yield edits that fold a text; each applies to the original text, so only the first may be used."""
    for node in ast.walk(source.tree):
        for block in (getattr(node, name, None) for name in ("body", "orelse")):
            for statement in block if isinstance(block, list) else ():
                value: Any = getattr(statement, "value", None)
                if isinstance(statement, ast.If):
                    yield from folds_of_statement(source, statement, block, scope)
                elif isinstance(statement, ast.Expr) and ast.unparse(getattr(value, "func", value)) in HOOKS:
                    yield source.offsets[statement.lineno - 1], source.offsets[statement.end_lineno or 0], ""
                elif isinstance(statement, ast.Return) and isinstance(value, ast.Compare):
                    with suppress(Undecided):
                        yield *source.span(value), repr(value_of(value, scope))
        try:
            if isinstance(node, ast.IfExp):
                branch = node.body if value_of(node.test, scope) else node.orelse
                yield *source.span(node), source.text_of(branch)
            elif isinstance(node, ast.BoolOp):
                if bool(value := value_of(node.values[0], scope)) != isinstance(node.op, ast.And):
                    yield *source.span(node), repr(value)
                first, last = source.span(node)[0], source.span(node.values[0])[1]
                word = b"and" if isinstance(node.op, ast.And) else b"or"
                rest = source.text.index(word, last) + len(word)
                yield first, rest + len(source.text[rest:]) - len(source.text[rest:].lstrip()), ""
            elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):  # a table of classes
                table: Any = scope.get(node.value.id)
                key = value_of(node.slice, scope)
                name = getattr(table.get(key), "__name__", "") if isinstance(table, dict) else ""
                if scope.get(name) is not None and scope[name] is table[key]:
                    yield *source.span(node), name
            elif isinstance(node, ast.Call) and ast.unparse(node.func) in CALLING_HOOKS:
                start, end = source.span(node.args[1])[0], source.span(node)[1]
                yield *source.span(node), f"{source.text_of(node.args[0])}({source.text[start:end].decode()}"
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Subscript):
                value = value_of(node, scope)
                yield from [(*source.span(node), repr(value))] if isinstance(value, bool | str | None) else []
        except Undecided:
            continue


def folds_of_statement(source: Source, node: ast.If, block: Any, scope: dict[str, Any]) -> Iterator[Edit]:
    """Yield the edit that keeps the branch of an `if` that is taken, and nothing after it if it returns or raises."""
    try:
        taken = node.body if value_of(node.test, scope) else node.orelse
    except Undecided:
        return
    start, lines = source.span(node)[0], source.offsets
    is_elif = source.text[start:].startswith(b"elif")
    if not taken:
        first = node.lineno - 1 if is_elif else source.first_line(node)
        is_only = len(block) == 1 and not is_elif
        yield lines[first], lines[node.end_lineno or 0], " " * node.col_offset + "pass\n" if is_only else ""
    elif source.text[source.span(taken[0])[0] :].startswith(b"elif"):
        yield start, source.span(taken[0])[0] + (0 if is_elif else len("el")), ""
    else:
        leaves = isinstance(taken[-1], ast.Return | ast.Raise) and not is_elif
        first, last = source.first_line(taken[0]), taken[-1].end_lineno or 0
        kept = source.text[lines[first] : lines[last]].decode()
        end = lines[(block[-1] if leaves else node).end_lineno or 0]
        if is_elif:
            yield lines[node.lineno - 1], end, " " * node.col_offset + "else:\n" + kept
        else:
            indent = " " * (taken[0].col_offset - node.col_offset)
            yield lines[node.lineno - 1], end, re.sub(f"^{indent}", "", kept, flags=re.MULTILINE)
