"""Comparing the weights in a folder with the model that its config describes, before any memory is taken for it."""

import json
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from safetensors import SafetensorError, safe_open
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils import logging

from vanillaformer.configuration import VanillaConfig
from vanillaformer.modeling.auto import AUTO_CLASSES

from .file_names import INDEX, PICKLES, WEIGHTS

OUR_CLASSES = {cls.__name__: cls for classes in AUTO_CLASSES.values() for cls in classes}
# Data types of parameters, as safetensors and transformers name them
FLOATS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
LARGEST_JSON = 2**25  # bytes, of configs and indexes: a million labels fit
NAMED = 5  # tensors in a message


class Stored(NamedTuple):
    """The tensors in a folder's safetensors files: shapes and data types by name."""

    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, str]

    @property
    def numbers(self) -> int:
        """How many numbers there are in all."""
        return sum(prod(shape) for shape in self.shapes.values())


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        ValueError: It is too large, or not a JSON object.
    """
    if (size := path.stat().st_size) > LARGEST_JSON:
        raise ValueError(f"has a {path.name} of {size:,} bytes, at most {LARGEST_JSON:,} are read")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"has a {path.name} that is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"has a {path.name} that holds no JSON object, but a {type(content).__name__}")
    return content


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
        names = set(read_json(folder / INDEX)["weight_map"].values())
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ValueError(f"has a damaged {INDEX}: {error!r}") from error
    for name in names:
        if not isinstance(name, str) or name != Path(name).name or not name.endswith(".safetensors"):
            raise ValueError(f"has a {INDEX} that names {name!r}, which is not a safetensors file of its folder")
        if not (folder / name).is_file():
            raise ValueError(f"has a {INDEX} that names {name!r}, which is not there")
    return [folder / name for name in sorted(names)]


def no_weights(names: Iterable[str]) -> str:
    """Return what is said of a folder with these files, none of which is a safetensors file."""
    pickles = sorted(name for name in names if any(fnmatch(name, pattern) for pattern in PICKLES))
    about = f" ({', '.join(pickles)} is not read: a pickle can run code when it is loaded)" if pickles else ""
    return f"has no {WEIGHTS}{about}; save_pretrained of a loaded model writes one"


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """Open a safetensors file.

    Raises:
        ValueError: Its header is damaged, or describes other bytes than there are.
    """
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError, UnicodeError, struct.error) as error:
        raise ValueError(f"has a damaged {path.name}: {error}") from error


def read_headers(folder: Path) -> Stored:
    """Return what a folder's safetensors files hold, by their headers.

    Raises:
        ValueError: One is damaged.
    """
    stored = Stored({}, {})
    for path in weight_files(folder):
        with opened(path) as file:
            for name in file.keys():  # noqa: SIM118
                tensor = file.get_slice(name)
                stored.shapes[name], stored.dtypes[name] = tuple(tensor.get_shape()), tensor.get_dtype()
    return stored


COMPUTED = 2**24  # numbers of a position table and the like, 64 MB, that a model of any size may have


def check_weights(folder: Path, config: PreTrainedConfig, stored: Stored) -> None:
    """Raise ValueError unless the weights are those of the model that the config describes, whole and finite.

    The model is the one that the folder was saved from: what another task adds or leaves out does not count. Names
    that an architecture of transformers has in addition are ignored, as many of its files have some.

    Args:
        folder: The folder.
        config: Its config.
        stored: What the headers of its weights hold.
    """
    if getattr(config, "quantization_config", None) is not None:
        return  # tensors and data types are the quantizer's
    model_class = class_of(config)
    model, report = on_meta(model_class, config, stored)
    name = model_class.__name__
    if missing := report["missing_keys"]:
        raise ValueError(f"has weights without {few(missing)}, which a {name} has")
    if isinstance(config, VanillaConfig) and (more := report["unexpected_keys"]):
        raise ValueError(f"has weights with {few(more)}, which a {name} does not have")
    if mismatched := sorted(report["mismatched_keys"]):
        tensor, found, wanted = mismatched[0]
        raise ValueError(f"has {tensor} of shape {tuple(found)} in its weights, but {tuple(wanted)} by config.json")
    tables = sum(buffer.numel() for buffer in model.buffers())
    if isinstance(config, VanillaConfig) and tables > max(stored.numbers, COMPUTED):
        raise ValueError(
            f"has a config.json by which tables of {tables:,} numbers would be computed, at most {COMPUTED:,} or as "
            f"many as the weights have ({stored.numbers:,})"
        )
    check_types(model, stored)
    check_finite(folder)


def class_of(config: PreTrainedConfig) -> type[PreTrainedModel]:
    """Return the class that a config's model was saved from: ours or one of transformers.

    Raises:
        ValueError: Its `architectures` do not name one.
    """
    named = config.architectures
    name = named[0] if isinstance(named, list) and named else None
    found: Any
    if isinstance(config, VanillaConfig):
        found = OUR_CLASSES.get(name) if isinstance(name, str) else None
    else:
        found = getattr(transformers, name, None) if isinstance(name, str) else None
    is_class = isinstance(found, type) and issubclass(found, PreTrainedModel)
    if not is_class or not isinstance(config, found.config_class or PreTrainedConfig):
        allowed = [known for known, cls in OUR_CLASSES.items() if cls.config_class is type(config)]
        which = f"one of {', '.join(allowed)}" if allowed else f"a class of transformers for a {type(config).__name__}"
        raise ValueError(f"has architectures={named!r} in config.json: it must name {which}")
    return found


def on_meta(model_class: type[PreTrainedModel], config: PreTrainedConfig, stored: Stored) -> tuple[Any, Any]:
    """Return a model without memory of its own, and transformers' report of loading tensors of these shapes into it.

    Raises:
        ValueError: The config does not describe a model.
    """
    # Nothing is drawn or computed: a position table takes its memory only when the model is loaded. Transformers
    # renames tensors of old files only for classes of its own modules
    members = {"initialize_weights": lambda self: None, "__module__": model_class.__module__}
    empty = type(model_class.__name__, (model_class,), members)
    tensors = {name: torch.empty(shape, device="meta") for name, shape in stored.shapes.items()}
    try:
        with quiet():
            return empty.from_pretrained(  # type: ignore[attr-defined]
                None, config=config, state_dict=tensors, device_map="meta", attn_implementation="eager",
                output_loading_info=True, ignore_mismatched_sizes=True,
            )  # fmt: skip
    except Exception as error:  # whatever a stranger's fields make transformers stumble over
        raise ValueError(
            f"has a config.json that does not describe a {model_class.__name__}: {one_line(error)}"
        ) from error


def check_types(model: PreTrainedModel, stored: Stored) -> None:
    """Raise ValueError for tensors of numbers that were rounded to integers or 8 bits, which loading would take."""
    real = {name for name, tensor in model.state_dict().items() if tensor.is_floating_point()}
    prefix = f"{model.base_model_prefix}."
    for name, dtype in stored.dtypes.items():
        if dtype not in FLOATS and real & {name, prefix + name, name.removeprefix(prefix)}:
            raise ValueError(f"has {name} of data type {dtype} in its weights, must be one of {', '.join(FLOATS)}")


def check_finite(folder: Path) -> None:
    """Raise ValueError for weights that hold NaN or infinity. All are read, one tensor at a time."""
    for path in weight_files(folder):
        with opened(path) as file:
            for name in file.keys():  # noqa: SIM118
                if file.get_slice(name).get_dtype() not in FLOATS:
                    continue
                tensor = file.get_tensor(name)
                # Both bounds are NaN if any number is: one pass, and no memory as isfinite() of all takes
                if tensor.numel() and not torch.stack(torch.aminmax(tensor)).isfinite().all():
                    raise ValueError(f"has {name} with NaN or infinity in {path.name}")


def few(names: Iterable[str]) -> str:
    """Return the first of some names, and how many more there are."""
    ordered = sorted(names)
    more = len(ordered) - NAMED
    return ", ".join(ordered[:NAMED]) + (f" and {more} more" if more > 0 else "")


def one_line(error: BaseException) -> str:
    """Return the start of what an error says, without line breaks."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 600 else f"{text[:600]} ..."


@contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers from reporting."""
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
