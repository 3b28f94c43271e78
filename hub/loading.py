"""Opening saved models from untrusted sources: downloaded if they are on the Hub, and checked before they are built.

The programs load only safetensors and configs: no pickle is read, no code of a repository runs, and weights
that are not exactly those of the model in the config are refused before memory is taken for it.
"""

from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, snapshot_download

from .checks import check_folder, open_config
from .engines import EXPORTED_FILES
from .errors import HubError, damage, hub_errors
from .file_names import CARRIED, CODE, EXPORT, INDEX, NEEDED, UNSAFE, WEIGHTS
from .weights import no_weights, one_line

__all__ = ["one_line", "open_config", "open_model", "saved_folder"]


def saved_folder(source: str, revision: str | None = None, option: str = "--model", *, exported: bool = False) -> Path:
    """Return the folder of a saved model that has been looked through: as it is, or fetched from the Hub.

    Args:
        source: A folder or Hub id.
        revision: Branch, tag or commit of the repository.
        option: The option that named it, for messages.
        exported: Whether it may be an exported model, of which nothing is checked: its engine reads it.

    Raises:
        ValueError: The folder is missing, or holds no model that can be opened safely.
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
        raise ValueError(
            f"{option} {source}{f' at {revision}' if revision else ''} {error}{damage(folder)}"
        ) from error
    return folder


def fetched(repo: str, revision: str | None, option: str, exported: bool) -> Path:
    """Return a folder with what is needed of a repository: no pickles, no code, files of exports if asked for.

    Raises:
        HubError: The Hub does not give it.
        ValueError: There are no weights.
    """
    try:
        with hub_errors(repo, revision):
            wanted = [*NEEDED, *CARRIED, EXPORT]
            folder = Path(snapshot_download(repo, revision=revision, allow_patterns=wanted, ignore_patterns=UNSAFE))
            if exported and (folder / EXPORT).is_file():
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
    """Return the model of a folder from `saved_folder`, from safetensors and without code of its own.

    Args:
        model_class: The class or Auto class that loads it.
        folder: The folder.
        source_name: The option that named it, for messages.
        **options: Passed on to `from_pretrained`.

    Raises:
        ValueError: Config and weights do not belong together, or cannot be read.
    """
    try:
        return model_class.from_pretrained(folder, trust_remote_code=False, use_safetensors=True, **options)
    except Exception as error:  # whatever a stranger's files make transformers stumble over
        raise ValueError(
            f"{source_name}: the model cannot be loaded: {one_line(error)}{damage(Path(folder))}"
        ) from error
