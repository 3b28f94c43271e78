"""The command `vanillaformer`: one subcommand per program of `vanillaformer.scripts`.

This module stands beside the package, not in it: `import vanillaformer` loads torch and transformers, which takes
seconds, and `vanillaformer --help` needs neither.
"""

import difflib
import gc
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
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

USAGE = "usage: vanillaformer [-h] [--version] <command> [options]"
WRONG_USAGE = 2


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


def load_program(name: str) -> Any:
    """Import the module of a subcommand.

    What is imported is never garbage: looking for some in it meanwhile takes a tenth of the time, and later, again and
    again, more.
    """
    gc.disable()
    try:
        return import_module(f"vanillaformer.scripts.{name.replace('-', '_')}")
    finally:
        gc.freeze()
        gc.enable()


def main(argv: Sequence[str] | None = None) -> None:
    """Run a subcommand.

    Raises:
        SystemExit: The command is unknown (exit status 2), or its program ended with an exit status.
    """
    command, *options = (sys.argv[1:] if argv is None else argv) or [""]
    if command in ("-h", "--help", "help"):
        print(help_text())
    elif command == "--version":
        print(f"vanillaformer {version('vanillaformer')}")
    elif (name := command.replace("_", "-")) in PROGRAMS | OTHER_NAMES:
        sys.argv = [f"vanillaformer {name}", *options]  # the name that usage and error messages begin with
        load_program(OTHER_NAMES.get(name, name)).main(options)
    else:
        similar = [name for name in PROGRAMS if name.startswith(command)]
        similar = similar or difflib.get_close_matches(command, PROGRAMS, n=1, cutoff=0.3)
        hint = f"; did you mean {' or '.join(map(repr, similar))}?" if similar else ""
        wrong = f"unknown command {command!r}{hint}" if command else "a command is required"
        print(f"{USAGE}\nvanillaformer: error: {wrong} (vanillaformer --help lists the commands)", file=sys.stderr)
        raise SystemExit(WRONG_USAGE)


if __name__ == "__main__":
    main()
