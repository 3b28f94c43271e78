"""Our models from state dicts of PyTorch's own Transformer, nanoGPT and minGPT."""

import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors.torch import load_file

from vanillaformer.console.reporting import one_line
from vanillaformer.modeling.base import VanillaPreTrainedModel

from ..mapping.fields import Values
from ..mapping.tensors import Tensors
from ..mapping.weights import present_links, tensors_of, to_our_values, uncovered, write_tensors
from .torch_and_gpt import Reading, read_gpt, read_torch

SOURCES: dict[str, Callable[[Tensors, bool], Reading]] = {
    "torch.nn.Transformer": read_torch,
    "nanogpt": partial(read_gpt, hidden_act="gelu"),
    "mingpt": partial(read_gpt, hidden_act="gelu_new"),
}
# Keys of a checkpoint under which the weights may be
NESTED = ("model", "model_state_dict", "state_dict")
# Prefixes that compilation and data parallelism add to every name
WRAPPERS = ("_orig_mod.", "module.")
# nanoGPT's arguments
MODEL_ARGS = {
    "n_head": "num_attention_heads",
    "n_layer": "num_hidden_layers",
    "n_embd": "hidden_size",
    "block_size": "max_position_embeddings",
    "vocab_size": "vocab_size",
    "dropout": "dropout",
}


def from_state_dict(
    state_dict: Mapping[str, Any] | str | os.PathLike,
    source: str,
    *,
    prefix: str = "",
    causal: bool = False,
    **options: Any,
) -> VanillaPreTrainedModel:
    """Return our model with the weights in a state dict, which computes the same.

    A `torch.nn.Transformer` becomes a `VanillaEncoderDecoderModel`, an `nn.TransformerEncoder` a `VanillaEncoderModel`
    or, causal, a `VanillaDecoderModel`. They have no embeddings: ours are new tables of `vocab_size` rows, by
    default one, for a model that is called with `inputs_embeds`. nanoGPT's and minGPT's models become a
    `VanillaDecoderForCausalLM`.

    Args:
        state_dict: The tensors by name, a checkpoint that holds them (nanoGPT's `ckpt.pt`), or the file of either.
        source: The kind of model: `torch.nn.Transformer`, `nanogpt` or `mingpt`.
        prefix: Prefix of the names; other tensors are left out.
        causal: Whether an `nn.TransformerEncoder` is a decoder.
        **options: Fields of our config that weights do not determine. `num_attention_heads` must be given (nanoGPT's
            checkpoints hold it); for the others the library's default is taken: `hidden_act`, `norm_eps`, and for
            `torch.nn.Transformer` `norm_placement="post"` (its `norm_first=True` is `"pre"`).

    Raises:
        ValueError: `source` is unknown, a field is missing or another than the weights tell, a tensor has no
            counterpart on the other side, or the file cannot be read.
    """
    if source not in SOURCES:
        raise ValueError(f"source must be one of {', '.join(SOURCES)}, got {source!r}")
    if isinstance(state_dict, str | os.PathLike):
        state_dict = load_state_dict(state_dict)
    state, arguments = unwrapped(state_dict, prefix)
    options = arguments | options
    if options.get("num_attention_heads") is None:
        raise ValueError(f"num_attention_heads must be given: a state dict of {source} does not determine it")
    reading = SOURCES[source](state, causal)
    config = config_of(reading, options, source)
    dtype = next((tensor.dtype for tensor in state.values() if tensor.is_floating_point()), torch.float32)
    return load_weights(reading, reading.model_class._from_config(config, dtype=dtype), state, source).eval()


def load_state_dict(path: str | os.PathLike) -> Mapping[str, Any]:
    """Return the tensors in a file: safetensors, or a pickle, of which no code is run.

    Raises:
        ValueError: The file does not exist or holds something else.
    """
    try:
        if Path(path).suffix == ".safetensors":
            return load_file(path)
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # unpickling a damaged file raises anything
        raise ValueError(f"{path} cannot be read as tensors: {one_line(error)[:300]}") from error
    if not isinstance(loaded, Mapping):
        raise ValueError(f"{path} must hold tensors by name, got a {type(loaded).__name__}")
    return loaded


def unwrapped(state_dict: Mapping[str, Any], prefix: str = "") -> tuple[Tensors, Values]:
    """Return the tensors of a checkpoint, by the names below `prefix`, and the fields of its arguments."""
    arguments: Values = {}
    for key in NESTED:
        if isinstance(state_dict.get(key), Mapping):
            given = state_dict.get("model_args") or {}
            arguments = {ours: given[name] for name, ours in MODEL_ARGS.items() if given.get(name) is not None}
            state_dict = state_dict[key]
            break
    while wrapper := next((w for w in WRAPPERS if state_dict and all(name.startswith(w) for name in state_dict)), ""):
        state_dict = {name.removeprefix(wrapper): value for name, value in state_dict.items()}
    state = {name.removeprefix(prefix): value for name, value in state_dict.items() if name.startswith(prefix)}
    if wrong := [name for name, value in state.items() if not isinstance(value, torch.Tensor)]:
        raise ValueError(f"a state dict holds tensors by name, but {wrong[0]!r} is a {type(state[wrong[0]]).__name__}")
    if not state:
        raise ValueError(f"the state dict has no tensor whose name starts with prefix={prefix!r}")
    return state, arguments


def config_of(reading: Reading, options: Values, source: str) -> Any:
    """Return our config: inferred from the weights, given by the caller, or else the library's defaults."""
    for name, value in reading.inferred.items():
        if name in options and options[name] != value:
            raise ValueError(f"{name}={options[name]!r}, but the {source} state dict has {name}={value!r}")
    config_class: Any = reading.model_class.config_class
    known = config_class.__dataclass_fields__
    fields = {name: value for name, value in (reading.assumed | reading.inferred).items() if name in known}
    try:
        return config_class(**(fields | options))
    except StrictDataclassError as error:
        raise ValueError(f"ours has no such model: {one_line(error)}") from error


def load_weights(
    reading: Reading, ours: VanillaPreTrainedModel, state: Tensors, source: str
) -> VanillaPreTrainedModel:
    """Give our model the weights; raise ValueError if a tensor of either side is left over."""
    table = present_links(reading.links, tensors_of(ours), state)
    covered = {link.native for link in table}
    if left := [name for name in state if name not in covered and not re.fullmatch(reading.ignored, name)]:
        raise ValueError(f"{type(ours).__name__} has no counterpart of the {source} tensors {', '.join(left)}")
    missing = uncovered(ours, [name for link in table for name in link.ours])
    if left := [name for name in missing if not re.match(reading.initialized, name)]:
        raise ValueError(f"the {source} state dict has no counterpart of our {', '.join(left)}")
    write_tensors(ours, to_our_values(table, state, ours.config, set(tensors_of(ours))))
    return ours
