"""Export a model for another engine, and compare the outputs of the two before the folder appears.

    vanillaformer export runs/translation deploy/translation --engine ctranslate2 --quantization int8

SRC is a folder or Hub id of one of our models, or of a native one that converts to ours; DST is a new folder, which
`vanillaformer generate --model DST` runs like any other model. Tokenizers and generation settings are included.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.utils import disable_progress_bars
from transformers import PreTrainedTokenizerBase
from transformers.utils import logging

from vanillaformer import modeling
from vanillaformer.conversion import from_native
from vanillaformer.conversion.exports import EXPORTERS, export
from vanillaformer.conversion.folders import carried_files
from vanillaformer.hub.loading import open_config, open_model, saved_folder
from vanillaformer.hub.tokenizers import open_tokenizers
from vanillaformer.scripts.console import program


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("source", metavar="SRC", help="folder or Hub id of the model")
    made.add_argument("target", metavar="DST", help="new folder")
    made.add_argument("--revision", help="Hub: branch, tag or commit of SRC")
    engines = "; ".join(f"{name}: {exporter.info.models}" for name, exporter in EXPORTERS.items())
    made.add_argument("--engine", required=True, choices=list(EXPORTERS), help=f"format of the export - {engines}")
    allowed = "; ".join(f"{name}: {', '.join(exporter.quantizations)}" for name, exporter in EXPORTERS.items())
    made.add_argument("--quantization", help=f"data type of the weights (default: float32) - {allowed}")
    return made


def load_model(folder: Path, where: str) -> Any:
    """Return a model of ours in float32; a native one is converted.

    Raises:
        ValueError: Its architecture is none that can be exported, or its files do not belong together.
    """
    config = open_config(folder)
    architecture = next(iter(config.architectures or []), "none")
    model_class = getattr(modeling, architecture, None)
    if model_class is None:
        return from_native(folder).float().eval()
    return open_model(model_class, folder, where, dtype=torch.float32).eval()


def load_tokenizers(
    folder: Path, config: Any, where: str
) -> tuple[PreTrainedTokenizerBase | None, PreTrainedTokenizerBase | None]:
    """Return the tokenizers of source and target, `None` for both if the model has none.

    Raises:
        ValueError: They cannot be opened, or what would be passed on with them is a link out of the folder.
    """
    carried_files(folder)
    if not (folder / "tokenizer_config.json").is_file():
        return None, None
    return open_tokenizers(folder, config, where)


@program
def main(argv: Sequence[str] | None = None) -> None:
    """Run the program."""
    arguments = parser().parse_args(argv)
    if not sys.stderr.isatty():
        logging.disable_progress_bar()
        disable_progress_bars()
    folder = saved_folder(arguments.source, arguments.revision, "SRC")
    model = load_model(folder, f"SRC {arguments.source}")
    tokenizer, target_tokenizer = load_tokenizers(folder, model.config, f"SRC {arguments.source}")
    checked = export(
        model,
        arguments.target,
        arguments.engine,
        tokenizer=tokenizer,
        target_tokenizer=target_tokenizer,
        quantization=arguments.quantization,
    )
    without = "" if tokenizer is not None else ", without a tokenizer"
    print(f"{arguments.target}: {type(model).__name__} for {arguments.engine}{without}; checked: {checked}")


if __name__ == "__main__":
    main()
