"""The code of one model: the part of the package's source that its classes need, in reading order.

A table of an option is a dictionary or `Literal` whose words are all values of one option of the configs. It is cut to
the value in the model's config, and of a branch that the config decides, the side that is taken remains. Definitions
that only other values need are left out, as are methods that nothing calls and fields without effect. The rest of the
source is unchanged.
"""

import ast
import copy
import dataclasses
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook
from transformers import PreTrainedConfig, PreTrainedModel

from vanillaformer.configuration import VanillaConfig
from vanillaformer.configuration.options import OPTIONS
from vanillaformer.modeling.parts.dropout import Dropout

from .definitions import (
    ROOT,
    Definition,
    Edit,
    Import,
    Source,
    bound_names,
    free_names,
    read_module,
    reading_order,
    resolve,
    with_descriptions,
)
from .folding import Known, folded

# Needed only in the package: names of other libraries, limits for untrusted files, the writing of this code
LEFT_OUT = ("PackageConfig", "validate_block_choices")
UNCUT = ("layer_types",)  # a model may have several
REGULARIZERS = (Dropout,)  # their rate may be given when a model is loaded
IMPLEMENTATIONS = ("eager", "sdpa", "flash_attention_2", "flex_attention", "paged|eager", "paged|sdpa")
CHANGING = "dropout|token_id|use_cache|^tie_|^(decoder_)?vocab_size"  # fields that a program may set later
ROW = re.compile(rb" +\| (\w+) +\|")
FOLDED: dict[tuple[Definition, str], Source] = {}
"""Definitions without what the facts of a config rule out, by these: the next config has most of them, too."""


