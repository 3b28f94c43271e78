"""Where the package's source files are, and what is in them."""

import ast
import tomllib
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
DIRECTORIES = PYPROJECT["tool"]["setuptools"]["package-dir"]
FOLDERS: dict[str, str] = {name: folder for name, folder in DIRECTORIES.items() if name}
"""Import name of each mapped folder, and the folder."""

# Folders of the root that hold no part of the package.
OTHER_FOLDERS = {"tests", "tools", "benchmarks", "docs", "src", "build", "dist"}


@cache
def sources() -> dict[str, Path]:
    """Every module of the package by its import name."""
    modules = {}
    for package, folder in FOLDERS.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = [part for part in path.relative_to(ROOT / folder).with_suffix("").parts if part != "__init__"]
            modules[".".join([package, *parts])] = path
    return modules


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(sources()[module].read_text(encoding="utf-8"))


def functions(module: str) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function and method of a module."""
    return [node for node in ast.walk(tree(module)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def imports(module: str) -> set[str]:
    """Modules of ours that a module imports, relative imports resolved; `from package import module` counts both.

    `from . import module` counts the module only, for the package is being imported already.
    """
    is_package = sources()[module].name == "__init__.py"
    found = set()
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = module.split(".")
            if node.level:
                base = base[: len(base) - node.level + is_package]
                target = ".".join(base + ([node.module] if node.module else []))
            else:
                target = node.module or ""
            modules = {f"{target}.{alias.name}" for alias in node.names} & set(sources())
            found |= modules
            if node.module or len(modules) < len(node.names):
                found.add(target)
    return {name for name in found if name == "vanillaformer" or name.startswith("vanillaformer.")}
