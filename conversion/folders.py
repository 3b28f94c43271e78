"""Convert a saved model to a saved model: weights checked, tokenizer, generation config and card carried over."""

import json
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from transformers import PreTrainedConfig, PreTrainedModel

from vanillaformer.configuration import BlockConfig
from vanillaformer.modeling import AUTO_CLASSES
from vanillaformer.modeling.loading import open_config, open_model, saved_folder

from .convert import from_native, to_native

TOLERANCE = 1e-5  # relative RMS error of the logits in float32
HALF_TOLERANCE = 2e-2  # in bfloat16 or float16, where the order of additions shows
# What a model folder holds besides weights and configs: tokenizers, chat templates, the card, the licence
CARRIED = (
    "tokenizer*", "vocab*", "merges.txt", "*.spm", "spiece.model", "sentencepiece*", "special_tokens_map.json",
    "added_tokens.json", "chat_template*", "target_tokenizer", "LICENSE*",
)  # fmt: skip
CARD = "README.md"


class Conversion(NamedTuple):
    """What a conversion did."""

    source: str
    target: str
    parameters: int
    error: float
    carried: list[str]


def convert_folder(
    source: str, destination: str | Path, to: str | None = None, back: bool = False, revision: str | None = None
) -> Conversion:
    """Convert the model saved in `source` and save it in `destination`.

    Args:
        source: A folder or Hub id.
        destination: A folder that does not exist yet, or is empty.
        to: The native architecture to convert one of our models to. Default: the one that fits.
        back: Convert a native model into ours instead.
        revision: Branch, tag or commit of a Hub id.

    Returns:
        The classes, and the relative error of the logits on random input.

    Raises:
        ValueError: For a source that cannot be read or converted, a destination that is taken, logits that differ.
    """
    with new_folder(destination) as folder:
        origin = saved_folder(source, revision, "SRC")
        model = from_native(origin) if back else load_ours(origin)
        converted = model if back else to_native(model, to)
        reference = load_any(origin) if back else model
        error = logit_error(converted, reference)
        limit = TOLERANCE if reference.dtype in (torch.float32, torch.float64) else HALF_TOLERANCE
        if not error <= limit:
            raise ValueError(
                f"{source}: the logits of the {type(converted).__name__} differ by {error:.1e} from those of the "
                f"{type(reference).__name__} (allowed {limit:.0e}): nothing was written"
            )
        converted.save_pretrained(folder)
        carried = carry(origin, folder, converted)
        add_to_card(origin, folder, source, type(reference).__name__, type(converted).__name__)
    return Conversion(type(reference).__name__, type(converted).__name__, converted.num_parameters(), error, carried)


@contextmanager
def new_folder(path: str | Path) -> Iterator[Path]:
    """Give a folder to write into, which becomes `path` when all has gone well and is gone when something has not.

    Raises:
        ValueError: `path` is a file or a folder with something in it, or cannot be made.
    """
    path = Path(path)
    check_free(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error}") from error
    in_main_thread = threading.current_thread() is threading.main_thread()  # only there signals can be caught
    before = signal.signal(signal.SIGTERM, signal.default_int_handler) if in_main_thread else None  # as Ctrl-C
    try:
        yield partial
        partial.chmod(0o777 & ~umask())  # a temporary folder is its owner's alone
        if path.exists():
            path.rmdir()
        partial.rename(path)
    finally:
        if in_main_thread:
            signal.signal(signal.SIGTERM, before)
        shutil.rmtree(partial, ignore_errors=True)


def check_free(path: Path) -> None:
    """Raise for a path where there is something already, other than an empty folder."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ValueError(f"{path} exists already and is not an empty folder: choose another one")


def umask() -> int:
    """Return which permissions new files do not get."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def load_ours(folder: Path) -> PreTrainedModel:
    """Return one of our models with the head that it was saved with.

    Raises:
        ValueError: It is not one of ours, or its files are damaged.
    """
    config = open_config(folder)
    if not isinstance(config, BlockConfig):
        raise ValueError(f"{folder}: model_type={config.model_type!r} is native already; use --from to make it ours")
    classes = {cls.__name__: cls for models in AUTO_CLASSES.values() for cls in models}
    name = next(iter(config.architectures or []), None)
    if name not in classes:
        raise ValueError(
            f"{folder / 'config.json'}: architectures must name one of {', '.join(classes)}, got {name!r}"
        )
    return load(classes[name], folder)


