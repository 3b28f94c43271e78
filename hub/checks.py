"""Checks of a saved model before any of it is built: config and settings, then weights against the config.

They take no memory: sizes are compared with the headers of the weights, and the model that the config describes is
built without memory for its tensors. Errors of files and of the Hub are one line without tokens.
"""

import hashlib
import json
import struct
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatch
from math import prod
from pathlib import Path
from traceback import walk_tb
from typing import Any, NamedTuple

import torch
import transformers
from huggingface_hub import constants, errors
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.utils import logging

from vanillaformer.configuration import VanillaConfig
from vanillaformer.configuration.rules import INNER_WIDTHS, LAYER_COUNTS, MODEL_WIDTHS, check_limits
from vanillaformer.console.reporting import one_line, redact_tokens
from vanillaformer.modeling import AUTO_CLASSES

from .file_names import ADAPTER, CONFIG, EXPORT, GENERATION, INDEX, PICKLES, WEIGHTS

LOGIN = "log in with `hf auth login`, or set HF_TOKEN (https://huggingface.co/settings/tokens)"


class HubError(ValueError):
    """A request that the Hub refuses, and why."""


@contextmanager
def hub_errors(repo: str, revision: str | None = None) -> Iterator[None]:
    """Turn errors of huggingface_hub about a repository into a `HubError`.

    They are not chained, because a traceback could show the token in a header that cannot be sent.
    """
    try:
        yield
    except HubError:
        raise
    except Exception as error:
        if (reason := describe_hub_error(error, repo, revision)) is None:
            raise
        raise HubError(reason) from None


@contextmanager
def file_errors(what: str, folder: Path | None = None) -> Iterator[None]:
    """Turn any error of a library on untrusted files into a ValueError, including panics of Rust code."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise  # an interruption
        raise ValueError(f"{what}: {one_line(error)}{damage(folder) if folder else ''}") from error


def damage(folder: Path) -> str:
    """Return the end of a message about a folder that cannot be loaded: which cached file differs from the Hub's.

    The cache names a file by its ETag, which is a large file's SHA-256 and a small one's name in git; huggingface_hub
    itself compares only sizes. A cache without links (Windows) does not record what should be there.
    """
    for path in sorted(path for path in folder.rglob("*") if path.is_symlink() and path.is_file()):
        stored, digest = path.resolve(), ""
        with stored.open("rb") as file:
            if len(stored.name) == 64:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            elif len(stored.name) == 40:
                content = file.read()
                digest = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()  # as git does
        if digest not in ("", stored.name):
            name = path.relative_to(folder).as_posix()
            return f"; {name} is damaged, it is not what the Hub has: delete {stored} to fetch it again"
    return ""


def describe_hub_error(error: BaseException, repo: str, revision: str | None = None) -> str | None:
    """Return the message of an error about a repository, or None if it does not come from the Hub."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ValueError) and "README.md" in str(cause):  # says more than its response
            return short_message(cause)
        for kind, text in KINDS.items():
            if isinstance(cause, kind):
                facts = {"repo": repo, "revision": revision, "login": LOGIN, "hub": constants.ENDPOINT}
                return text.format(**facts, error=short_message(cause))
        if (answer := getattr(cause, "response", None)) is not None:
            text = STATUS.get(answer.status_code, "the Hub refuses that for {repo}: {error}")
            return text.format(repo=repo, login=LOGIN, error=short_message(cause))
        if type(cause).__name__ == "LocalProtocolError" or isinstance(cause, UnicodeEncodeError):
            return f"the token has characters that are not allowed in tokens: {LOGIN}"
        if type(cause).__module__.startswith("httpx"):  # or httpx2: which one depends on huggingface_hub's version
            message = short_message(cause) or type(cause).__name__
            return f"the connection to the Hub ({constants.ENDPOINT}) failed: {message}"
        cause = cause.__cause__ or cause.__context__
    raised_in = [str(frame.f_globals.get("__name__")) for frame, _ in walk_tb(error.__traceback__)][-1:]
    if raised_in and raised_in[0].partition(".")[0] == "huggingface_hub":  # or a library that it uploads with
        return f"{repo}: {type(error).__name__}: {short_message(error)}"
    return None


