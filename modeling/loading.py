"""Opening saved models that came from somewhere: fetched where they are on the Hub, and checked before they are built.

What the programs load is safetensors and configs alone: no pickle is read, no code of a repository runs, and a config
that asks for more than the weights file holds is refused before memory is taken for it.
"""

import json
import struct
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, PreTrainedConfig

from vanillaformer.configuration import BlockConfig
from vanillaformer.configuration.rules import check_limits

from .counts import Sizes, count, stack_parameters
from .hub import HubError, damaged_file, hub_errors

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
EXPORT = "vanillaformer_export.json"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.pickle")
CODE = "*.py"
UNSAFE = [*PICKLES, CODE]
ADAPTER = "adapter_config.json"
# Tokenizers of ours and of native models, and what belongs to them
TOKENIZERS = (
    "tokenizer*", "vocab*", "merges.txt", "*.spm", "spiece.model", "sentencepiece*", "special_tokens_map.json",
    "added_tokens.json", "chat_template*", "target_tokenizer/*",
)  # fmt: skip
NEEDED = ("config.json", "generation_config.json", WEIGHTS, INDEX, "model-*-of-*.safetensors", *TOKENIZERS)
CARRIED = ("README.md", "LICENSE*")
# Fields that name attention and experts of transformers, or else a kernel on the Hub
IMPLEMENTATIONS = ("attn_implementation", "_attn_implementation", "experts_implementation", "_experts_implementation")
# What an exported model has besides
OF_EXPORTS = ("model.bin", "head.safetensors", "*vocabulary.json", "*.onnx", "weights.bin", "*.gguf")


class Stored(NamedTuple):
    """The tensors in a folder's safetensors files: shapes by name."""

    shapes: dict[str, tuple[int, ...]]

    @property
    def numbers(self) -> int:
        """How many numbers there are in all."""
        return sum(prod(shape) for shape in self.shapes.values())


def saved_folder(source: str, revision: str | None = None, option: str = "--model", *, exported: bool = False) -> Path:
    """Return the folder of a saved model that has been looked through: as it is, or fetched from the Hub.

    Args:
        source: A folder or Hub id.
        revision: Branch, tag or commit of the repository.
        option: What the user named it by.
        exported: Whether it may be an exported model, of which nothing is checked: its engine reads it.

    Raises:
        ValueError: There is none, or it holds no model that can be opened safely.
    """
    folder = Path(source)
    if folder.exists() or source.startswith((".", "/", "~")) or source.count("/") > 1:
        if not folder.is_dir():
            raise ValueError(f"{option} {source} is no folder")
        if revision is not None:
            raise ValueError(f"{option} {source} is a folder: it has no revision {revision!r}, which Hub ids have")
    else:
        folder = fetched(source, revision, option, exported)
    if exported and (folder / EXPORT).is_file():
        return folder
    try:
        check_folder(folder)
    except ValueError as error:
        raise ValueError(f"{option} {source}{f' at {revision}' if revision else ''} {error}") from error
    return folder


def fetched(repo: str, revision: str | None, option: str, exported: bool) -> Path:
    """Return a folder with what is needed of a repository: no pickles, no code, files of exports if asked for.

    Raises:
        HubError: The Hub does not give it.
        ValueError: There are no weights, or a file is not what the Hub has.
    """
    try:
        with hub_errors(repo, revision):
            wanted = [*NEEDED, *CARRIED, EXPORT]
            folder = Path(snapshot_download(repo, revision=revision, allow_patterns=wanted, ignore_patterns=UNSAFE))
            if exported and (folder / EXPORT).is_file():
                wanted += OF_EXPORTS
                folder = Path(snapshot_download(repo, revision=revision, allow_patterns=wanted, ignore_patterns=CODE))
            found = {WEIGHTS, INDEX, EXPORT} & {path.name for path in folder.iterdir()}
            names = [] if found else HfApi().list_repo_files(repo, revision=revision)
    except HubError as error:
        raise HubError(f"{option} {repo} is no folder, nor does the Hub give it: {error}") from None
    if not found and (folder / "config.json").is_file():
        raise ValueError(f"{option} {repo} {no_weights(names)}")
    if damaged := damaged_file(folder, wanted):
        name, stored = damaged
        raise ValueError(
            f"{option} {repo}: {name} is damaged, it is not what the Hub has; delete {stored} to fetch it anew"
        )
    return folder


# ---------------------------------------------------------------------------------------------------------- checks
def check_folder(folder: Path) -> None:
    """Raise ValueError for a folder without a config and weights that belong together.

    The message goes on where the folder was named.
    """
    if (folder / EXPORT).is_file():
        raise ValueError(f"has an exported model ({EXPORT}), which generate.py runs and nothing else opens")
    if (folder / ADAPTER).is_file():  # transformers would put them on top, also those in a pickle
        raise ValueError(f"has adapters ({ADAPTER}): merge them (merge_and_unload of peft) and save the model itself")
    fields, stored = read_config(folder), read_headers(folder)
    check_extent(fields, stored)
    config = open_config(folder)
    # A few that are missing the loading itself names
    if isinstance(config, BlockConfig) and (needed := stack_numbers(config)) > 2 * stored.numbers:
        raise ValueError(f"has a config.json of {needed:,} parameters, but weights of {stored.numbers:,} numbers")


def _checkpoint(folder: Path) -> str:
    """Return words on the last checkpoint of an unfinished run, which is a model too."""
    found = {path.parent for path in folder.glob("checkpoint-*/config.json")}
    steps = {int(step): path for path in found if (step := path.name.partition("-")[2]).isdigit()}
    return f"; the last checkpoint of an unfinished run is {steps[max(steps)]}" if steps else ""


