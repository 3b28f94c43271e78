"""Push a saved model to the Hugging Face Hub: a run's folder, a converted one, an export.

The token is that of `hf auth login`, or HF_TOKEN. Weights (safetensors), configs, tokenizers, the model's code, card,
pictures and scores are uploaded; optimizers, checkpoints, records and pickles are not. An interrupted push can be
repeated: files that have arrived are not sent again. Edits of the model card on the Hub are kept.

Examples:
  vanillaformer push runs/translation user/dates-en-de
  vanillaformer push runs/translation user/dates-en-de --dry_run
  vanillaformer push runs/translation user/dates-en-de --as native
  vanillaformer push runs/translation user/dates-en-de --revision second-try --message 'More data'
"""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from huggingface_hub import constants

from vanillaformer.configuration import VanillaConfig
from vanillaformer.console.program import CommandParser, hide_progress_bars, program
from vanillaformer.hub.loading import open_config
from vanillaformer.hub.pushing import check_name, files_to_push, left_out, push_folder


def build_parser() -> CommandParser:
    parser = CommandParser(__doc__, "FOLDER REPO [--option value ...]")
    model = parser.add_argument_group("Model")
    model.add_argument("folder", metavar="FOLDER", type=Path, help="Folder of the saved model")
    words = (
        "Push an equivalent native model of transformers, without our code: native, or the name of one of the "
        "architectures that fit"
    )
    model.add_argument("--as", dest="form", metavar="ARCHITECTURE", help=words)
    repository = parser.add_argument_group("Repository")
    repository.add_argument("repo", metavar="REPO", help="user/name, or your own name; created if missing")
    repository.add_argument("--revision", metavar="BRANCH", help="Branch to push to; created from main if missing")
    repository.add_argument("--private", action="store_true", default=None, help="Make a new repository private")
    upload = parser.add_argument_group("Upload")
    upload.add_argument("--pr", action="store_true", help="Open a pull request, also in repositories of others")
    upload.add_argument("--message", default="Upload model", help="Commit message")
    words = "List the files that would be uploaded, send nothing"
    upload.add_argument("--dry_run", "--dry-run", action="store_true", help=words)
    return parser


def listing(files: dict[str, Path], rest: list[str]) -> str:
    sizes = {name: path.stat().st_size for name, path in files.items()}
    width = max(map(len, sizes))
    lines = [f"  {name:{width}}  {size:>15,}" for name, size in sizes.items()]
    lines.append(f"  {f'{len(sizes)} files':{width}}  {sum(sizes.values()):>15,} bytes")
    return "\n".join([*lines, *([f"not uploaded: {', '.join(rest)}"] if rest else [])])


@contextmanager
def published(folder: Path, form: str | None) -> Iterator[Path]:
    """Yield the folder to push: the given one, or one with a native model in place of ours and the other files."""
    if form is None:
        yield folder
        return
    files = files_to_push(folder)
    config = open_config(folder)
    if not isinstance(config, VanillaConfig) and form in ("native", config.model_type):
        yield folder
        return
    from vanillaformer.conversion.folders import convert_folder  # loads the tables of all architectures

    with TemporaryDirectory() as parent:
        converted = Path(parent, folder.resolve().name)
        done = convert_folder(str(folder), converted, None if form == "native" else form)
        print(f"{done.source} -> {done.target}, relative error of its logits {done.error:.1e}")
        for name, path in files.items():
            if name.endswith((".png", "_results.json")):
                shutil.copyfile(path, converted / name)
        yield converted


@program
def main(argv: Sequence[str] | None = None) -> None:
    args = build_parser().parse_args(argv)
    hide_progress_bars()
    check_name(args.repo)
    with published(args.folder, args.form) as folder:
        files = files_to_push(folder)
        listed = listing(files, left_out(folder, files))
        if args.dry_run:
            target = f"{args.repo}{f' ({args.revision})' if args.revision else ''}"
            print(f"{args.folder} would be pushed to {target}:\n{listed}")
            return
        how = {"revision": args.revision, "private": args.private, "pull_request": args.pr, "message": args.message}
        done = push_folder(folder, args.repo, files=files, **how)
    print(f"{listed}\npushed: {constants.ENDPOINT}/{done.repo}")
    print(f"{'pull request' if args.pr else 'commit'}: {done.url}")


if __name__ == "__main__":
    main()