class ModelCode:
    """The definitions that classes of a model need."""

    def __init__(self, config: VanillaConfig, classes: Iterable[type]):
        self.config, classes = config, list(dict.fromkeys(classes))
        self.fixed = fixed_fields(config)
        chosen = {name: getattr(config, name) for name in OPTIONS if name not in UNCUT and hasattr(config, name)}
        self.facts = constants(config) | self.fixed | chosen
        refused = [name for name in IMPLEMENTATIONS if config.attention_obstacle(name) is not None]
        checks = {f"{owner}.attention_obstacle" for owner in ("self", "self.config")}
        self.functions = set() if refused else checks  # functions that return `None` for this config
        self.present = {*classes, *REGULARIZERS, *types_in_models(config, classes)}
        self.words = {"enter_name", "register_for_auto_class"}  # possible names of members
        order, size = reading_order([cls.__module__ for cls in classes]), 0
        while size != (size := len(self.words)):  # until no new member is named
            self.texts: dict[Definition, str] = {}  # in reading order
            self.reads: dict[Definition, dict[str, Definition | Import]] = {}  # by name
            self.names: dict[str, Definition | Import] = {}
            self.absent: set[str] = set()  # names of parts that the model does not have
            for cls in classes:
                self._add(resolve(cls.__module__, cls.__name__))
        places = {one: (".parts." not in one.module, order.index(one.module), one.first) for one in self.texts}
        self.texts = {one: self.texts[one] for one in sorted(places, key=places.__getitem__)}

    def _add(self, definition: Any) -> None:
        """Add the text of a definition, and those of all that it reads."""
        if definition in self.texts:
            return
        self.texts[definition] = self.cut(definition)
        names, words = names_and_words(self.texts[definition])
        self.words |= words
        scope = [definition.module, *(base.module for base in self._left_out_bases(definition))]
        pairs = [(name, found) for name in names for module in scope if (found := resolve(module, name)) is not None]
        for name, found in pairs:  # parts that only other models have
            cls = getattr(import_module(found.module), name, None) if isinstance(found, Definition) else None
            if isinstance(cls, type) and issubclass(cls, nn.Module) and cls not in self.present:
                self.absent.add(name)
        self.reads[definition] = {name: one for name, one in pairs if one != definition and name not in self.absent}
        for name, one in self.reads[definition].items():
            if self.names.setdefault(name, one) != one:
                raise ValueError(f"two definitions that a saved model needs have the name {name}")
            if isinstance(one, Definition):
                self._add(one)

    def imports(self, definitions: Iterable[Definition]) -> dict[str, Import]:
        """Return the imports of definitions from other libraries, by their local names."""
        return {name: read for one in definitions for name, read in self.reads[one].items() if isinstance(read, tuple)}

    def cut(self, definition: Definition) -> str:
        """Return the text of a definition without what the model does not need."""
        source = self._folded(definition)
        return source.edited(self._edits(source, source.tree.body[0], definition)).rstrip()

    def _folded(self, definition: Definition) -> Source:
        """Return the text of a definition without the branches that the config rules out."""
        text, words = definition_text(definition)
        facts = {name: self.facts[name] for name in sorted(self.facts.keys() & words)}
        key = definition, repr((facts, sorted(self.functions)))
        if key not in FOLDED:
            known, namespace = Known(**facts), vars(import_module(definition.module))
            name = getattr(definition.node, "name", "")
            cls = namespace[name] if isinstance(definition.node, ast.ClassDef) else object
            itself = known if issubclass(cls, PreTrainedConfig) else Known(config=known)
            scope = {**namespace, "config": known, "self": itself, "FUNCTIONS": self.functions}
            FOLDED[key] = folded(Source(text), scope)
        return FOLDED[key]

    def _edits(self, source: Source, node: ast.AST, definition: Definition) -> Iterator[Edit]:
        if isinstance(node, ast.ClassDef):
            yield from self._member_edits(source, node, definition)
            if left_out := {base.node.name: base.node.bases for base in self._left_out_bases(definition)}:
                bases = [inner for base in node.bases for inner in left_out.get(ast.unparse(base), [base])]
                yield source.span(node.bases[0])[0], source.span(node.bases[-1])[1], ", ".join(map(ast.unparse, bases))
        elif isinstance(node, ast.FunctionDef):  # without the rows of other values of options in tables of docstrings
            words = {word for choices in OPTIONS.values() for word in choices} - {*map(str, self.facts.values())}
            for number, line in enumerate(source.lines):
                if (row := ROW.match(line)) and row[1].decode() in words:
                    yield source.offsets[number], source.offsets[number + 1], ""
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for table in ast.walk(node):
                if (kept := self._kept_words(table)) is not None:
                    yield *source.span(table), shortened(source, table, kept)

    @staticmethod
    def _left_out_bases(definition: Any) -> list[Any]:
        """Return the bases of a class that are left out, so that their bases replace them."""
        names = [ast.unparse(base) for base in getattr(getattr(definition, "node", None), "bases", ())]
        return [resolve(definition.module, name) for name in names if name in LEFT_OUT]

    def _kept_words(self, node: ast.AST) -> list[str] | None:
        """Return the words that a table of an option keeps, `None` if it is not such a table."""
        words: list[Any] = []
        if isinstance(node, ast.Dict):
            words = [getattr(key, "value", None) for key in node.keys]
        elif isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Literal":
            elements = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            words = [getattr(word, "value", None) for word in elements]
        options = [name for name, choices in OPTIONS.items() if words and set(words) <= choices.keys()]
        if len(options) != 1 or (options[0] in UNCUT and "sliding_window" not in self.fixed):
            return None
        chosen = "full_attention" if options[0] in UNCUT else getattr(self.config, options[0], None)
        kept = [word for word in words if word == chosen]
        return kept if kept or isinstance(node, ast.Dict) else None

    def _member_edits(self, source: Source, node: ast.ClassDef, definition: Definition) -> Iterator[Edit]:
        """Yield the edits of a class: members left out, entries of its docstring, defaults of options."""
        cls = getattr(import_module(definition.module), node.name)
        members: list[Any] = [group[0] for group in with_descriptions(node.body)]
        starts = [source.first_line(member) for member in members]
        for member, start, end in zip(members, starts, [*starts[1:], len(source.lines)]):
            if not self._is_needed(member, cls):
                yield source.offsets[start], source.offsets[end], ""
            elif isinstance(member, ast.AnnAssign) and (default := self._default(ast.unparse(member.target))):
                yield *source.span(member.value), default
            elif isinstance(member, ast.Expr) and issubclass(cls, PreTrainedConfig):
                # The rest describes the values of all models
                title, lines, _ = ast.literal_eval(member.value).partition("\n")
                yield from [(*source.span(member), f'"""{title}"""')] if lines else []

    def _is_needed(self, member: Any, cls: type) -> bool:
        """Return whether the model needs a member of a class: a method, a field or a constant of a config."""
        if isinstance(member, ast.AnnAssign) and issubclass(cls, PreTrainedConfig):
            name, reads = ast.unparse(member.target), getattr(self.config, "reads", None)
            is_read = name not in self.fixed and (reads is None or reads(name))
            return is_read or name in self.words
        if isinstance(member, ast.FunctionDef):
            name, found = member.name, {type(node) for node in ast.walk(member)}
            if name.startswith("validate_"):  # checks that do not apply to the config are folded
                return name not in LEFT_OUT and not found.isdisjoint((ast.Raise, ast.Call))
            if only_passes_on(member) or ast.unparse(member.body[-1]) == "raise NotImplementedError":
                return False  # the classes that are built override it
            if name.startswith("__") or (issubclass(cls, PreTrainedModel) and not name.startswith("_")):
                return True  # for users
        elif isinstance(member, ast.Assign | ast.AnnAssign):
            name, is_constant = bound_names(member)[0], isinstance(member.value, ast.Constant)
            is_part = issubclass(cls, nn.Module) and not issubclass(cls, PreTrainedModel)
            if not (is_constant if issubclass(cls, PreTrainedConfig) else is_part and member.value):
                return True  # transformers may read it
        else:
            return True
        outside = (base for base in cls.__mro__[1:] if base.__module__.partition(".")[0] != ROOT)
        return name in self.words or any(hasattr(base, name) for base in outside)

    def _default(self, field: str) -> str | None:
        """Return the new default of a field, whose old one may be cut from the option's words."""
        value = getattr(self.config, field, None)
        if field in self.fixed:
            return repr(value)
        if field not in OPTIONS or value is None or field in UNCUT:
            return None
        derive = self.config.derived_fields.get(field)
        return None if derive is not None and derive(self.config) == value else json.dumps(value)


