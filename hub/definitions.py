"""The definitions of the package's modules, as in their source."""

import ast
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec, resolve_name
from itertools import accumulate
from symtable import symtable
from typing import Any

ROOT = __name__.partition(".")[0]
Import = tuple[str, str | None]  # a module, and a name in it or `None` for the module itself
Edit = tuple[int, int, str]  # the first byte, the one after the last, and the text that replaces them


@dataclass(frozen=True)
class Definition:
    """A statement at the top level of a module that binds names."""

    module: str
    node: ast.stmt
    first: int  # number of its first line, from 0, including comments before it
    last: int  # number of the line after its last, including a string that describes it


class Source:
    """A Python source text, and the positions of the nodes of its syntax tree."""

    def __init__(self, text: str):
        self.tree, self.text = ast.parse(text), text.encode()  # `ast` counts bytes
        self.lines = self.text.splitlines(keepends=True)
        self.offsets = [0, *accumulate(map(len, self.lines))]  # the first byte of each line, and the end

    def first_line(self, node: ast.AST) -> int:
        """Return the number, from 0, of the first line of a statement, including decorators and comments."""
        first = min(part.lineno for part in (node, *getattr(node, "decorator_list", ()))) - 1
        while first and self.lines[first - 1].lstrip().startswith(b"#"):
            first -= 1
        return first

    def span(self, node: Any) -> tuple[int, int]:
        """Return the first byte of a node, and the one after its last."""
        return self.offsets[node.lineno - 1] + node.col_offset, self.offsets[node.end_lineno - 1] + node.end_col_offset

    def text_of(self, node: Any) -> str:
        first, last = self.span(node)
        return self.text[first:last].decode()

    def edited(self, edits: Iterable[Edit]) -> str:
        text = self.text
        for first, last, new in sorted(edits, reverse=True):
            text = text[:first] + new.encode() + text[last:]
        return text.decode()


class Module(Source):
    """The source of a module."""

    def __init__(self, name: str):
        spec = find_spec(name)
        loader: Any = getattr(spec, "loader", None)
        if (text := loader.get_source(name)) is None:
            raise ValueError(f"{name} has no source to save with the model: VANILLAFORMER_REMOTE_CODE=0 saves none")
        super().__init__(text)
        self.name = name
        self.package = name if spec is not None and spec.submodule_search_locations else name.rpartition(".")[0]
        self.title = (ast.get_docstring(self.tree) or "").partition("\n")[0]
        self.definitions: dict[str, Definition] = {}
        self.imports: dict[str, Import] = {}  # by the name that they bind
        for node, *described in with_descriptions(self.tree.body):
            if isinstance(node, ast.Import | ast.ImportFrom):
                self.imports |= self._bound_by(node)
            elif names := bound_names(node):
                last = (described or [node])[-1].end_lineno or 0
                self.definitions |= dict.fromkeys(names, Definition(name, node, self.first_line(node), last))

    def _bound_by(self, node: ast.Import | ast.ImportFrom) -> dict[str, Import]:
        if isinstance(node, ast.Import):
            found: dict[str, Import] = {alias.asname or alias.name: (alias.name, None) for alias in node.names}
        else:
            target = resolve_name("." * node.level + (node.module or ""), self.package) if node.level else node.module
            found = {alias.asname or alias.name: (str(target), alias.name) for alias in node.names}
        for name, (target, original) in found.items():
            if target.partition(".")[0] == ROOT and (name != original or name == "*"):
                raise ValueError(f"{self.name}, line {node.lineno}: import our own definitions by their names")
        return found


read_module = cache(Module)


def with_descriptions(body: list[ast.stmt]) -> list[list[ast.stmt]]:
    """Return the statements of a body, each with the string that describes it, if one follows."""
    groups: list[list[ast.stmt]] = []
    for node in body:
        is_string = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_string and groups and isinstance(groups[-1][0], ast.Assign | ast.AnnAssign):
            groups[-1].append(node)
        else:
            groups.append([node])
    return groups


def bound_names(node: ast.stmt) -> list[str]:
    """Return the names that a definition binds."""
    if isinstance(node, ast.If):
        return [name for statement in (*node.body, *node.orelse) for name in bound_names(statement)]
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = getattr(node, "targets", [getattr(node, "target", node)])
    return [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]


def resolve(module: str, name: str) -> Definition | Import | None:
    """Return what a name in a module refers to: one of our definitions, an import from elsewhere, or None."""
    source = read_module(module)
    if name in source.definitions or name not in source.imports:
        return source.definitions.get(name)
    target, original = source.imports[name]
    if target.partition(".")[0] != ROOT:
        return target, original
    if (found := resolve(target, name)) is None:
        raise ValueError(f"{module} imports {name} from {target}, which does not define it")
    return found


def free_names(text: str) -> set[str]:
    """Return the names that a text reads and that no function or class in it binds."""
    waiting, found = [symtable(text, "definition", "exec")], set[str]()
    while waiting:
        table = waiting.pop()
        waiting += table.get_children()
        read = [symbol for symbol in table.get_symbols() if symbol.is_referenced()]
        found |= {symbol.get_name() for symbol in read if symbol.is_global() or table.get_type() == "module"}
    return found


def reading_order(modules: list[str]) -> list[str]:
    """Return modules and all of ours that they import, each after those that it imports, in the order of imports."""
    order: dict[str, None] = {}

    def visit(module: str) -> None:
        for name in read_module(module).imports:
            target = resolve(module, name)
            if isinstance(target, Definition) and target.module not in order:
                visit(target.module)
        order[module] = None

    for module in modules:
        visit(module)
    return list(order)
