"""Push a saved model to the Hugging Face Hub: a run's folder, a converted one, an export.

    vanillaformer push runs/translation user/dates-en-de
    vanillaformer push runs/translation user/dates-en-de --dry-run     lists the files, sends nothing

The token is that of `hf auth login`, or HF_TOKEN. Uploaded are weights (safetensors), configs, tokenizers, the model's
code, card, pictures and scores; not optimizers, checkpoints, records or pickles. An interrupted push can be
repeated: files that have arrived are not sent again. Edits of the model card on the Hub stay.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from huggingface_hub import constants
from huggingface_hub.utils import disable_progress_bars

import vanillaformer  # noqa: F401 - makes the Auto classes know the models
from vanillaformer.hub.pushing import check_name, files_to_push, left_out, push_folder
from vanillaformer.scripts.console import program


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("folder", metavar="FOLDER", type=Path, help="folder of the saved model")
    made.add_argument("repo", metavar="REPO", help="user/name, or name for one of your own; made if there is none")
    made.add_argument("--revision", metavar="BRANCH", help="branch to push to; made from main if there is none")
    made.add_argument("--pr", action="store_true", help="open a pull request; for repositories of others too")
    made.add_argument("--private", action="store_true", default=None, help="make a new repository a private one")
    made.add_argument("--message", default="Upload model", help="message of the commit")
    made.add_argument("--dry-run", action="store_true", help="list what would be uploaded, and its size")
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
    arguments = parser().parse_args(argv)
    if not sys.stderr.isatty():
        disable_progress_bars()
    folder: Path = arguments.folder
    check_name(arguments.repo)
    files = files_to_push(folder)
    if arguments.dry_run:
        where = f"{arguments.repo}{f' ({arguments.revision})' if arguments.revision else ''}"
        print(f"{folder} would be pushed to {where}:\n{listing(files, left_out(folder, files))}")
        return
    done = push_folder(
        folder,
        arguments.repo,
        revision=arguments.revision,
        private=arguments.private,
        pull_request=arguments.pr,
        message=arguments.message,
        files=files,
    )
    print(listing(files, left_out(folder, files)))
    print(f"pushed: {constants.ENDPOINT}/{done.repo}")
    print(f"{'pull request' if arguments.pr else 'commit'}: {done.url}")


if __name__ == "__main__":
    main()
