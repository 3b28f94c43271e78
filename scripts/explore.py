"""Show what a trained model does inside, for one text or image: attention, stream, predictions, positions.

The figures are written as one page, index.html, and each as PNG with its numbers as CSV. docs/exploring.md says
what they show. An encoder-decoder reads its own output, or --target.

Examples:
  vanillaformer explore runs/translation --text 'May 6, 2031'
  vanillaformer explore runs/translation --text 'May 6, 2031' --target '6 mai 2031' --figures attention
  vanillaformer explore runs/image_classification --image photo.png --output_dir look
  vanillaformer explore runs/translation --serve
  vanillaformer explore user/dates-en-de --space dates-en-de
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch

import vanillaformer  # noqa: F401 - makes the Auto classes know the models
from vanillaformer.exploration.browser.server import HOST, PORT, serve
from vanillaformer.exploration.browser.space import write_space
from vanillaformer.exploration.examples import Example, image_example, text_example
from vanillaformer.exploration.figures import FIGURES, chosen, draw_all
from vanillaformer.exploration.page import write_page
from vanillaformer.hub.loading import saved_folder
from vanillaformer.hub.reporting import report
from vanillaformer.inference.arguments import GenerateArguments
from vanillaformer.inference.images import load_classifier
from vanillaformer.inference.tasks import load
from vanillaformer.inference.text_files import check_text
from vanillaformer.scripts.console import CommandParser, program
from vanillaformer.training.machine import configure_cpu


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the program's arguments."""
    parser = CommandParser(
        __doc__ or "", "MODEL (--text TEXT | --image FILE | --serve | --space FOLDER) [--option value ...]"
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("model", help="model (folder or Hub id)")
    parser.add_argument("--revision", help="branch, tag or commit of the model on the Hub")
    source = parser.add_argument_group("Input").add_mutually_exclusive_group(required=True)
    source.add_argument("--text", help="text to look at")
    source.add_argument("--image", type=Path, help="image to look at (file)")
    source.add_argument("--serve", action="store_true", help="serve a page in the browser that asks the model")
    source.add_argument("--space", type=Path, metavar="FOLDER", help="write that page as a Space of the Hub")
    parser.add_argument("--target", help="right output of an encoder-decoder (default: its own)")
    output = parser.add_argument_group("Output")
    output.add_argument(
        "--figures", nargs="+", help=f"figures: {', '.join(each.name for each in FIGURES)} (default: all)"
    )
    output.add_argument(
        "--output_dir", type=Path, default=Path("explore"), help="folder to write to (default: explore)"
    )
    server = parser.add_argument_group("Server")
    server.add_argument("--host", default=HOST, help=f"address to listen on (default: {HOST}, this machine only)")
    server.add_argument("--port", type=int, default=PORT, help=f"port to listen on (default: {PORT})")
    parser.add_argument("--device", help="device: cpu, cuda, ... (default: a GPU if there is one)")
    return parser


def options_of(args: argparse.Namespace) -> GenerateArguments:
    """Return the model as `vanillaformer generate` takes it."""
    saved_folder(args.model, args.revision, "MODEL")  # whose message on an exported model says what opens it
    return GenerateArguments(model_name_or_path=args.model, revision=args.revision, device=args.device)


def open_example(args: argparse.Namespace) -> Example:
    """Return the model with its input, recorded."""
    options = options_of(args)
    if args.image:
        if not args.image.is_file():
            raise ValueError(f"--image {args.image} does not exist or is not a file")
        return image_example(*load_classifier(options), args.image)
    with torch.inference_mode():
        return text_example(load(options)[0], args.text, args.target)


@program
def main(argv: Sequence[str] | None = None) -> None:
    """Run the program."""
    args = build_parser().parse_args(argv)
    chosen(args.figures)
    if args.output_dir.exists() and not args.output_dir.is_dir():
        raise ValueError(f"--output_dir {args.output_dir} is not a directory")
    check_text("--text", [args.text or ""])
    configure_cpu()
    if args.serve:
        serve(options_of(args), args.host, args.port)
    elif args.space:
        names = write_space(options_of(args), args.space)
        report(f"{args.space} is a Space, with {', '.join(names)}; its README.md says how to put it on the Hub.")
    else:
        write_figures(args)


def write_figures(args: argparse.Namespace) -> None:
    """Write the figures of one input."""
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