def short_message(error: BaseException) -> str:
    """Return the first two lines of an error message that are not blank, without tokens."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return redact_tokens(" ".join(lines[:2]))


# By the kind of error, the most specific first
KINDS: dict[type[BaseException], str] = {
    errors.OfflineModeIsEnabled: "HF_HUB_OFFLINE is set: the Hub is not asked, and {repo} is not completely in the "
    "cache",
    errors.LocalTokenNotFoundError: "no token found: {login}",
    errors.HFValidationError: "{repo!r} is not a repository name: {error}",
    errors.GatedRepoError: "{repo} is gated: ask for access at {hub}/{repo}, and {login}",
    errors.RepositoryNotFoundError: "the Hub has no {repo}, or one that is private and not yours: {login}",
    errors.RevisionNotFoundError: "{repo} has no revision {revision!r}",
}
# By the status of the response
STATUS: dict[int, str] = {
    401: "the token is not (or no longer) valid: {login}",
    403: "the token has no right to do that in {repo}: pushing needs a write token of somebody who may write",
    409: "{repo} is taken: {error}",
    412: "{repo} was changed in the meantime: try again",
    413: "a file of {repo} is too large for the Hub: {error}",
}


# Data types of parameters, as safetensors and transformers name them
FLOATS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
LARGEST_JSON = 2**25  # maximum bytes of configs and indexes: a million labels fit
# Sizes that are never larger than the number of stored weights
STORED_WIDTHS = (*MODEL_WIDTHS, *INNER_WIDTHS, "vocab_size", "decoder_vocab_size")
# Fields that name attention and experts of transformers, or else a kernel on the Hub
IMPLEMENTATIONS = ("attn_implementation", "_attn_implementation", "experts_implementation", "_experts_implementation")
OUR_CLASSES = {cls.__name__: cls for classes in AUTO_CLASSES.values() for cls in classes}
COMPUTED = 2**24  # numbers in computed tables, such as positions, that any model may have: 64 MB
NAMED = 5  # names in a message
MOST_BEAMS = 256  # more would take all memory


class Stored(NamedTuple):
    """The tensors in a folder's safetensors files: shapes and data types by name."""

    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, str]

    @property
    def numbers(self) -> int:
        return sum(map(prod, self.shapes.values()))


def check_folder(folder: Path) -> None:
    """Raise ValueError for a folder without a config and weights that belong together.

    The message continues a sentence that begins with the folder.
    """
    if (folder / EXPORT).is_file():
        raise ValueError(f"has an exported model ({EXPORT}), which only vanillaformer generate runs")
    if (folder / ADAPTER).is_file():  # transformers would load them too, even from a pickle
        raise ValueError(f"has adapters ({ADAPTER}): merge them (merge_and_unload of peft) and save the model itself")
    fields, stored = read_config(folder), read_headers(folder)
    # Sizes with the same names in all architectures: larger ones than those of the weights would take memory
    for name, value in ((name, value) for part in _parts(fields) for name, value in part.items()):
        if type(value) is int and name in LAYER_COUNTS and value > len(stored.shapes):
            raise ValueError(f"has {name}={value:,} in config.json, but weights of {len(stored.shapes):,} tensors")
        if type(value) is int and name in STORED_WIDTHS and value > stored.numbers:
            raise ValueError(f"has {name}={value:,} in config.json, but weights of {stored.numbers:,} numbers")
    config: Any = open_config(folder)
    size = getattr(config, "decoder_vocab_size", None) or getattr(config, "vocab_size", None)
    settings = read_json(folder / GENERATION) if (folder / GENERATION).is_file() else {}
    for name in ("decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id", "eos_token_id"):
        value = settings.get(name)
        tokens = [token for token in (value if isinstance(value, list) else [value]) if token is not None]
        most = size if name != "eos_token_id" else None  # small models keep the id of a larger one
        if any(type(token) is not int or (most and not 0 <= token < most) for token in tokens):
            raise ValueError(f"has {name}={value!r:.80} in {GENERATION}, but the model has {size or 0:,} tokens")
    for name in ("num_beams", "num_return_sequences"):
        if type(count := settings.get(name) or 1) is not int or count > MOST_BEAMS:
            raise ValueError(f"has {name}={count!r:.80} in {GENERATION}: it must be an integer up to {MOST_BEAMS}")
    check_weights(folder, config, stored)


