"""The page that `--help` prints: options by group, one line each if it fits."""

import argparse
import dataclasses
import difflib
import shutil
import textwrap
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, NamedTuple

INDENT = 32
WIDTHS = (72, 100)
FEW = 8  # at most so many choices are listed
HELP, OTHERS = "Help", "Other options of transformers"
# Groups in the order of the page; others follow
GROUPS = (
    "Model", "Input and output", "Data", "Tokenizer", "Conversion", "Comparison", "Loss and heads", "Engine",
    "Repository", "Upload", "Server", "Limits of a request", "Output", "Training", "Augmentation", "Loss", "Optimizer",
    "Fine-tuning", "Evaluation and checkpoints", "Beam search", "Search", "Sampling", "Chat", "Logging",
    "Model card and Hub", "Machine", HELP,
)  # fmt: skip


class HelpPage:
    """The options of dataclasses with their descriptions, notes on some, and lists of names at the end, by title.

    An option's group is in its field's metadata, or else the `HELP_GROUP` of the class that declares it. Of
    transformers' own options the page shows those that a class names in `TRANSFORMERS_HELP`, or all on request.
    """

    def __init__(self, types: Sequence[Any], notes: Mapping[str, str], names: Mapping[str, Sequence[str]]):
        self.notes, self.names = notes, names
        self.actions: dict[str, argparse.Action] = {}
        self.described = {
            "help": (HELP, "Show this page"),
            "help_all": (HELP, "Show this page with all options of transformers"),
        }
        """Group and description by field."""
        for kind in types:
            for entry in dataclasses.fields(kind):
                owner = next(base for base in kind.__mro__ if entry.name in vars(base).get("__annotations__", {}))
                if (group := entry.metadata.get("group") or getattr(owner, "HELP_GROUP", None)) is not None:
                    self.described[entry.name] = group, entry.metadata.get("help", "")
            for group, texts in getattr(kind, "TRANSFORMERS_HELP", {}).items():
                self.described |= {name: (group, text) for name, text in texts.items()}

    def add(self, action: argparse.Action) -> None:
        """Store the first action of an option; further ones are for its negation (`--no_...`)."""
        self.actions.setdefault(action.dest, action)

    def text(self, usage: str, description: str, everything: bool = False) -> str:
        """Return the page, after usage and description; with `everything`, it has all options of transformers."""
        width = min(max(shutil.get_terminal_size().columns, WIDTHS[0]), WIDTHS[1])
        groups: dict[str, list[str]] = {group: [] for group in GROUPS}
        complete_page = all(name in self.described for name in self.actions)
        for name, action in self.actions.items():
            if name == "help_all" and complete_page:
                continue
            group, words = self.described.get(name, (OTHERS, action.help or ""))
            if group != OTHERS or everything:
                groups.setdefault(group, []).append(self.entry(name, action, words, width))
        sections = [f"{title}:\n" + "\n".join(entries) for title, entries in groups.items() if entries]
        for title, names in self.names.items():
            if not everything:  # the long page has the values of each
                title, names = f"{title} (values: --help-all)", [name.partition(" ")[0] for name in names]
            lines = textwrap.wrap(", ".join(names), width, initial_indent="  ", subsequent_indent="  ")
            sections.append("\n".join([f"{title}:", *lines]))
        paragraphs = [
            paragraph if "\n  " in paragraph else textwrap.fill(paragraph, width)  # examples stay unchanged
            for paragraph in description.strip().split("\n\n")
        ]
        return "\n\n".join([usage.strip(), *paragraphs, *sections]) + "\n"

    def entry(self, name: str, action: argparse.Action, words: str, width: int) -> str:
        """Return an option and its description, with its values and its default."""
        option, default = f"  {shown_name(action)}", shown_default(action, words)
        if default and len(f"{option} {default}") < INDENT:
            option, default = f"{option} {default}", ""
        words = complete(" ".join(words.split()), action, default)
        words = ": ".join(filter(None, [words, self.notes.get(name)]))
        lines = textwrap.wrap(words, width - INDENT, break_on_hyphens=False) or [""]
        first = f"{option:{INDENT}}{lines[0]}" if len(option) < INDENT else f"{option}\n{'':{INDENT}}{lines[0]}"
        return "\n".join([first.rstrip(), *(f"{'':{INDENT}}{line}" for line in lines[1:])])


class Names(NamedTuple):
    """The names that a program knows."""

    fields: Mapping[str, str]  # by option name
    others: Callable[[], Mapping[str, Container[str]]]  # returns the option names of other programs
    config_fields: Container[str]

    def hint(self, given: str, value: str = "...") -> str:
        """Return a hint on an unknown option: a config field, an option of another program, or a typo."""
        dashes, name = given[: len(given) - len(given.lstrip("-"))], given.lstrip("-").partition("=")[0]
        if (option := name.replace("-", "_")) in self.config_fields:
            value = given.partition("=")[2] or ("..." if value.startswith("--") else value)
            return f": {option} is a field of the model's configuration, --set {option}={value}"
        if programs := [program for program, names in self.others().items() if option in names]:
            return f": {dashes}{name} is an option of {' and '.join(programs)}"
        close = difflib.get_close_matches(name, self.fields, n=1, cutoff=0.5)
        return f"; did you mean {dashes + close[0]!r}?" if close else ""


def shown_name(action: argparse.Action) -> str:
    """Return the spelling of an option that the page shows, a short one if there is one."""
    if "-h" in action.option_strings:
        return "-h, --help"
    first, *others = action.option_strings or [str(action.metavar)]
    aliases = [name for name in others if name.replace("-", "_") != first.replace("-", "_")]
    return aliases[0] if aliases else first


def shown_default(action: argparse.Action, words: str) -> str:
    """Return an option's default as it would be typed; empty if there is none or the description has it."""
    default = action.default
    if action.required or "(default: " in words or default in (None, "", False, argparse.SUPPRESS) or default == []:
        return ""
    if isinstance(default, list):
        return " ".join(map(str, default))
    if isinstance(default, bool):
        return str(default).lower()
    return f"{default:g}" if isinstance(default, float) else str(default)


def complete(words: str, action: argparse.Action, default: str) -> str:
    """Return a description with the option's possible values, and the default if it is not beside the name."""
    if action.required:
        return f"{words} (required)"
    choices = [str(choice) for choice in action.choices or ()]
    if 0 < len(choices) <= FEW:
        words, note, rest = words.partition(" (default: ")
        listed = " or ".join(filter(None, [", ".join(choices[:-1]), choices[-1]]))
        words = f"{words}: {listed}{note}{rest}"
    return f"{words} (default: {default})" if default else words
