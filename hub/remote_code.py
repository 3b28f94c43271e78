"""Copies of the package's own modules next to saved weights, which load with them where it is not installed.

transformers imports such copies from one flat folder: `vanillaformer/modeling/attention.py` becomes
`modeling_attention.py`, and imports of our own modules are made to fit. It finds them by regular expressions, so what
those would miss or mistake is refused here: star imports and `import x.y` of our modules.
"""

import ast
import json
import os
from functools import cache
from importlib.metadata import distribution
from importlib.util import find_spec, resolve_name
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from vanillaformer.configuration import VanillaConfig
from vanillaformer.modeling.auto import AUTO_CLASSES

ROOT = __name__.partition(".")[0]
SWITCH = "VANILLAFORMER_REMOTE_CODE"
OFF = ("0", "false", "no", "off")
MARK = "# Generated: vanillaformer/"
FOR_TRANSFORMERS = """\
if False:  # never run, but read by transformers, which then copies it even if only a config is saved
    from .{} import {}"""


class Code(NamedTuple):
    """The code of a model type: the text of each file, and the classes by Auto class."""

    files: MappingProxyType[str, str]
    auto_map: MappingProxyType[str, str]


def write_code(config: VanillaConfig, folder: Path) -> dict[str, str] | None:
    """Write the code of a config's models into a folder.

    The environment variable `VANILLAFORMER_REMOTE_CODE=0` switches it off.

    Returns:
        What `auto_map` says about it: nothing if it is switched off, `None` if the config is not the package's own.
    """
    if not any(model.config_class is type(config) for models in AUTO_CLASSES.values() for model in models):
        return None
    if os.environ.get(SWITCH, "").lower() in OFF:
        return {}
    code = code_of(type(config))  # type: ignore[arg-type]  # mypy takes a class for its instance, without a hash
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in code.files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return dict(code.auto_map)


def saved_code(folder: Path) -> list[Path]:
    """Return the files in a folder that `write_code` wrote."""
    paths = [path for pattern in ("configuration_*.py", "modeling_*.py") for path in folder.glob(pattern)]
    return [path for path in paths if path.is_file() and path.read_bytes().startswith(MARK.encode())]


@cache
def code_of(config_class: type[VanillaConfig]) -> Code:
    """Return the code of the models that have a config of this class."""
    classes: dict[str, type] = {"AutoConfig": config_class}
    pairs = [(auto_class.__name__, model) for auto_class, models in AUTO_CLASSES.items() for model in models]
    classes |= {name: model for name, model in pairs if model.config_class is config_class}
    auto_map = {key: f"{flat(cls.__module__)}.{cls.__name__}" for key, cls in classes.items()}
    version = config_class.code_version
    endings = {config_class.__module__: [f"{config_class.__name__}.code_version = {version!r}"]}
    endings[config_class.__module__].append(f"{config_class.__name__}.code_map = {json.dumps(auto_map, indent=4)}")
    models = {cls.__module__: cls.__name__ for cls in classes.values() if cls is not config_class}
    for module, name in models.items():
        endings[config_class.__module__].append(FOR_TRANSFORMERS.format(flat(module), name))
    for cls in dict.fromkeys(classes.values()):  # saving a model of a copy saves the copy, however it was loaded
        key = next(key for key in classes if classes[key] is cls)
        endings.setdefault(cls.__module__, []).append(f'{cls.__name__}.register_for_auto_class("{key}")')
    for key, cls in classes.items():
        if cls is not config_class:
            endings[cls.__module__].append(f'{cls.__name__}.enter_name("{key}")')
    files = {}
    for module, text in flattened(tuple(sorted({cls.__module__ for cls in classes.values()}))).items():
        ending = "".join(f"\n{line}" for line in endings.get(module, []))
        files[f"{flat(module)}.py"] = header(module, version) + text + (f"\n{ending}\n" if ending else "")
    return Code(MappingProxyType(files), MappingProxyType(auto_map))


def flat(module: str) -> str:
    """Return the name of a module's copy.

    >>> flat("vanillaformer.modeling.parts.attention")
    'modeling_attention'
    """
    return "_".join(module.split(".")[1:])