def read_config(folder: Path) -> dict[str, Any]:
    """Return the fields in a folder's config; raise ValueError for impossible sizes, data types or settings."""
    if not (folder / CONFIG).is_file():
        found = {path.parent for path in folder.glob("checkpoint-*/config.json")}
        steps = {int(step): path for path in found if (step := path.name.partition("-")[2]).isdigit()}
        last = f"; the last checkpoint of an unfinished run is {steps[max(steps)]}" if steps else ""
        raise ValueError(f"has no {CONFIG}: it contains no finished model{last}")
    fields = read_json(folder / CONFIG)
    for part in _parts(fields):
        try:
            check_limits(part)
        except ValueError as error:
            raise ValueError(f"has an invalid {CONFIG}: {error}") from error
        for name in IMPLEMENTATIONS:
            value = part.get(name)
            if "/" in str(value):  # transformers would fetch and run it, from publishers that it trusts without asking
                raise ValueError(f"has {name}={value!r} in {CONFIG}: kernels of the Hub are code, which is not run")
        for name in ("dtype", "torch_dtype"):
            value = part.get(name)
            if isinstance(value, str) and value.removeprefix("torch.") not in FLOATS.values():
                raise ValueError(f"has {name}={value!r} in {CONFIG}: it must be one of {', '.join(FLOATS.values())}")
    return fields


