"""Our models from state dicts of PyTorch's own Transformer, nanoGPT, minGPT and x-transformers."""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors.torch import load_file

from vanillaformer.hub.weights import one_line
from vanillaformer.modeling.base import VanillaPreTrainedModel

from ..mapping.fields import Values
from ..mapping.tensors import Tensors
from ..mapping.weights import present_links, tensors_of, to_our_values, uncovered, write_tensors
from .torch_and_gpt import Reading, read_mingpt, read_nanogpt, read_torch
from .x_transformers import read_x_transformers

SOURCES: dict[str, Callable[[Tensors, bool | None, Values], Reading]] = {
    "torch.nn.Transformer": read_torch,
    "nanogpt": read_nanogpt,
    "mingpt": read_mingpt,
    "x-transformers": read_x_transformers,
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
    causal: bool | None = None,
    **options: Any,
) -> VanillaPreTrainedModel:
    """Return our model with the weights in a state dict, which computes the same.

    A `torch.nn.Transformer` becomes a `VanillaEncoderDecoderModel`, an `nn.TransformerEncoder` a `VanillaEncoderModel`
    or, causal, a `VanillaDecoderModel`. They have no embeddings: ours are new tables of `vocab_size` rows, by
    default one, for a model that is called with `inputs_embeds`. nanoGPT's, minGPT's and x-transformers' language
    models become a `VanillaDecoderForCausalLM`.

    Args:
        state_dict: The tensors by name, a checkpoint that holds them (nanoGPT's `ckpt.pt`), or the file of either.
        source: The kind of model: `torch.nn.Transformer`, `nanogpt`, `mingpt` or `x-transformers`.
        prefix: Prefix of the names; other tensors are left out.
        causal: Whether a stack is a decoder, if names do not show it: an `nn.TransformerEncoder` (default: no) and
            x-transformers (default: yes).
        **options: Fields of our config that weights do not determine. `num_attention_heads` must be given (nanoGPT's
            checkpoints tell it); for the others the library's default is taken: `hidden_act`, `norm_eps`, for
            `torch.nn.Transformer` `norm_placement="post"` (its `norm_first=True` is `"pre"`), and for x-transformers
            `norm_unit_offset=True` (its `norm_add_unit_offset`, which older versions had not).

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
        raise ValueError(f"num_attention_heads must be given: a state dict of {source} does not tell it")
    reading = SOURCES[source](state, causal, options)
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
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # unpickling a damaged file raises anything
        raise ValueError(f"{path} cannot be read as tensors: {one_line(error)[:300]}") from error
    if not isinstance(found, Mapping):
        raise ValueError(f"{path} must hold tensors by name, got a {type(found).__name__}")
    return found


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
    known = set(config_class.__dataclass_fields__) | {"rope_parameters"}
    fields = {name: value for name, value in (reading.assumed | reading.inferred).items() if name in known}
    if options.get("position_embedding_type", "rotary") != "rotary":
        fields = {name: value for name, value in fields.items() if not name.startswith("rope_")}
    try:
        return config_class(**(fields | options))
    except StrictDataclassError as error:
        raise ValueError(f"ours has no such model: {one_line(error)}") from error


def load_weights(
    reading: Reading, ours: VanillaPreTrainedModel, state: Tensors, source: str
) -> VanillaPreTrainedModel:
    """Give our model the weights.

    Raises:
        ValueError: A tensor of either side is left over.
    """
    state = state | reading.added
    table = present_links(reading.links, tensors_of(ours), state)
    covered = {link.native for link in table}
    if left := [name for name in state if name not in covered and not re.fullmatch(reading.ignored, name)]:
        raise ValueError(f"{type(ours).__name__} has no counterpart of the {source} tensors {', '.join(left)}")
    missing = uncovered(ours, [name for link in table for name in link.ours])
    if left := [name for name in missing if not re.match(reading.initialized, name)]:
        raise ValueError(f"the {source} state dict has no counterpart of our {', '.join(left)}")
    write_tensors(ours, to_our_values(table, state, ours.config, set(tensors_of(ours))))
    return ours
