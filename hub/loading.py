"""Opening saved models from untrusted sources: downloaded if they are on the Hub, and checked before they are built.

The programs load only safetensors and configs: no pickle is read, no code of a repository runs, and weights
that are not exactly those of the model in the config are refused before memory is taken for it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, snapshot_download
from transformers import AutoConfig, PreTrainedConfig

from vanillaformer.configuration.rules import INNER_WIDTHS, LAYER_COUNTS, MODEL_WIDTHS, check_limits

from .engines import EXPORTED_FILES
from .errors import HubError, damage, hub_errors
from .file_names import ADAPTER, CARRIED, CODE, CONFIG, EXPORT, GENERATION, INDEX, NEEDED, UNSAFE, WEIGHTS
from .generation_settings import check_settings
from .weights import FLOATS, Stored, check_weights, no_weights, one_line, read_headers, read_json

# Sizes that are never larger than the number of stored weights
STORED_WIDTHS = (*MODEL_WIDTHS, *INNER_WIDTHS, "vocab_size", "decoder_vocab_size")
# Fields that name attention and experts of transformers, or else a kernel on the Hub
IMPLEMENTATIONS = ("attn_implementation", "_attn_implementation", "experts_implementation", "_experts_implementation")


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


def check_folder(folder: Path) -> None:
    """Raise ValueError for a folder without a config and weights that belong together.

    The message continues one that names the folder.
    """
    if (folder / EXPORT).is_file():
        raise ValueError(f"has an exported model ({EXPORT}), which generate.py runs and nothing else opens")
    if (folder / ADAPTER).is_file():  # transformers would put them on top, also those in a pickle
        raise ValueError(f"has adapters ({ADAPTER}): merge them (merge_and_unload of peft) and save the model itself")
    fields, stored = read_config(folder), read_headers(folder)
    if (folder / GENERATION).is_file():
        check_settings(read_json(folder / GENERATION), GENERATION)
    check_extent(fields, stored)
    check_weights(folder, open_config(folder), stored)


def _checkpoint(folder: Path) -> str:
    """Return words on the last checkpoint of an unfinished run, which is a model too."""
    found = {path.parent for path in folder.glob("checkpoint-*/config.json")}
    steps = {int(step): path for path in found if (step := path.name.partition("-")[2]).isdigit()}
    return f"; the last checkpoint of an unfinished run is {steps[max(steps)]}" if steps else ""


def read_config(folder: Path) -> dict[str, Any]:
    """Return the fields in a folder's config.

    Raises:
        ValueError: It is missing, not a JSON object, or has sizes, data types or settings that no model has.
    """
    if not (folder / CONFIG).is_file():
        raise ValueError(f"has no {CONFIG}: it holds no (finished) model{_checkpoint(folder)}")
    fields = read_json(folder / CONFIG)
    for part in _parts(fields):
        try:
            check_limits(part)
        except ValueError as error:
            raise ValueError(f"has an invalid {CONFIG}: {error}") from error
        check_settings(part, CONFIG)
        for name in IMPLEMENTATIONS:
            value = part.get(name)
            if "/" in str(value):  # transformers would fetch and run it, from publishers that it trusts without asking
                raise ValueError(f"has {name}={value!r} in {CONFIG}: kernels of the Hub are code, which is not run")
        for name in ("dtype", "torch_dtype"):
            value = part.get(name)
            if isinstance(value, str) and value.removeprefix("torch.") not in FLOATS.values():
                raise ValueError(f"has {name}={value!r} in {CONFIG}: it must be one of {', '.join(FLOATS.values())}")
    return fields


def check_extent(fields: dict[str, Any], stored: Stored) -> None:
    """Raise ValueError for a config of a model larger than its weights: what is missing would take memory.

    Works on the fields of any architecture, for it looks at what all of them call alike.
    """
    sizes = [(name, size) for part in _parts(fields) for name, size in part.items() if type(size) is int]
    for name, size in sizes:
        if name in LAYER_COUNTS and size > len(stored.shapes):
            raise ValueError(f"has {name}={size:,} in config.json, but weights of {len(stored.shapes):,} tensors")
        if name in STORED_WIDTHS and size > stored.numbers:
            raise ValueError(f"has {name}={size:,} in config.json, but weights of {stored.numbers:,} numbers")


def _parts(fields: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a config and the configs in it, which native models with several parts have."""
    waiting = [fields]
    while waiting:
        yield (part := waiting.pop())
        waiting += [value for name, value in part.items() if isinstance(value, dict) and name != "label2id"]


def open_config(folder: Path) -> PreTrainedConfig:
    """Return the config of a folder, whatever model it is of.

    Raises:
        ValueError: Its fields are invalid, or its type is unknown or code of its own.
    """
    try:
        return AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # whatever a stranger's fields make transformers stumble over
        if "trust_remote_code" in str(error):
            raise ValueError(
                "is a model with code of its own, which is not run: load it in Python, by trust_remote_code=True, "
                "once you have read it"
            ) from error
        raise ValueError(f"has an invalid {CONFIG}: {one_line(error)}") from error


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