def _parts(fields: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a config and the configs in it, which native models with several parts have."""
    waiting = [fields]
    while waiting:
        yield (part := waiting.pop())
        waiting += [value for name, value in part.items() if isinstance(value, dict) and name != "label2id"]


def open_config(folder: Path) -> PreTrainedConfig:
    """Return the config of a folder; raise ValueError for invalid fields, or a type that is unknown or custom code."""
    try:
        return AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # invalid fields raise various errors in transformers
        if "trust_remote_code" in str(error):
            raise ValueError(
                "is a model with custom code, which is not run: load it in Python, by trust_remote_code=True, "
                "once you have read it"
            ) from error
        raise ValueError(f"has an invalid {CONFIG}: {one_line(error)}") from error


def check_unquantized(config: PreTrainedConfig) -> None:
    """Raise ValueError for the config of quantized weights, which can be neither trained nor converted."""
    if settings := getattr(config, "quantization_config", None):
        method = settings.get("quant_method") if isinstance(settings, dict) else settings.quant_method
        raise ValueError(
            f"the weights are quantized (quant_method={str(method)!r}) and cannot be trained or converted: use the "
            "original weights, or dequantize() these"
        )


def check_weights(folder: Path, config: PreTrainedConfig, stored: Stored) -> None:
    """Raise ValueError unless the weights are those of the model that the config describes, complete and finite.

    The model is the one that the folder was saved from: what another task adds or leaves out does not count. Names
    that an architecture of transformers has in addition are ignored, as many of its files have some.
    """
    if getattr(config, "quantization_config", None) is not None:
        return  # tensors and data types are the quantizer's
    model_class = class_of(config)
    model, report = _on_meta(model_class, config, stored)
    if missing := report["missing_keys"]:
        raise ValueError(f"has weights without {few(missing)}, which a {model_class.__name__} has")
    if isinstance(config, VanillaConfig) and (more := report["unexpected_keys"]):
        raise ValueError(f"has weights with {few(more)}, which a {model_class.__name__} does not have")
    if mismatched := sorted(report["mismatched_keys"]):
        tensor, found, wanted = mismatched[0]
        raise ValueError(f"has {tensor} of shape {tuple(found)} in its weights, but {tuple(wanted)} by config.json")
    tables = sum(buffer.numel() for buffer in model.buffers())
    if isinstance(config, VanillaConfig) and tables > max(stored.numbers, COMPUTED):
        raise ValueError(
            f"has a config.json by which tables of {tables:,} numbers would be computed, at most {COMPUTED:,} or as "
            f"many as the weights have ({stored.numbers:,})"
        )
    real = {name for name, tensor in model.state_dict().items() if tensor.is_floating_point()}
    prefix = f"{model.base_model_prefix}."
    for name, dtype in stored.dtypes.items():  # rounded to integers or 8 bits, which loading would take
        if dtype not in FLOATS and real & {name, prefix + name, name.removeprefix(prefix)}:
            raise ValueError(f"has {name} of data type {dtype} in its weights, must be one of {', '.join(FLOATS)}")
    for path in weight_files(folder):  # one tensor at a time
        with _opened(path) as file:
            for name in file.keys():  # noqa: SIM118
                if file.get_slice(name).get_dtype() not in FLOATS:
                    continue
                tensor = file.get_tensor(name)
                # Both bounds are NaN if any number is: one pass, without the memory that isfinite() of all takes
                if tensor.numel() and not torch.stack(torch.aminmax(tensor)).isfinite().all():
                    raise ValueError(f"has {name} with NaN or infinity in {path.name}")


def class_of(config: PreTrainedConfig) -> type[PreTrainedModel]:
    """Return the class that a config's model was saved from: ours or one of transformers."""
    named = config.architectures
    name = str(named[0]) if isinstance(named, list) and named else ""
    found: Any = OUR_CLASSES.get(name) if isinstance(config, VanillaConfig) else getattr(transformers, name, None)
    is_class = isinstance(found, type) and issubclass(found, PreTrainedModel)
    if not is_class or not isinstance(config, found.config_class or PreTrainedConfig):
        allowed = [known for known, cls in OUR_CLASSES.items() if cls.config_class is type(config)]
        which = f"one of {', '.join(allowed)}" if allowed else f"a class of transformers for a {type(config).__name__}"
        raise ValueError(f"has architectures={named!r} in config.json: it must name {which}")
    return found


def _on_meta(model_class: type[PreTrainedModel], config: PreTrainedConfig, stored: Stored) -> tuple[Any, Any]:
    """Return a model on the meta device, and transformers' report of loading tensors of these shapes."""
    # Nothing is drawn or computed: a position table takes its memory only when the model is loaded. Transformers
    # renames tensors of old files only for classes of its own modules
    members = {"initialize_weights": lambda self: None, "__module__": model_class.__module__}
    empty = type(model_class.__name__, (model_class,), members)
    tensors = {name: torch.empty(shape, device="meta") for name, shape in stored.shapes.items()}
    try:
        with ExitStack() as stack:  # transformers reports again when it ends
            stack.callback(logging.set_verbosity, logging.get_verbosity())
            logging.set_verbosity(logging.CRITICAL)
            if logging.is_progress_bar_enabled():
                stack.callback(logging.enable_progress_bar)
                logging.disable_progress_bar()
            return empty.from_pretrained(  # type: ignore[attr-defined]
                None, config=config, state_dict=tensors, device_map="meta", attn_implementation="eager",
                output_loading_info=True, ignore_mismatched_sizes=True,
            )  # fmt: skip
    except Exception as error:  # invalid fields raise various errors in transformers
        raise ValueError(
            f"has a config.json that does not describe a {model_class.__name__}: {one_line(error)}"
        ) from error


def few(names: Iterable[str]) -> str:
    """Return the first of some names, and how many more there are."""
    ordered = sorted(names)
    more = len(ordered) - NAMED
    return ", ".join(ordered[:NAMED]) + (f" and {more} more" if more > 0 else "")


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; raise ValueError if it is too large, or not a JSON object."""
    if (size := path.stat().st_size) > LARGEST_JSON:
        raise ValueError(f"has a {path.name} of {size:,} bytes, at most {LARGEST_JSON:,} are read")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"has a {path.name} that is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"has a {path.name} that is not a JSON object, but a {type(content).__name__}")
    return content


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a folder; raise ValueError if there are none, or some are missing."""
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
    """Return the message about a folder with these files, none of which is a safetensors file."""
    pickles = sorted(name for name in names if any(fnmatch(name, pattern) for pattern in PICKLES))
    about = f" ({', '.join(pickles)} is not read: a pickle can run code when it is loaded)" if pickles else ""
    return f"has no {WEIGHTS}{about}; save_pretrained of a loaded model writes one"


def read_headers(folder: Path) -> Stored:
    """Return the tensors in a folder's safetensors files, by their headers."""
    stored = Stored({}, {})
    for path in weight_files(folder):
        with _opened(path) as file:
            for name in file.keys():  # noqa: SIM118
                tensor = file.get_slice(name)
                stored.shapes[name], stored.dtypes[name] = tuple(tensor.get_shape()), tensor.get_dtype()
    return stored


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open a safetensors file; raise ValueError if its header is damaged, or describes other bytes than there are."""
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError, UnicodeError, struct.error) as error:
        raise ValueError(f"has a damaged {path.name}: {error}") from error
