"""Convert a saved model without loss: ours to a native architecture of transformers, or a native one to ours.

convert.py runs/lm gpt2-folder --to gpt2     one of our models becomes a GPT2LMHeadModel
convert.py runs/lm native-folder             ... or the native model that its config fits, if there is just one
convert.py gpt2 our-folder --from            a native model, a folder or Hub id, becomes ours

Both models compute logits on the same random input, and only if they agree the new folder appears. Tokenizer,
generation config and model card come along.
"""

import argparse
import sys
from collections.abc import Sequence

from transformers.utils import logging

import vanillaformer  # noqa: F401 - makes the Auto classes know the models
from vanillaformer.conversion import ARCHITECTURES
from vanillaformer.conversion.folders import convert_folder


def main(argv: Sequence[str] | None = None) -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", metavar="SRC", help="folder or Hub id of the model to convert")
    parser.add_argument("destination", metavar="DST", help="new folder for the result")
    direction = parser.add_mutually_exclusive_group()
    direction.add_argument(
        "--to", metavar="ARCH", choices=list(ARCHITECTURES), help=f"one of {', '.join(ARCHITECTURES)}"
    )
    direction.add_argument("--from", dest="back", action="store_true", help="the source is native: make it ours")
    arguments = parser.parse_args(argv)
    if not sys.stderr.isatty():
        logging.disable_progress_bar()
    try:
        done = convert_folder(arguments.source, arguments.destination, arguments.to, arguments.back)
    except ValueError as error:
        sys.exit(f"convert.py: {error}")
    print(f"{done.source} -> {done.target}, {done.parameters:,} parameters")
    print(f"logits on random input: relative error {done.error:.1e}")
    print(f"carried over: {', '.join(done.carried) or 'no tokenizer found'}")
    print(f"written: {arguments.destination}")


if __name__ == "__main__":
    main()
