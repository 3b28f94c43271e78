"""Reading the safetensors files and JSON files of a saved model: their headers, without memory for the weights."""

import json
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open

from .file_names import INDEX, PICKLES, WEIGHTS

# Data types of parameters, as safetensors and transformers name them
FLOATS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
LARGEST_JSON = 2**25  # bytes, of configs and indexes: a million labels fit


class Stored(NamedTuple):
    """The tensors in a folder's safetensors files: shapes and data types by name."""

    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, str]

    @property
    def numbers(self) -> int:
        """Number of numbers in all tensors."""
        return sum(prod(shape) for shape in self.shapes.values())


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; raise ValueError if it is too large, or not a JSON object."""
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
    """Return the safetensors files of a folder; raise ValueError if there are none, or not all."""
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
    """Open a safetensors file; raise ValueError if its header is damaged, or describes other bytes than there are."""
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError, UnicodeError, struct.error) as error:
        raise ValueError(f"has a damaged {path.name}: {error}") from error


def read_headers(folder: Path) -> Stored:
    """Return the tensors that a folder's safetensors files hold, by their headers."""
    stored = Stored({}, {})
    for path in weight_files(folder):
        with opened(path) as file:
            for name in file.keys():  # noqa: SIM118
                tensor = file.get_slice(name)
                stored.shapes[name], stored.dtypes[name] = tuple(tensor.get_shape()), tensor.get_dtype()
    return stored


def one_line(error: BaseException) -> str:
    """Return the start of what an error says, without line breaks."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 600 else f"{text[:600]} ..."
