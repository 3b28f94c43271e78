"""Convert a saved model without loss: ours to a native architecture of transformers, or a native one to ours.

Both models compute logits on the same random input, and the new folder only appears if they agree. Tokenizer,
generation config and model card are copied. A state dict has no model to compare with.

Examples:
  vanillaformer convert runs/lm gpt2-folder --to gpt2
  vanillaformer convert gpt2 our-folder --from
  vanillaformer convert ckpt.pt our-folder --from_state_dict nanogpt --set num_attention_heads=8
"""

from collections.abc import Sequence

from vanillaformer.console.program import CommandParser, hide_progress_bars, program
from vanillaformer.conversion import ARCHITECTURES, from_state_dict
from vanillaformer.conversion.folders import convert_folder
from vanillaformer.conversion.state_dicts import SOURCES
from vanillaformer.hub.atomic_files import new_folder
from vanillaformer.training.arguments import ModelArguments


def build_parser() -> CommandParser:
    parser = CommandParser(__doc__, "SRC DST [--option value ...]")
    files = parser.add_argument_group("Input and output")
    files.add_argument("source", metavar="SRC", help="Model to convert (folder, Hub id or file of a state dict)")
    files.add_argument("destination", metavar="DST", help="New folder")
    files.add_argument("--revision", help="Branch, tag or commit of SRC on the Hub")
    group = parser.add_argument_group("Conversion")
    direction = group.add_mutually_exclusive_group()
    words = f"Native architecture (default: the one that fits): {', '.join(ARCHITECTURES)}"
    direction.add_argument("--to", choices=list(ARCHITECTURES), help=words)
    direction.add_argument("--from", dest="back", action="store_true", help="Convert a native model to ours")
    words = "Library that saved SRC, a state dict"
    direction.add_argument("--from_state_dict", "--from-state-dict", choices=list(SOURCES), help=words)
    words = "Config fields that the state dict does not determine"
    group.add_argument("--set", nargs="+", default=[], metavar="FIELD=VALUE", help=words)
    return parser


@program
def main(argv: Sequence[str] | None = None) -> None:
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if arguments.set and not arguments.from_state_dict:
        parser.error("--set only applies to --from_state_dict")
    if arguments.revision and arguments.from_state_dict:
        parser.error("--revision does not apply to --from_state_dict, which reads a file")
    hide_progress_bars()
    if arguments.from_state_dict:
        with new_folder(arguments.destination) as folder:
            options = ModelArguments(overrides=arguments.set).config_overrides()
            model = from_state_dict(arguments.source, arguments.from_state_dict, **options)
            model.save_pretrained(folder)
        print(f"{arguments.from_state_dict} -> {type(model).__name__}, {model.num_parameters():,} parameters")
        print(f"written: {arguments.destination}")
        return
    done = convert_folder(arguments.source, arguments.destination, arguments.to, arguments.back, arguments.revision)
    print(f"{done.source} -> {done.target}, {done.parameters:,} parameters")
    print(f"logits on random input: relative error {done.error:.1e}")
    if done.lost:
        print(f"settings of training that {done.target} does not have: {', '.join(done.lost)}")
    print(f"carried over: {', '.join(done.carried) or 'no tokenizer or image processor found'}")
    print(f"written: {arguments.destination}")


if __name__ == "__main__":
    main()
