"""The code of a model next to its saved weights, which load with it if the package is not installed.

It is two files, `configuration_<type>.py` and `modeling_<type>.py`, which import torch and transformers.
"""

import json
import os
import re
import sys
import textwrap
from collections.abc import Iterable
from functools import cache
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from vanillaformer.configuration import VanillaConfig
from vanillaformer.modeling import AUTO_CLASSES

from .definitions import ROOT, Definition, Import, read_module
from .file_names import MARK, OFF, SWITCH, saved_code
from .model_code import ModelCode

LONGEST_LINE = 119
UNREAD = ("_name_or_path", "auto_map", "transformers_version")  # entries of a config that do not affect its code
MOST_KEPT = 32
FILES: dict[str, tuple[dict[str, str], dict[str, str]]] = {}
"""The files of the last configs that were saved: a run saves one config with each of its checkpoints."""
ABSENT = '''\
class Absent:
    """Stands for parts that the model's config does not name, in functions that choose among all."""

    def __init__(self, *args: object, **kwargs: object):
        raise ValueError("the code beside this model has only the parts that its config named: import vanillaformer")


'''
FOR_TRANSFORMERS = """\
if False:  # never run, but read by transformers, which then copies it even if only a config is saved
    from .{} import {}
"""


def write_code(config: VanillaConfig, folder: Path) -> dict[str, str] | None:
    """Write the code of a config's models into a folder, and return its `auto_map`, or None for a user's class."""
    if not any(model.config_class is type(config) for models in AUTO_CLASSES.values() for model in models):
        return None
    if os.environ.get(SWITCH, "").lower() in OFF:
        return {}
    classes = auto_classes(config)
    fields = {name: value for name, value in sorted(vars(config).items()) if name not in UNREAD}
    key = repr((config.code_version, classes, fields))
    if key not in FILES:
        if len(FILES) == MOST_KEPT:
            FILES.clear()
        FILES[key] = files_of(config, classes)
    files, auto_map = FILES[key]
    folder.mkdir(parents=True, exist_ok=True)
    for path in saved_code(folder):  # of an earlier version, which wrote a file for each module
        path.unlink()
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return auto_map


def auto_classes(config: VanillaConfig) -> dict[str, type]:
    """Return the classes of a config's model type by the name of the Auto class."""
    pairs = [(auto_class.__name__, model) for auto_class, models in AUTO_CLASSES.items() for model in models]
    return {"AutoConfig": type(config)} | {name: cls for name, cls in pairs if cls.config_class is type(config)}


def files_of(config: VanillaConfig, classes: dict[str, type]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the text of the two files by their names, and the `auto_map` of the classes."""
    names = {kind: f"{kind}_{config.model_type}" for kind in ("configuration", "modeling")}
    kinds = {key: "configuration" if key == "AutoConfig" else "modeling" for key in classes}
    auto_map = {key: f"{names[kinds[key]]}.{cls.__name__}" for key, cls in classes.items()}
    code = ModelCode(config, classes.values())
    groups: dict[str, list[Definition]] = {kind: [] for kind in names}
    for one in code.texts:
        groups["configuration" if ".configuration." in one.module else "modeling"].append(one)
    read = {name: found for one in groups["modeling"] for name, found in code.reads[one].items()}
    shared = [name for name, found in read.items() if found in groups["configuration"]]
    link = import_line(f".{names['configuration']}", shared) + "\n\n\n"
    if code.absent:
        lines = textwrap.wrap(" ".join(sorted(code.absent)), LONGEST_LINE - 40, break_long_words=False)
        link += ABSENT + "\n".join(f"{line.replace(' ', ' = ')} = Absent" for line in lines) + "\n\n\n"
    files = {}
    for kind, group in groups.items():
        imports = written_imports(code.imports(group)) + "\n\n" + (link if kind == "modeling" else "")
        body = joined(group, code.texts) + "\n\n\n" + ending(kind, classes, auto_map, code.fixed)
        files[f"{names[kind]}.py"] = header(config, names[kind]) + imports + body
    return files, auto_map


def header(config: VanillaConfig, name: str) -> str:
    commit = f", commit {known_commit()}" if known_commit() else ""
    return (
        f"{MARK}{name}.py by vanillaformer {config.code_version}{commit}.\n"
        "# Edits are used and saved, except with `import vanillaformer`: its own code is used, and overwrites them.\n"
        "# SPDX-License-Identifier: Apache-2.0\n\n"
    )


@cache
def known_commit() -> str | None:
    """Return the commit that the package was installed from, if it was installed from a repository."""
    record = distribution(ROOT).read_text("direct_url.json")
    return json.loads(record).get("vcs_info", {}).get("commit_id") if record else None


def written_imports(imports: dict[str, Import]) -> str:
    """Return the statements that import names from other libraries, the standard library first."""
    blocks: dict[bool, list[str]] = {True: [], False: []}
    for has_names, module in sorted({(name is not None, module) for module, name in imports.values()}):
        names = [
            name if local == name else f"{name} as {local}"
            for local, (origin, name) in imports.items()
            if origin == module and name is not None
        ]
        line = import_line(module, names) if has_names else f"import {module}"
        blocks[module.partition(".")[0] in sys.stdlib_module_names].append(line)
    return "\n\n".join("\n".join(lines) for lines in blocks.values() if lines)


def import_line(module: str, names: Iterable[str]) -> str:
    """Return an import of names from a module: constants, classes, functions."""
    names = sorted(names, key=lambda name: (not name.isupper(), name[0].islower(), name))
    line = f"from {module} import {', '.join(names)}"
    if len(line) <= LONGEST_LINE:
        return line
    return "\n".join([f"from {module} import (", *(f"    {name}," for name in names), ")"])


def joined(definitions: Iterable[Definition], texts: dict[Definition, str]) -> str:
    """Return the texts of definitions, by module, with as many blank lines between them as in the source."""
    text, module, end, before = "", "", 0, ""
    for one in definitions:
        most = 3 if "\n" in texts[one] else 2 if "\n" in before else 1  # something between them may be left out
        gap = "\n" * min(most, one.first - end + 1)
        if one.module != module:
            path, title = one.module.partition(".")[2].replace(".", "/"), read_module(one.module).title
            gap = f"\n\n\n# {path}.py: {re.split('[;:] ', title)[0].rstrip('.')}\n"
        text += gap + texts[one]
        module, end, before = one.module, one.last, texts[one]
    return text.strip("\n")


def ending(kind: str, classes: dict[str, type], auto_map: dict[str, str], fixed: dict[str, Any]) -> str:
    """Return the end of a file, which makes transformers save models of this code with it, however they are loaded."""
    names = {key: cls.__name__ for key, cls in classes.items()}
    config_class = names.pop("AutoConfig")
    if kind == "configuration":
        written = json.dumps(auto_map, indent=4)
        last = list(auto_map.values())[-1].rpartition(".")
        values = textwrap.indent("\n".join(textwrap.wrap(str(fixed)[1:-1], LONGEST_LINE - 4)), "    ")
        lines = [f"{config_class}.fixed = {{\n{values}\n}}", f"{config_class}.code_map = {written}"]
        lines.append(f"{config_class}.register_for_auto_class()")
        return "\n".join([*lines, FOR_TRANSFORMERS.format(last[0], last[2])])
    first = {name: key for key, name in reversed(names.items())}
    lines = [f'{name}.register_for_auto_class("{first[name]}")' for name in dict.fromkeys(names.values())]
    return "\n".join([*lines, *(f'{name}.enter_name("{key}")' for key, name in names.items()), ""])