def load_any(folder: Path) -> PreTrainedModel:
    """Return the native model of a folder with the head that it was saved with."""
    architectures = open_config(folder).architectures
    if not architectures:
        raise ValueError(f"{folder / 'config.json'}: architectures must name the model's class, got {architectures!r}")
    return load(getattr(transformers, architectures[0]), folder)


def load(model_class: type[PreTrainedModel], folder: Path) -> PreTrainedModel:
    """Load weights of which none is missing, none left over and none damaged.

    Raises:
        ValueError: That is not so.
    """
    model, report = open_model(model_class, folder, f"SRC {folder}", output_loading_info=True)
    for what in ("missing_keys", "unexpected_keys"):
        if report[what]:
            names = ", ".join(sorted(report[what])[:5])
            raise ValueError(f"{folder}: {what.replace('_', ' ')} in the weights of {model_class.__name__}: {names}")
    return model.eval()


@torch.no_grad()
def logit_error(one: PreTrainedModel, other: PreTrainedModel) -> float:
    """Return the relative RMS error between two models' logits, or states without a head, on random tokens."""
    inputs = random_inputs(one)
    first, second = (first_output(model.eval()(**inputs)).double() for model in (one, other))
    return ((first - second).norm() / second.norm()).item()


def first_output(outputs: Any) -> torch.Tensor:
    """Return what a model is there for."""
    for name in ("logits", "prediction_logits", "last_hidden_state"):
        if getattr(outputs, name, None) is not None:
            return getattr(outputs, name)
    raise TypeError(f"{type(outputs).__name__} has neither logits nor states")


def random_inputs(model: PreTrainedModel, batch: int = 2, length: int = 12) -> dict[str, torch.Tensor]:
    """Return a batch of random tokens, the second row of it padded."""
    config = model.config
    ids, mask = random_words(config, config.vocab_size, batch, length), torch.ones(batch, length, dtype=torch.long)
    if getattr(config, "pad_token_id", None) is not None:
        mask[1, length - 3 :] = 0
        ids = ids.masked_fill(mask == 0, config.pad_token_id)
    inputs = {"input_ids": ids, "attention_mask": mask}
    if config.is_encoder_decoder:
        vocabulary = getattr(config, "decoder_vocab_size", None) or config.vocab_size
        inputs["decoder_input_ids"] = random_words(config, vocabulary, batch, length)
    return {name: tensor.to(model.device) for name, tensor in inputs.items()}


def random_words(config: PreTrainedConfig, vocabulary: int, batch: int, length: int) -> torch.Tensor:
    """Return tokens (B, T) that are not special."""
    special = {token for name in ("pad", "bos", "eos") for token in ids_of(getattr(config, f"{name}_token_id", None))}
    words = torch.tensor([token for token in range(vocabulary) if token not in special])
    return words[torch.randint(len(words), (batch, length), generator=torch.Generator().manual_seed(vocabulary))]


def ids_of(token: int | list[int] | None) -> list[int]:
    """Return the ids that a special token's field names."""
    return token if isinstance(token, list) else [] if token is None else [token]


def carry(origin: Path, folder: Path, model: PreTrainedModel) -> list[str]:
    """Copy tokenizers, templates and licence; return their names.

    Raises:
        ValueError: The tokenizer makes tokens that the model has no row for.
    """
    names = sorted({path.name for pattern in CARRIED for path in origin.glob(pattern)})
    for name in names:
        copied = shutil.copytree if (origin / name).is_dir() else shutil.copyfile
        copied(origin / name, folder / name)
    if (folder / "tokenizer.json").is_file():
        vocabulary = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"].get("vocab", [])
        if len(vocabulary) > model.config.vocab_size:
            raise ValueError(
                f"{origin / 'tokenizer.json'} makes {len(vocabulary)} tokens, but the model has vocab_size="
                f"{model.config.vocab_size}"
            )
    return names


def add_to_card(origin: Path, folder: Path, source: str, was: str, made: str) -> None:
    """Copy the model card, if there is one, and add what this folder is."""
    if (origin / CARD).is_file():
        text = (origin / CARD).read_text(encoding="utf-8").rstrip("\n")
        note = f"Converted by vanillaformer from the {was} in `{Path(source).name}`: a {made} that computes the same."
        (folder / CARD).write_text(f"{text}\n\n## Converted\n\n{note}\n", encoding="utf-8")
