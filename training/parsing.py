"""Reading dataclasses of settings from the command line and from files."""

import dataclasses
import difflib
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import yaml
from transformers import HfArgumentParser

from vanillaformer.modeling.hub import without_tokens

SUFFIXES = (".yaml", ".yml", ".json")


class Parser(HfArgumentParser):
    """A parser whose messages hold no token, wherever on the command line somebody has put one."""

    def error(self, message: str) -> NoReturn:
        super().error(without_tokens(message))


def parse(
    dataclass_types: type | Sequence[type],
    argv: Sequence[str] | None = None,
    *,
    defaults: Mapping[str, Any] | None = None,
    description: str | None = None,
) -> tuple[Any, ...]:
    """Read dataclasses from the command line, or from a file with the command line having the last word.

    `--learning_rate 1e-3 --set norm=rms_norm` and `settings.yaml --learning_rate 1e-3` (also .json) both work.

    Args:
        dataclass_types: The dataclasses to fill, e.g. `(ModelArguments, DataArguments, TrainingArguments)`.
        argv: The arguments; `sys.argv[1:]` when None.
        defaults: A script's own defaults for some fields, by name.
        description: Shown by `--help`.

    Returns:
        One instance per type, in the same order.

    Raises:
        ValueError: For a settings file that is missing, is no mapping, or has a key that no field has (naming the
            nearest). What is wrong on the command line ends the program with a message, as argparse does.
    """
    types: list[Any] = [dataclass_types] if isinstance(dataclass_types, type) else list(dataclass_types)
    words = list(sys.argv[1:] if argv is None else argv)
    usage = "%(prog)s [settings.yaml | settings.json] [--option value ...]"
    parser = Parser(types, usage=usage, description=description, allow_abbrev=False)
    names = _names(types)
    parser.set_defaults(**{_known(name, names, "defaults"): value for name, value in (defaults or {}).items()})
    if words and words[0].endswith(SUFFIXES):
        settings = {_known(key, names, words[0]): value for key, value in _settings(Path(words[0])).items()}
        parser.set_defaults(**{name: None for name, value in settings.items() if value is None})
        words = _as_words(settings) + words[1:]
    *filled, unknown = parser.parse_args_into_dataclasses(words, True, look_for_args_file=False)
    if unknown:
        nearest = _nearest(unknown[0], [f"--{name}" for name in names])
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{nearest}")
    return tuple(filled)


def _names(types: Iterable[type]) -> dict[str, str]:
    """Return the field each accepted name stands for: its own name, and its aliases without dashes."""
    names = {}
    for declared in (entry for kind in types for entry in dataclasses.fields(kind) if entry.init):
        for name in (declared.name, *declared.metadata.get("aliases", ())):
            names[name.lstrip("-")] = declared.name
    return names


def _known(key: Any, names: Mapping[str, str], where: str) -> str:
    name = str(key).replace("-", "_")
    if name not in names:
        raise ValueError(f"{where}: unknown key {key!r}{_nearest(name, names)}")
    return names[name]


def _nearest(name: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


def _settings(path: Path) -> dict[str, Any]:
    """Return what a settings file holds."""
    if not path.is_file():
        raise ValueError(f"settings file {str(path)!r} does not exist")
    text = path.read_text(encoding="utf-8")
    try:
        content = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (json.JSONDecodeError, yaml.YAMLError) as error:
        said = without_tokens(str(error))  # which quotes the line
        raise ValueError(f"{path} is not valid {path.suffix[1:].upper()}: {said}") from None
    if content is not None and not isinstance(content, dict):
        raise ValueError(f"{path} must hold a mapping of argument names to values, not a {type(content).__name__}")
    return content or {}


def _as_words(settings: Mapping[str, Any]) -> list[str]:
    """Return settings as command-line words, so that one reader checks both."""
    words = []
    for name, value in settings.items():
        if name == "overrides" and isinstance(value, Mapping):
            value = [f"{key}={json.dumps(content)}" for key, content in value.items()]
        if isinstance(value, list):
            words += [f"--{name}", *map(str, value)] if value else []
        elif value is not None:
            words.append(f"--{name}={json.dumps(value) if isinstance(value, dict) else value}")
    return words


def yaml_value(entry: str, text: str) -> Any:
    """Return a value written as YAML, with the numbers that YAML 1.1 takes for text (1e-4) as numbers."""
    if re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+", text):
        return float(text)
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"--set {entry!r}: the value is not YAML ({error})") from error