def header(module: str, version: str | None) -> str:
    commit = f", commit {known_commit()}" if known_commit() else ""
    return (
        f"{MARK}{'/'.join(module.split('.')[1:])}.py of vanillaformer {version}{commit}.\n"
        "# Do not edit: saving the model writes it anew. With `import vanillaformer` it is not used.\n"
        "# SPDX-License-Identifier: Apache-2.0\n"
    )


@cache
def known_commit() -> str | None:
    """Return the commit that the package was installed from, if it was installed from a repository."""
    record = distribution(ROOT).read_text("direct_url.json")
    return json.loads(record).get("vcs_info", {}).get("commit_id") if record else None


def flattened(modules: tuple[str, ...]) -> dict[str, str]:
    """Return the changed text of modules and of all our modules that they need."""
    done: dict[str, str] = {}
    waiting = list(modules)
    while waiting:
        module = waiting.pop()
        if module not in done:
            done[module], needed = flatten(module)
            waiting += needed
    return dict(sorted(done.items()))


@cache
def source(module: str) -> str:
    loader: Any = getattr(find_spec(module), "loader", None)
    text = loader.get_source(module)
    if text is None:
        raise ValueError(f"{module} has no source to save with the model: {SWITCH}=0 saves without it")
    return text


def flatten(module: str) -> tuple[str, set[str]]:
    """Return a module's text with imports of our modules rewritten, and the modules that it imports."""
    lines, needed = source(module).splitlines(), set()
    tree = ast.parse(source(module))
    only_for_checkers = set(imports_for_checkers(tree))
    for node in sorted(imports_of_ours(tree, module), key=lambda node: node.lineno, reverse=True):
        indent = " " * node.col_offset
        new = [f"{indent}pass"]
        if node not in only_for_checkers:
            origins = origins_of(node, module)
            needed |= set(origins)
            new = [f"{indent}from .{flat(origin)} import {', '.join(names)}" for origin, names in origins.items()]
        lines[node.lineno - 1 : node.end_lineno] = new
    return "\n".join(lines) + "\n", needed


def imports_of_ours(tree: ast.Module, module: str) -> list[ast.ImportFrom]:
    """Return the imports of our modules.

    Raises:
        ValueError: One has a form that cannot be copied.
    """
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and any(is_ours(alias.name) for alias in node.names):
            raise ValueError(f"{module}, line {node.lineno}: write `from ... import ...` for our own modules")
        if isinstance(node, ast.ImportFrom) and is_ours(target_of(node, module)):
            if any(alias.name == "*" for alias in node.names):
                raise ValueError(f"{module}, line {node.lineno}: a star import hides what is imported")
            found.append(node)
    return found


def imports_for_checkers(tree: ast.Module) -> list[ast.AST]:
    """Return the nodes under `if TYPE_CHECKING`, whose imports transformers would take for needed ones."""
    blocks = [
        node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    ]
    return [inner for block in blocks for statement in block.body for inner in ast.walk(statement)]


def is_ours(module: str) -> bool:
    return module.partition(".")[0] == ROOT


def is_package(module: str) -> bool:
    spec = find_spec(module)
    return spec is not None and spec.submodule_search_locations is not None


def target_of(node: ast.ImportFrom, module: str) -> str:
    """Return the whole name of the module that an import names."""
    package = module if is_package(module) else module.rpartition(".")[0]
    return resolve_name("." * node.level + (node.module or ""), package) if node.level else node.module or ""


def origins_of(node: ast.ImportFrom, module: str) -> dict[str, list[str]]:
    """Return, by the module that defines them, the names that an import binds, as an import writes them."""
    origins: dict[str, list[str]] = {}
    for alias in node.names:
        origin = origin_of(target_of(node, module), alias.name)
        written = alias.name if alias.asname is None else f"{alias.name} as {alias.asname}"
        origins.setdefault(origin, []).append(written)
    return origins


def origin_of(module: str, name: str) -> str:
    """Return which module defines a name, following the packages that re-export it.

    Raises:
        ValueError: A package does not import it from one of our modules.
    """
    while is_package(module):
        found: Any = reexports(module).get(name)
        if found is None:
            raise ValueError(f"{module} does not import {name}: copies of it can only import what a module defines")
        module = found
    return module


@cache
def reexports(package: str) -> dict[str, str]:
    """Return the names that a package imports from our modules, and those modules."""
    nodes = imports_of_ours(ast.parse(source(package)), package)
    return {alias.asname or alias.name: target_of(node, package) for node in nodes for alias in node.names}
