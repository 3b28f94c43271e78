"""The command `vanillaformer`: one subcommand per program of `vanillaformer.scripts`.

This module stands beside the package, not in it: `import vanillaformer` loads torch and transformers, which takes
seconds, and help pages and errors in options, files and columns need neither.
"""

import argparse
import atexit
import difflib
import gc
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from typing import Any

PROGRAMS = {
    "train-translation": "Train an encoder-decoder to translate (or train-seq2seq).",
    "train-language-model": "Train a decoder (GPT) or an encoder (BERT) on texts.",
    "train-classifier": "Train a text classifier, new or from a language model.",
    "train-token-classifier": "Train a classifier of tokens: names, parts of speech.",
    "train-image-classifier": "Train a classifier of images, or a masked image model.",
    "generate": "Use a trained model: translate, continue text, classify, chat.",
    "compare": "Compare variants of a training, several seeds under one budget.",
    "explore": "Show what a trained model does inside, as figures on a page.",
    "serve": "Serve a language model by the OpenAI protocol.",
    "convert": "Convert a model to or from a native architecture.",
    "export": "Export a model to CTranslate2, ONNX or GGUF.",
    "eject": "Write the code of a model or preset as two files.",
    "push": "Push a saved model to the Hugging Face Hub.",
    "demo": "Train, score and use a small translator in a few minutes.",
}
"""The subcommands; the program of each is the module of that name, with underscores."""
OTHER_NAMES = {"train-seq2seq": "train-translation"}

# Columns in place of others
REPLACES = {"turns_column": "text_column", "labels_column": "label_column", "score_column": "label_column"}

USAGE = "usage: vanillaformer [-h] [--version] <command> [options]"
WRONG_USAGE = 2
NEXT = f"""{USAGE}

Where to begin:
  vanillaformer demo                       train and use a small translator, in about four minutes on two cores
  vanillaformer train-classifier --train_file reviews.csv --text_column review --label_column stars
                                           train on your own file; other tasks: vanillaformer --help
  vanillaformer train-classifier --help    the options of a command
  docs/tutorial.md                         from a CSV file to a model on the Hub"""


def help_text() -> str:
    """Return what `vanillaformer --help` prints."""
    width = max(map(len, PROGRAMS))
    commands = "\n".join(f"  {name:{width}}  {text}" for name, text in PROGRAMS.items())
    return f"""{USAGE}

Train, use, convert and deploy Transformers composed by configuration.

commands:
{commands}

options:
  -h, --help  Show this help; `vanillaformer <command> --help` lists a command's options.
  --version   Show the version."""


def answer_early(program: str, words: list[str]) -> None:
    """Exit after printing the `--help` page or an error in options, files or columns, if there is one; else return.

    console/options.json, made by tools/tables.py, has the options of all programs for one version of transformers.
    """
    from vanillaformer.console import help_page
    from vanillaformer.console.reporting import redact_tokens

    table = json.loads(Path(help_page.__file__).with_name("options.json").read_text(encoding="utf-8"))
    is_click = program == "serve" and not {"-h", "--help"} & set(words)  # its parser is not from argparse
    if table["transformers"] != version("transformers") or "--help-all" in words or is_click:
        return
    entries = table["programs"]
    options = {name: [table["options"][each] for each in entry["options"]] for name, entry in entries.items()}
    entry = entries[program := "train-translation" if program == "demo" else program]
    takes_settings = entry["usage"].startswith("[settings")
    settings = words[0] if takes_settings and words and words[0].endswith((".yaml", ".yml", ".json")) else None
    page = help_page.HelpPage((), entry["notes"], entry["names"])
    prog, usage = Path(sys.argv[0]).name, f"%(prog)s {entry['usage']}"
    parser = argparse.ArgumentParser(prog, usage, add_help=False, allow_abbrev=not takes_settings)
    parser.format_help = lambda: page.text(parser.format_usage(), entry["description"])  # type: ignore[method-assign]
    for names, how, described in options[program]:
        page.add(action := parser.add_argument(*names, **how))
        action.required = action.required and settings is None
        page.described |= {} if described is None else {action.dest: described}
    given, unknown = parser.parse_known_args(words[1:] if settings else words)
    if unknown:
        trainings = [name for name in entries if entry["names"] and name.startswith("train-") and name != program]
        others = {f"vanillaformer {name}": fields(options[name]) for name in trainings}
        of_configs = [text.partition(" ")[0] for texts in entry["names"].values() for text in texts]
        hint = help_page.Names(fields(options[program]), lambda: others, of_configs).hint(*unknown[:2])
        parser.error(redact_tokens(f"unrecognized arguments: {' '.join(unknown)}{hint if takes_settings else ''}"))
    try:
        check_files(vars(given), settings)
    except ValueError as error:
        raise SystemExit(f"{prog}: {redact_tokens(' '.join(str(error).split()))}") from None