def only_passes_on(method: ast.FunctionDef) -> bool:
    """Return whether a method only calls the one that it overrides, with the same arguments."""
    given = [argument.arg for argument in method.args.args[1:]]
    given += [f"{stars}{more.arg}" for stars, more in (("*", method.args.vararg), ("**", method.args.kwarg)) if more]
    call = f"super().{method.name}({', '.join(given)})"
    statements = [ast.unparse(node) for node in method.body]
    name = statements[-1].removeprefix("return ")
    return statements in ([call], [f"return {call}"], [f"{name} = {call}", f"return {name}"])


def shortened(source: Source, table: Any, kept: list[str]) -> str:
    """Return the text of a table with the entries of some words."""
    if isinstance(table, ast.Subscript):
        return f"Literal[{', '.join(map(json.dumps, kept))}]"
    pairs = [(key.value, value) for key, value in zip(table.keys, table.values) if key.value in kept]
    entries = [f"{json.dumps(key)}: {source.text_of(value)}" for key, value in pairs]
    long = any("\n" in entry for entry in entries) or len(", ".join(entries)) > 60
    return "{\n    " + ",\n    ".join(entries) + ",\n}" if long else "{" + ", ".join(entries) + "}"


def constants(config: VanillaConfig) -> dict[str, Any]:
    """Return the class attributes that all configs of a class share."""
    found = {name: value for cls in reversed(type(config).__mro__) for name, value in vars(cls).items()}
    return {
        name: value
        for name, value in found.items()
        if name not in vars(config) and isinstance(value, bool | int | str | None)
    } | {"is_encoder_decoder": config.is_encoder_decoder}


def fixed_fields(config: VanillaConfig) -> dict[str, Any]:
    """Return the fields that a config does not use, with value `None`, false or 0, except those that may be set later.

    Empty lists are not returned: they cannot be the default of a field.
    """
    inherited = {field.name for field in dataclasses.fields(PreTrainedConfig)}
    names = {field.name for field in dataclasses.fields(config)} - inherited
    values = {name: getattr(config, name) for name in sorted(names - config.derived_fields.keys() - OPTIONS.keys())}
    unused = {name: value for name, value in values.items() if not value and not isinstance(value, list)}
    return {name: value for name, value in unused.items() if not re.search(CHANGING, name)}


def types_in_models(config: VanillaConfig, classes: list[type]) -> set[type]:
    """Return the classes of all modules in the models of a config, and their bases."""
    found: set[type] = set(classes)
    # Some parts are replaced before a model is finished
    with register_module_module_registration_hook(lambda module, name, part: found.add(type(part))):
        for cls in classes:
            # A head may not fit the config
            if issubclass(cls, PreTrainedModel):
                with suppress(ValueError), torch.device("meta"):
                    cls(copy.deepcopy(config))
    return {base for cls in found for base in cls.__mro__}


@cache
def definition_text(definition: Definition) -> tuple[str, frozenset[str]]:
    """Return the text of a definition, and the words in it."""
    module = read_module(definition.module)
    text = module.text[module.offsets[definition.first] : module.offsets[definition.last]].decode()
    return text, frozenset(re.findall(r"\w+", text))


@cache
def names_and_words(text: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names that a text reads, and the attributes that it names, also in strings."""
    words = (getattr(node, "attr", getattr(node, "value", None)) for node in ast.walk(ast.parse(text)))
    return frozenset(free_names(text)), frozenset(word for word in words if isinstance(word, str))
