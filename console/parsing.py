"""Reading dataclasses of arguments from the command line and from files."""

import argparse
import dataclasses
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, NoReturn, get_args, get_origin, get_type_hints

import yaml
from transformers import HfArgumentParser
from transformers.hf_argparser import string_to_bool

from .help_page import HelpPage, Names
from .reporting import redact_tokens

SUFFIXES = (".yaml", ".yml", ".json")
SWITCHES = {"on": True, "off": False}
BOOL = "tag:yaml.org,2002:bool"


class Parser(HfArgumentParser):
    """A parser that also reads on and off as Booleans, prints a short help page, and hides tokens in its messages."""

    def __init__(self, types: Sequence[Any], page: HelpPage, **options: Any):
        self.page = page
        self.destinations: dict[str, str] = {}
        super().__init__(types, **options)
        self.add_argument("--help-all", action="store_true", default=argparse.SUPPRESS)

    def add_argument(self, *names: Any, **options: Any) -> Any:
        if options.get("type") is string_to_bool:
            options["type"] = _truth
        options.pop("group", None)  # for the help page
        options.pop("limit", None)
        action = super().add_argument(*names, **options)
        self.destinations |= dict.fromkeys(action.option_strings, action.dest)
        self.page.add(action)
        return action

    def format_help(self, everything: bool = False) -> str:
        return self.page.text(self.format_usage(), self.description or "", everything)

    def error(self, message: str) -> NoReturn:
        super().error(redact_tokens(message))


def parse(
    dataclass_types: type | Sequence[type],
    argv: Sequence[str] | None = None,
    *,
    description: str | None = None,
    notes: Mapping[str, str] | None = None,
    names: Mapping[str, Sequence[str]] | None = None,
    elsewhere: Callable[[], Mapping[str, Sequence[type]]] = dict,
    config_fields: Sequence[str] = (),
) -> tuple[Any, ...]:
    """Read dataclasses from the command line, or from a file given first (.yaml, .json) whose values it overrides.

    `--help` shows the description, the notes on options by their fields, and at its end the lists of names by title.
    Errors for an unknown option search `elsewhere`, which returns the dataclasses of other programs by name, and say
    how to set one of `config_fields`.

    Returns one instance per type, whose attribute `given` is the set of its fields that the command line or the file
    names, whatever their values (`was_given`). Raises ValueError for a settings file that is missing or not a mapping,
    and for a key that is unknown, given twice, or whose value has the wrong form (null, a list, a mapping). Mistakes
    on the command line end the program with a message, as argparse does.
    """
    types: list[Any] = [dataclass_types] if isinstance(dataclass_types, type) else list(dataclass_types)
    words = list(sys.argv[1:] if argv is None else argv)
    program = Path(sys.argv[0]).name
    usage = "%(prog)s [settings.yaml | settings.json] [--option value ...]"
    page = HelpPage(types, notes or {}, names or {})
    parser = Parser(types, page, prog=program, usage=usage, description=description, allow_abbrev=False)
    known = Names(
        _fields_by_name(types),
        lambda: {program: _fields_by_name(kinds) for program, kinds in elsewhere().items()},
        config_fields,
    )
    if "--help-all" in words:
        print(parser.format_help(everything=True))
        raise SystemExit(0)
    given: set[str] = set()
    if words and words[0].endswith(SUFFIXES):
        settings = _by_field(read_settings(Path(words[0])), known, words[0])
        given |= settings.keys()
        _check_forms(settings, types, words[0])
        # Values that one word cannot express: None, and lists, whose items may begin with dashes
        parser.set_defaults(**{name: value for name, value in settings.items() if isinstance(value, list | None)})
        words[:1] = [  # so that the same parser checks them
            f"--{name}={json.dumps(value) if isinstance(value, dict) else value}"
            for name, value in settings.items()
            if not isinstance(value, list | None)
        ]
    *filled, unknown = parser.parse_args_into_dataclasses(words, True, look_for_args_file=False)
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{known.hint(*unknown[:2])}")
    given |= {parser.destinations.get(word.partition("=")[0], "") for word in words}
    for instance in filled:
        instance.given = frozenset(given & {entry.name for entry in dataclasses.fields(instance)})
    return tuple(filled)


