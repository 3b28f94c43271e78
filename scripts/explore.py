"""Draw what a trained model computes, for one text or image: attention, stream, predictions, positions.

The figures are written as one page, index.html, and each as PNG with its numbers as CSV. docs/exploring.md says
what they show. An encoder-decoder reads its own output, or --target. With --rows there are figures of the loss on
held-out rows.

Examples:
  vanillaformer explore runs/translation --text 'May 6, 2031'
  vanillaformer explore runs/translation --text 'May 6, 2031' --target '6 mai 2031' --figures lens
  vanillaformer explore runs/image_classification --image photo.png --output_dir look
  vanillaformer explore runs/lm --text 'on Monday' --against 'on Friday' --figures patching
  vanillaformer explore runs/translation --text 'May 6, 2031' --rows test.csv
  vanillaformer explore runs/translation --serve
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import torch

from vanillaformer.console.parsing import yaml_value
from vanillaformer.console.program import CommandParser, program
from vanillaformer.console.reporting import report
from vanillaformer.exploration.attribution import against
from vanillaformer.exploration.examples import Example, image_example, text_example
from vanillaformer.exploration.figures import FIGURES, chosen, draw_all, write_page
from vanillaformer.exploration.losses import Replacement
from vanillaformer.exploration.server import HOST, PORT, serve
from vanillaformer.hub.loading import saved_folder
from vanillaformer.inference.arguments import GenerateArguments
from vanillaformer.inference.images import load_classifier
from vanillaformer.inference.tasks import load
from vanillaformer.inference.text_files import check_text
from vanillaformer.training.hardware import configure_cpu


def build_parser() -> argparse.ArgumentParser:
    parser = CommandParser(__doc__ or "", "MODEL (--text TEXT | --image FILE | ...) [--option value ...]")
    model = parser.add_argument_group("Model")
    model.add_argument("model", metavar="MODEL", help="Model (folder or Hub id)")
    model.add_argument("--revision", help="Branch, tag or commit of the model on the Hub")
    model.add_argument("--device", help="Device: cpu, cuda, ... (default: a GPU if there is one)")
    files = parser.add_argument_group("Input and output")
    action = files.add_mutually_exclusive_group(required=True)
    action.add_argument("--text", help="Draw figures of this text")
    action.add_argument("--image", type=Path, help="Draw figures of this image (file)")
    action.add_argument("--serve", action="store_true", help="Open a browser demo")
    files.add_argument("--target", help="Output that an encoder-decoder reads (default: its own)")
    files.add_argument("--against", metavar="TEXT", help="Second text of as many tokens, for patching")
    names = ", ".join(figure.name for figure in FIGURES)
    files.add_argument("--figures", nargs="+", help=f"Some of {names} (default: all that apply)")
    words = "Folder of the page (default: explore)"
    files.add_argument("--output_dir", type=Path, default=Path("explore"), help=words)
    loss = parser.add_argument_group("Loss and heads")
    loss.add_argument("--rows", metavar="FILE", help="Held-out rows, for ablation and loss: a data file of training")
    loss.add_argument("--rows_target", metavar="FILE", help="Target lines of a .txt file of rows")
    words = "Settings of the data, such as source_column=en (default: those of the run)"
    loss.add_argument("--rows_set", nargs="+", default=[], metavar="NAME=VALUE", help=words)
    loss.add_argument("--num_rows", type=int, default=200, help="Maximum number of rows (default: 200)")
    words = "Ablation: replacement of a head's output (default: zero)"
    loss.add_argument("--replacement", choices=get_args(Replacement), default="zero", help=words)
    server = parser.add_argument_group("Server")
    server.add_argument("--host", default=HOST, help=f"Address to listen on (default: {HOST}, this machine only)")
    server.add_argument("--port", type=int, default=PORT, help=f"Port to listen on (default: {PORT})")
    return parser


def options_of(args: argparse.Namespace) -> GenerateArguments:
    saved_folder(args.model, args.revision, "MODEL")  # its error for an exported model says what opens it
    return GenerateArguments(model_name_or_path=args.model, revision=args.revision, device=args.device)


def open_example(args: argparse.Namespace) -> Example:
    """Return the model with its input, recorded."""
    options = options_of(args)
    if args.image:
        if not args.image.is_file():
            raise ValueError(f"--image {args.image} does not exist or is not a file")
        model, processor = load_classifier(options)
        example = image_example(model, processor, args.image)
        readers: tuple[Any, ...] = (processor,)
    else:
        loaded = load(options)[0]
        with torch.inference_mode():
            example = text_example(loaded, args.text, args.target)
            example.against = against(loaded, example, args.against) if args.against else None
        readers = (loaded.tokenizer, loaded.target_tokenizer)
    example.replacement = args.replacement
    if not args.rows:
        return example
    from vanillaformer.exploration.rows import held_out_rows  # reads data: two seconds to import

    settings = {}
    for entry in args.rows_set:
        name, sign, value = entry.partition("=")
        if not sign:
            raise ValueError(f"--rows_set {entry}: it must be NAME=VALUE")
        settings[name] = yaml_value(f"--rows_set {entry!r}", value)
    how: dict[str, Any] = {"target_file": args.rows_target, "count": args.num_rows, "options": settings}
    folder = saved_folder(args.model, args.revision, "MODEL")
    example.rows = held_out_rows(example.model, readers, args.rows, folder=folder, **how)
    return example


@program
def main(argv: Sequence[str] | None = None) -> None:
    args = build_parser().parse_args(argv)
    chosen(args.figures)
    if args.output_dir.exists() and not args.output_dir.is_dir():
        raise ValueError(f"--output_dir {args.output_dir} is not a directory")
    check_text("--text", [args.text or ""])
    configure_cpu()
    if args.num_rows < 1:
        raise ValueError(f"--num_rows {args.num_rows}: it must be at least 1")
    if args.image and args.against:
        raise ValueError(f"--against {args.against} is a second text, for --text")
    for name in ("target", "figures", "rows", "against"):
        value = getattr(args, name)
        if value and not (args.text or args.image):
            given = " ".join(value) if isinstance(value, list) else value
            raise ValueError(f"--{name} {given} is for figures, which need --text or --image")
    if args.serve:
        return serve(options_of(args), args.host, args.port)
    example = open_example(args)
    drawn, missing = draw_all(example, args.figures)
    page = write_page(example, drawn, missing, args.output_dir, args.model)
    report(f"output: {example.output}")
    for figure, drawings in drawn:
        report(f"{figure.name}:")
        for drawing in drawings:
            report(f"  {drawing.caption}")
    for name, reason in missing.items():
        report(f"without {name}: {reason}")
    report(f"The page is {page}; its pictures and their numbers are in {args.output_dir / 'figures'}.")


if __name__ == "__main__":
    main()