def fields(options: Iterable[Any]) -> dict[str, str]:
    """Return the names of options, with underscores and without negations."""
    words = (word for words, *_ in options for word in words if not word.startswith(("--no_", "--help", "-h")))
    return {word.lstrip("-"): word for word in words if "-" not in word.lstrip("-")}


def check_files(given: Mapping[str, Any], settings: str | None) -> None:
    """Raise ValueError for a file that does not exist, or a training file that lacks a named column."""
    from vanillaformer.data.formats import READERS, ReadOptions, format_of, matching_files

    for path in filter(None, (settings, given.get("plan"))):
        if not Path(path).is_file():
            raise ValueError(f"settings file {path!r} does not exist or is not a file")
    if "image_column" in given:  # its files may be folders
        return
    files = [f"{split}{side}_file" for split in ("train", "validation", "test") for side in ("", "_target")]
    found = {option: matching_files(option, name) for option in files for name in given.get(option) or ()}
    has_columns = "train_file" in found and "train_target_file" not in found
    if has_columns and settings is None and given["csv_separator"] is None:
        path = found["train_file"][0]
        columns = {option: name for option, name in given.items() if option.endswith("_column") and name}
        replaced = {other for option, other in REPLACES.items() if option in columns}
        columns = {option: name for option, name in columns.items() if option not in replaced}
        if path.suffix in (".csv", ".tsv", ".jsonl"):
            with suppress(UnicodeError, OSError):  # reported when all rows are read
                next(READERS[format_of(path)]((path,), columns, ReadOptions(None, given["csv_quoting"])), None)


def load_program(name: str, words: list[str]) -> Any:
    """Import the module of a subcommand, after the answers that need no library.

    Imported objects are never garbage: collections during the import would take a tenth of its time, and later
    collections more, again and again.
    """
    gc.disable()
    try:
        if "vanillaformer" not in sys.modules and (spec := find_spec("vanillaformer")) and spec.loader:
            package = sys.modules["vanillaformer"] = module_from_spec(spec)  # executing it loads the models
            answer_early(name, words)
            spec.loader.exec_module(package)
        return import_module(f"vanillaformer.scripts.{name.replace('-', '_')}")
    finally:
        gc.freeze()
        gc.enable()
        atexit.register(release)


def release() -> None:
    """Release imported objects, a second's work, where triton is loaded, which reports those left as leaks."""
    if "triton" in sys.modules:
        gc.unfreeze()


def main(argv: Sequence[str] | None = None) -> None:
    """Run a subcommand.

    Raises:
        SystemExit: The command is unknown (exit status 2), or its program ended with an exit status.
    """
    command, *options = (sys.argv[1:] if argv is None else argv) or [""]
    if not command:
        print(NEXT)
    elif command in ("-h", "--help", "help"):
        print(help_text())
    elif command == "--version":
        print(f"vanillaformer {version('vanillaformer')}")
    elif (name := command.replace("_", "-")) in PROGRAMS | OTHER_NAMES:
        sys.argv = [f"vanillaformer {name}", *options]  # usage and error messages begin with this name
        load_program(OTHER_NAMES.get(name, name), options).main(options)
    else:
        similar = [name for name in PROGRAMS if name.startswith(command)]
        similar = similar or difflib.get_close_matches(command, PROGRAMS, n=1, cutoff=0.3)
        hint = f"; did you mean {' or '.join(map(repr, similar))}?" if similar else ""
        wrong = f"unknown command {command!r}{hint} (vanillaformer --help lists the commands)"
        print(f"{USAGE}\nvanillaformer: error: {wrong}", file=sys.stderr)
        raise SystemExit(WRONG_USAGE)


if __name__ == "__main__":
    main()