def was_given(arguments: Any, name: str) -> bool:
    """Return whether a user gave a field of parsed arguments; those made in Python count as given."""
    return name in getattr(arguments, "given", (name,))


def _fields_by_name(types: Iterable[Any]) -> dict[str, str]:
    """Return the field by each accepted name: its own name, and its aliases without dashes."""
    names = {}
    for declared in (entry for kind in types for entry in dataclasses.fields(kind) if entry.init):
        for name in (declared.name, *declared.metadata.get("aliases", ())):
            names[name.lstrip("-")] = declared.name
    return names


def _by_field(settings: Mapping[str, Any], names: Names, where: str) -> dict[str, Any]:
    """Return settings by field name."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        if (written := str(key).replace("-", "_")) not in names.fields:
            raise ValueError(f"{where}: unknown key {key!r}{names.hint(written)}")
        if (name := names.fields[written]) in found:
            raise ValueError(f"{where}: {name} is given twice, also as {key!r}")
        if name == "overrides" and isinstance(value, Mapping):
            words = ("no", "off", "yes", "on")  # Booleans there
            value = [f"{key}={one if str(one).lower() in words else json.dumps(one)}" for key, one in value.items()]
        found[name] = [str(item) for item in value] if _is_plain_list(value) else value
    return found


def _is_plain_list(value: Any) -> bool:
    return isinstance(value, list) and not any(isinstance(item, list | dict | None) for item in value)


def _check_forms(settings: Mapping[str, Any], types: Iterable[Any], where: str) -> None:
    """Raise ValueError for null, a list or a mapping where the field takes something else."""
    hints = {name: hint for kind in types for name, hint in get_type_hints(kind).items()}
    defaults = {entry.name: entry.default for kind in types for entry in dataclasses.fields(kind)}
    for name, value in settings.items():
        allowed = {get_origin(kind) or kind for kind in (hints[name], *get_args(hints[name]))}
        if value is None and NoneType not in allowed and defaults[name] is not None:
            raise ValueError(f"{where}: {name} cannot be null: leave it out for the default")
        if isinstance(value, list) and list not in allowed:
            raise ValueError(f"{where}: {name} takes one value, not the list {value}")
        if isinstance(value, list) and not _is_plain_list(value):
            raise ValueError(f"{where}: {name} takes a list of single values, not {value}")
        if isinstance(value, dict) and dict not in allowed:
            raise ValueError(f"{where}: {name} does not take a mapping: {value}")


def _truth(word: Any) -> bool:
    return SWITCHES[word.lower()] if isinstance(word, str) and word.lower() in SWITCHES else string_to_bool(word)


def read_settings(path: Path) -> dict[str, Any]:
    """Return the content of a settings file; raise ValueError if it is missing, not YAML or JSON, or not a mapping."""
    if not path.is_file():
        raise ValueError(f"settings file {str(path)!r} does not exist or is not a file")
    try:
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix == ".json":
            content = json.loads(text, object_pairs_hook=_without_repeats)
        else:
            content = yaml.load(text, SettingsLoader)
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        reason = redact_tokens(" ".join(str(error).split()))  # it quotes the line
        raise ValueError(f"{path} is not valid {path.suffix[1:].upper()}: {reason}") from None
    if content is not None and not isinstance(content, dict):
        raise ValueError(f"{path} must hold a mapping of argument names to values, not a {type(content).__name__}")
    return content or {}


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for key, value in pairs:
        if key in content:
            raise ValueError(f"the key {key!r} is given twice")
        content[key] = value
    return content


class SettingsLoader(yaml.SafeLoader):
    """A YAML reader in which no, off, yes and on are strings, as in YAML 1.2, and a repeated key is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        for index, (key, _) in enumerate(node.value):
            if key.value in keys[:index]:
                raise ValueError(f"the key {key.value!r} is given twice (line {key.start_mark.line + 1})")
        return super().construct_mapping(node, deep)


SettingsLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != BOOL]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
SettingsLoader.add_implicit_resolver(BOOL, re.compile("^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))


def yaml_value(entry: str, text: str) -> Any:
    """Return a value written as YAML; numbers that YAML 1.1 reads as strings (1e-4) are numbers, too."""
    if re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+", text):
        return float(text)
    try:
        return yaml.safe_load(text)
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{entry}: the value is not YAML ({reason})") from error
