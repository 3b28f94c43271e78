"""Export a model for another engine, and compare the outputs of the two before the folder appears.

SRC is a folder or Hub id of one of our models, or of a native one that converts to ours; DST is a new folder, which
`vanillaformer generate --model DST` runs like any other model. Tokenizers, image processor and generation settings are
included. With --validation_file both are scored on the same held-out rows: what rounded weights cost, and what they
gain in speed.

Examples:
  vanillaformer export runs/translation deploy/translation --engine ctranslate2 --quantization int8
  vanillaformer export runs/reviews deploy/reviews --engine onnx --validation_file held_out.csv
  vanillaformer export runs/image_classification deploy/images --engine onnx
  vanillaformer export gpt2 deploy/gpt2 --engine gguf --quantization q8_0
  vanillaformer export runs/translation deploy/page --engine web
"""

from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from vanillaformer.console.program import CommandParser, hide_progress_bars, program
from vanillaformer.conversion.exports import EXPORTERS, export_folder
from vanillaformer.data.arguments import MARKS

COLUMNS = ("source_column", "target_column", "text_column", "label_column")


def build_parser() -> CommandParser:
    parser = CommandParser(__doc__, "SRC DST --engine ENGINE [--option value ...]")
    files = parser.add_argument_group("Input and output")
    files.add_argument("source", metavar="SRC", help="Model (folder or Hub id)")
    files.add_argument("target", metavar="DST", help="New folder")
    files.add_argument("--revision", help="Branch, tag or commit of SRC on the Hub")
    engine = parser.add_argument_group("Engine")
    models = "; ".join(f"{name}: {exporter.info.models}" for name, exporter in EXPORTERS.items())
    engine.add_argument("--engine", required=True, choices=list(EXPORTERS), help=f"Engine. {models}")
    allowed = "; ".join(f"{name}: {', '.join(exporter.quantizations)}" for name, exporter in EXPORTERS.items())
    engine.add_argument("--quantization", help=f"Data type of the weights (default: the first). {allowed}")
    words = "Folder in which npm installed @huggingface/transformers, copied to the page of --engine web"
    engine.add_argument("--transformers_js", metavar="FOLDER", help=f"{words} (default: linked from a CDN)")
    rows = parser.add_argument_group("Held-out rows")
    rows.add_argument("--validation_file", nargs="+", help="Files with rows to score the model and its export on")
    rows.add_argument("--validation_target_file", nargs="+", help="Target lines of a .txt --validation_file")
    for column in COLUMNS:
        name = column.removesuffix("_column")
        rows.add_argument(f"--{column}", help=f"Column of the {name} (default: {name})")
    rows.add_argument("--text_pair_column", help="Column of a second text, for pairs")
    rows.add_argument("--turns_column", help="Column of dialogues: lists of turns or of messages")
    rows.add_argument("--task_column", help="Column of the task, put before each source")
    rows.add_argument("--target_lang_column", help="Column of the target's language code")
    rows.add_argument("--max_validation_samples", type=int, help="Maximum number of rows (default: all)")
    return parser


def held_out_rows(args: Namespace) -> Any:
    """Return the rows to score models on, `None` if there are none."""
    others = ("text_pair_column", "turns_column", *MARKS, "validation_target_file", "max_validation_samples")
    options = {name: getattr(args, name) for name in (*COLUMNS, *others)}
    given = {name: value for name, value in options.items() if value is not None}
    if args.validation_file is None:
        if given:
            raise ValueError(f"--{next(iter(given))} needs a --validation_file")
        return None
    from vanillaformer.inference.held_out import HeldOutRows  # slow to import

    return HeldOutRows(args.source, args.revision, args.validation_file, **given)


@program
def main(argv: Sequence[str] | None = None) -> None:
    args = build_parser().parse_args(argv)
    hide_progress_bars()
    rows = held_out_rows(args)
    options = {name: getattr(args, name) for name in ("quantization", "revision", "transformers_js")}
    print(export_folder(args.source, args.target, args.engine, **options))
    if rows is not None:
        print(rows.compare(args.target))


if __name__ == "__main__":
    main()
