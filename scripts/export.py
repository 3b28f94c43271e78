"""Export a model for another engine, and compare the outputs of the two before the folder appears.

SRC is a folder or Hub id of one of our models, or of a native one that converts to ours; DST is a new folder, which
`vanillaformer generate --model DST` runs like any other model. Tokenizers, image processor and generation settings are
included.

Examples:
  vanillaformer export runs/translation deploy/translation --engine ctranslate2 --quantization int8
  vanillaformer export runs/image_classification deploy/images --engine onnx
  vanillaformer export gpt2 deploy/gpt2 --engine gguf --quantization q8_0
"""

from collections.abc import Sequence

from vanillaformer.conversion.exports import EXPORTERS
from vanillaformer.conversion.exports.folders import export_folder
from vanillaformer.scripts.console import CommandParser, hide_progress_bars, program


def parser() -> CommandParser:
    """Return the parser of the command line."""
    made = CommandParser(__doc__, "SRC DST --engine ENGINE [--option value ...]")
    files = made.add_argument_group("Input and output")
    files.add_argument("source", metavar="SRC", help="Model (folder or Hub id)")
    files.add_argument("target", metavar="DST", help="New folder")
    files.add_argument("--revision", help="Branch, tag or commit of SRC on the Hub")
    engine = made.add_argument_group("Engine")
    models = "; ".join(f"{name}: {exporter.info.models}" for name, exporter in EXPORTERS.items())
    engine.add_argument("--engine", required=True, choices=list(EXPORTERS), help=f"Engine. {models}")
    allowed = "; ".join(f"{name}: {', '.join(exporter.quantizations)}" for name, exporter in EXPORTERS.items())
    engine.add_argument("--quantization", help=f"Data type of the weights (default: float32). {allowed}")
    return made


@program
def main(argv: Sequence[str] | None = None) -> None:
    """Run the program."""
    args = parser().parse_args(argv)
    hide_progress_bars()
    print(export_folder(args.source, args.target, args.engine, quantization=args.quantization, revision=args.revision))


if __name__ == "__main__":
    main()
