"""Make a model ready for another engine: write it in that engine's form and compare the two before it counts as done.

    vanillaformer-export runs/translation deploy/translation --engine ctranslate2 --quantization int8

SRC is a folder or Hub id of one of our models, or of a native one that converts to ours; DST is a new folder, which
`vanillaformer-generate --model DST` runs like any other model. Tokenizers and generation settings go along.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, PreTrainedTokenizerBase
from transformers.utils import logging

from vanillaformer import modeling
from vanillaformer.conversion import from_native
from vanillaformer.conversion.exports import EXPORTERS, export
from vanillaformer.tokenization import load_pair


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("source", metavar="SRC", help="folder or Hub id of the model")
    made.add_argument("target", metavar="DST", help="new folder")
    made.add_argument("--engine", required=True, choices=list(EXPORTERS), help="what it is for")
    allowed = "; ".join(f"{name}: {', '.join(exporter.quantizations)}" for name, exporter in EXPORTERS.items())
    made.add_argument("--quantization", help=f"how the weights are stored (default: as they are) - {allowed}")
    return made


def load_model(path: str) -> Any:
    """Return a model of ours in float32; a native one is converted.

    Raises:
        ValueError: There is none, or its architecture is none that can be exported.
    """
    try:
        config = AutoConfig.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"SRC {path} is no model: {error}") from error
    architecture = next(iter(config.architectures or []), "none")
    model_class = getattr(modeling, architecture, None)
    if model_class is None:
        return from_native(path).float().eval()
    return model_class.from_pretrained(path, dtype=torch.float32).eval()


def load_tokenizers(path: str) -> tuple[PreTrainedTokenizerBase | None, PreTrainedTokenizerBase | None]:
    """Return the tokenizers of source and target, `None` for both if the model has none."""
    if Path(path).is_dir() and not (Path(path) / "tokenizer_config.json").is_file():
        return None, None
    return load_pair(path)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the program."""
    arguments = parser().parse_args(argv)
    if not sys.stderr.isatty():
        logging.disable_progress_bar()
    try:
        model = load_model(arguments.source)
        tokenizer, target_tokenizer = load_tokenizers(arguments.source)
        checked = export(
            model,
            arguments.target,
            arguments.engine,
            tokenizer=tokenizer,
            target_tokenizer=target_tokenizer,
            quantization=arguments.quantization,
        )
    except (ValueError, ImportError) as error:
        sys.exit(f"export.py: {error}")
    without = "" if tokenizer is not None else ", without a tokenizer"
    print(f"{arguments.target}: {type(model).__name__} for {arguments.engine}{without}; checked: {checked}")


if __name__ == "__main__":
    main()
