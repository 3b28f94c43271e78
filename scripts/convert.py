"""Convert a saved model without loss: ours to a native architecture of transformers, or a native one to ours.

    vanillaformer convert runs/lm gpt2-folder --to gpt2    one of our models becomes a GPT2LMHeadModel
    vanillaformer convert runs/lm native-folder            ... or the native model that its config fits, if just one
    vanillaformer convert gpt2 our-folder --from           a native model, a folder or Hub id, becomes ours
    vanillaformer convert ckpt.pt our-folder --from-state-dict nanogpt --set num_attention_heads=8 hidden_act=gelu
                                                           a state dict in a file becomes ours; --set gives the fields
                                                           that weights do not tell

Both models compute logits on the same random input, and only if they agree the new folder appears. Tokenizer,
generation config and model card are copied. A state dict has no model to compare with.
"""

import argparse
import sys
from collections.abc import Sequence

from huggingface_hub.utils import disable_progress_bars
from transformers.utils import logging

import vanillaformer  # noqa: F401 - makes the Auto classes know the models
from vanillaformer.conversion import ARCHITECTURES, from_state_dict
from vanillaformer.conversion.folders import convert_folder
from vanillaformer.conversion.state_dicts.loading import SOURCES
from vanillaformer.hub.new_folder import new_folder
from vanillaformer.scripts.console import program
from vanillaformer.training.arguments import ModelArguments


def import_file(source: str, destination: str, kind: str, fields: list[str]) -> None:
    """Save our model with the weights in a file of a model outside transformers."""
    with new_folder(destination) as folder:
        options = ModelArguments(overrides=fields).config_overrides()
        model = from_state_dict(source, kind, **options)
        model.save_pretrained(folder)
    print(f"{kind} -> {type(model).__name__}, {model.num_parameters():,} parameters")
    print(f"written: {destination}")


@program
def main(argv: Sequence[str] | None = None) -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", metavar="SRC", help="folder or Hub id of the model to convert")
    parser.add_argument("destination", metavar="DST", help="new folder for the result")
    parser.add_argument("--revision", help="Hub: branch, tag or commit of SRC")
    direction = parser.add_mutually_exclusive_group()
    direction.add_argument(
        "--to", metavar="ARCH", choices=list(ARCHITECTURES), help=f"one of {', '.join(ARCHITECTURES)}"
    )
    direction.add_argument("--from", dest="back", action="store_true", help="the source is native: make it ours")
    direction.add_argument("--from-state-dict", metavar="SOURCE", choices=list(SOURCES), help=", ".join(SOURCES))
    parser.add_argument("--set", nargs="+", default=[], metavar="FIELD=VALUE", help="with --from-state-dict")
    arguments = parser.parse_args(argv)
    if arguments.set and not arguments.from_state_dict:
        parser.error("--set only applies to --from-state-dict")
    if arguments.revision and arguments.from_state_dict:
        parser.error("--revision does not apply to --from-state-dict, which reads a file")
    if not sys.stderr.isatty():
        logging.disable_progress_bar()
        disable_progress_bars()
    if arguments.from_state_dict:
        return import_file(arguments.source, arguments.destination, arguments.from_state_dict, arguments.set)
    done = convert_folder(arguments.source, arguments.destination, arguments.to, arguments.back, arguments.revision)
    print(f"{done.source} -> {done.target}, {done.parameters:,} parameters")
    print(f"logits on random input: relative error {done.error:.1e}")
    if done.lost:
        print(f"settings of training that {done.target} does not have: {', '.join(done.lost)}")
    print(f"carried over: {', '.join(done.carried) or 'no tokenizer found'}")
    print(f"written: {arguments.destination}")


if __name__ == "__main__":
    main()