def read_config(folder: Path) -> dict[str, Any]:
    """Return the fields in a folder's config.

    Raises:
        ValueError: There is none, it is no JSON object, or has sizes that no model has.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise ValueError(f"has no config.json: it holds no (finished) model{_checkpoint(folder)}")
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"has a config.json that is no JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ValueError(f"has a config.json that holds no JSON object, but a {type(fields).__name__}")
    try:
        for part in _parts(fields):
            check_limits(part)
    except ValueError as error:
        raise ValueError(f"has a config.json that does not hold: {error}") from error
    for name, value in ((name, part.get(name)) for part in _parts(fields) for name in IMPLEMENTATIONS):
        if "/" in str(value):  # transformers would fetch and run it, from publishers that it trusts without asking
            raise ValueError(f"has {name}={value!r} in config.json: kernels of the Hub are code, which is not run")
    return fields


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a folder.

    Raises:
        ValueError: There are none, or not all.
    """
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if not (folder / INDEX).is_file():
        raise ValueError(no_weights(path.name for path in folder.iterdir()))
    try:
        names = set(json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise ValueError(f"has a damaged {INDEX}: {error!r}") from error
    for name in names:
        if not isinstance(name, str) or name != Path(name).name or not name.endswith(".safetensors"):
            raise ValueError(f"has a {INDEX} that names {name!r}, which is no safetensors file of its folder")
        if not (folder / name).is_file():
            raise ValueError(f"has a {INDEX} that names {name!r}, which is not there")
    return [folder / name for name in sorted(names)]


def no_weights(names: Iterable[str]) -> str:
    """Return what is said of a folder with these files, none of which is a safetensors file."""
    pickles = sorted(name for name in names if any(fnmatch(name, pattern) for pattern in PICKLES))
    about = f" ({', '.join(pickles)} is not read: a pickle can run code when it is loaded)" if pickles else ""
    return f"has no {WEIGHTS}{about}; save_pretrained of a loaded model writes one"


def read_headers(folder: Path) -> Stored:
    """Return what a folder's safetensors files hold, by their headers.

    Raises:
        ValueError: One is damaged: its header is no header, or tells of other bytes than there are.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for path in weight_files(folder):
        try:
            with safe_open(path, framework="pt") as file:
                shapes |= {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError, UnicodeError, struct.error) as error:
            raise ValueError(f"has a damaged {path.name}: {error}") from error
    return Stored(shapes)


def check_extent(fields: dict[str, Any], stored: Stored) -> None:
    """Raise ValueError for a config of a model larger than its weights: what is missing would take memory.

    Works on the fields of any architecture, for it looks at what all of them call alike.
    """
    sizes = [(name, size) for part in _parts(fields) for name, size in part.items() if type(size) is int]
    for name, size in sizes:
        if name in LAYERS and size > len(stored.shapes):
            raise ValueError(f"has {name}={size:,} in config.json, but weights of {len(stored.shapes):,} tensors")
        if name in WIDTHS and size > stored.numbers:
            raise ValueError(f"has {name}={size:,} in config.json, but weights of {stored.numbers:,} numbers")


LAYERS = ("num_hidden_layers", "encoder_layers", "decoder_layers", "num_layers", "num_decoder_layers", "n_layer")
LAYERS += ("n_layers",)
WIDTHS = ("hidden_size", "vocab_size", "intermediate_size", "d_model", "d_ff", "n_embd", "encoder_hidden_size")
WIDTHS += ("decoder_vocab_size", "encoder_intermediate_size", "n_inner", "encoder_ffn_dim", "decoder_ffn_dim")


def _parts(fields: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a config and the configs in it, which native models with several parts have."""
    waiting = [fields]
    while waiting:
        yield (part := waiting.pop())
        waiting += [value for name, value in part.items() if isinstance(value, dict) and name != "label2id"]


def open_config(folder: Path) -> PreTrainedConfig:
    """Return the config of a folder, whatever model it is of.

    Raises:
        ValueError: Its fields do not hold, or its type is unknown or code of its own.
    """
    try:
        return AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except (ValueError, OSError, TypeError, KeyError, AttributeError, StrictDataclassError) as error:
        if "trust_remote_code" in str(error):
            raise ValueError(
                "is a model with code of its own, which is not run: load it in Python, by trust_remote_code=True, "
                "once you have read it"
            ) from error
        raise ValueError(f"has a config.json that does not hold: {one_line(error)}") from error


def stack_numbers(config: BlockConfig) -> int:
    """Return how many parameters a config's stacks have, without any head."""
    parts = count(config, Sizes(), stack_parameters, lambda config, sizes: {})
    return sum(sum(part.values()) for part in parts)


def open_model(model_class: Any, folder: Path, where: str, **options: Any) -> Any:
    """Return the model of a folder from `saved_folder`, from safetensors and without code of its own.

    Args:
        model_class: The class or Auto class that loads it.
        folder: The folder.
        where: What the user named it by.
        **options: Passed on to `from_pretrained`.

    Raises:
        ValueError: Config and weights do not belong together, or cannot be read.
    """
    try:
        return model_class.from_pretrained(folder, trust_remote_code=False, use_safetensors=True, **options)
    except (SafetensorError, OSError, RuntimeError, StrictDataclassError, ValueError, ImportError) as error:
        raise ValueError(f"{where}: the model cannot be loaded: {one_line(error)}") from error


def one_line(error: BaseException) -> str:
    """Return the start of what an error says, without line breaks."""
    text = " ".join(str(error).split())
    return text if len(text) <= 600 else f"{text[:600]} ..."
