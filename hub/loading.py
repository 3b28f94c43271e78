"""Opening saved models from untrusted sources: downloaded if they are on the Hub, and checked before they are built.

The programs load only safetensors and configs: no pickle is read, no code of a repository runs, and weights
that are not exactly those of the model in the config are refused before memory is taken for it.
"""

from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, snapshot_download
from transformers import AutoImageProcessor

from .checks import HubError, check_folder, damage, file_errors, hub_errors, no_weights, open_config
from .file_names import CARRIED, CODE, EXPORT, INDEX, NEEDED, UNSAFE, WEIGHTS

__all__ = ["open_config", "open_image_processor", "open_model", "saved_folder"]

LARGEST_SIDE = 4_096  # pixels of a side that images may be scaled to


def saved_folder(source: str, revision: str | None = None, option: str = "--model", *, exported: bool = False) -> Path:
    """Return the folder of a saved model that has been looked through: as it is, or fetched from the Hub.

    `option` named the source, for messages; `exported` tells whether it may be an exported model, of which nothing is
    checked: its engine reads it.
    """
    folder = Path(source)
    if folder.exists() or source.startswith((".", "/", "~")) or source.count("/") > 1:
        if not folder.is_dir():
            raise ValueError(f"{option} {source} is not a directory")
        if revision is not None:
            raise ValueError(f"{option} {source} is a folder: it has no revision {revision!r}, which Hub ids have")
    else:
        folder = fetched(source, revision, option, exported)
    if exported and (folder / EXPORT).is_file():
        return folder
    try:
        check_folder(folder)
    except ValueError as error:
        where = f"{option} {source}{f' at {revision}' if revision else ''}"
        raise ValueError(f"{where} {error}{damage(folder)}") from error
    return folder


def fetched(repo: str, revision: str | None, option: str, exported: bool) -> Path:
    """Return a folder with what is needed of a repository: no pickles, no code, files of exports if asked for."""
    try:
        with hub_errors(repo, revision):
            wanted = [*NEEDED, *CARRIED, EXPORT]
            folder = Path(snapshot_download(repo, revision=revision, allow_patterns=wanted, ignore_patterns=UNSAFE))
            if exported and (folder / EXPORT).is_file():
                from .engines import EXPORTED_FILES  # which no other model has

                wanted += EXPORTED_FILES
                folder = Path(snapshot_download(repo, revision=revision, allow_patterns=wanted, ignore_patterns=CODE))
            found = {WEIGHTS, INDEX, EXPORT} & {path.name for path in folder.iterdir()}
            names = [] if found else HfApi().list_repo_files(repo, revision=revision)
    except HubError as error:
        raise HubError(f"{option} {repo} is not a directory, nor can it be read from the Hub: {error}") from None
    if not found and (folder / "config.json").is_file():
        raise ValueError(f"{option} {repo} {no_weights(names)}")
    return folder


def open_model(model_class: Any, folder: Path, source_name: str, **options: Any) -> Any:
    """Return the model of a folder from `saved_folder`, from safetensors and without code of its own."""
    with file_errors(f"{source_name}: the model cannot be loaded", Path(folder)):
        return model_class.from_pretrained(folder, trust_remote_code=False, use_safetensors=True, **options)


def open_image_processor(folder: Path, source_name: str = "the model") -> Any:
    """Return the image processor in the folder of a model; ValueError if it makes too many pixels of an image."""
    with file_errors(f"{source_name}: the image processor cannot be loaded", folder):
        processor = AutoImageProcessor.from_pretrained(folder, trust_remote_code=False)
        sides = [side for side in dict(processor.size).values() if side is not None]
    if not all(isinstance(side, int) and 0 < side <= LARGEST_SIDE for side in sides):
        raise ValueError(f"{source_name}: its images would be scaled to {sides}, at most {LARGEST_SIDE} are allowed")
    return processor
