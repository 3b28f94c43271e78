"""Push a saved model to the Hugging Face Hub: a run's folder, a converted one, an export.

The token is that of `hf auth login`, or HF_TOKEN. Uploaded are weights (safetensors), configs, tokenizers, the model's
code, card, pictures and scores; not optimizers, checkpoints, records or pickles. An interrupted push can be
repeated: files that have arrived are not sent again. Edits of the model card on the Hub stay.

Examples:
  vanillaformer push runs/translation user/dates-en-de
  vanillaformer push runs/translation user/dates-en-de --dry_run
  vanillaformer push runs/translation user/dates-en-de --revision second-try --message 'More data'
"""

from collections.abc import Sequence
from pathlib import Path

from huggingface_hub import constants

import vanillaformer  # noqa: F401 - makes the Auto classes know the models
from vanillaformer.console.program import CommandParser, hide_progress_bars, program
from vanillaformer.hub.pushing import check_name, files_to_push, left_out, push_folder


def parser() -> CommandParser:
    """Return the parser of the command line."""
    made = CommandParser(__doc__, "FOLDER REPO [--option value ...]")
    model = made.add_argument_group("Model")
    model.add_argument("folder", metavar="FOLDER", type=Path, help="Folder of the saved model")
    repository = made.add_argument_group("Repository")
    repository.add_argument("repo", metavar="REPO", help="user/name, or your own name; created if missing")
    repository.add_argument("--revision", metavar="BRANCH", help="Branch to push to; created from main if missing")
    repository.add_argument("--private", action="store_true", default=None, help="Make a new repository a private one")
    upload = made.add_argument_group("Upload")
    upload.add_argument("--pr", action="store_true", help="Open a pull request; for repositories of others too")
    upload.add_argument("--message", default="Upload model", help="Message of the commit")
    upload.add_argument(
        "--dry_run", "--dry-run", action="store_true", help="List the files that would be uploaded, send nothing"
    )
    return made


def listing(files: dict[str, Path], rest: list[str]) -> str:
    """Return the files with their sizes, and what is left out."""
    sizes = {name: path.stat().st_size for name, path in files.items()}
    width = max(map(len, sizes))
    lines = [f"  {name:{width}}  {size:>15,}" for name, size in sizes.items()]
    lines.append(f"  {f'{len(sizes)} files':{width}}  {sum(sizes.values()):>15,} bytes")
    return "\n".join([*lines, *([f"not uploaded: {', '.join(rest)}"] if rest else [])])


@program
def main(argv: Sequence[str] | None = None) -> None:
    """Run the program."""
    args = parser().parse_args(argv)
    hide_progress_bars()
    check_name(args.repo)
    files = files_to_push(args.folder)
    listed = listing(files, left_out(args.folder, files))
    if args.dry_run:
        target = f"{args.repo}{f' ({args.revision})' if args.revision else ''}"
        print(f"{args.folder} would be pushed to {target}:\n{listed}")
        return
    done = push_folder(
        args.folder,
        args.repo,
        revision=args.revision,
        private=args.private,
        pull_request=args.pr,
        message=args.message,
        files=files,
    )
    print(f"{listed}\npushed: {constants.ENDPOINT}/{done.repo}")
    print(f"{'pull request' if args.pr else 'commit'}: {done.url}")


if __name__ == "__main__":
    main()
