"""Our models from state dicts of PyTorch's own Transformer, nanoGPT and minGPT.

Shapes and names determine sizes, biases, norms and ties; other fields (heads, activation) come from the caller, or
are the library's defaults. `read_gpt` and `read_torch` each read one kind of state dict.
"""

import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors.torch import load_file

import vanillaformer.modeling as modeling
from vanillaformer.console.reporting import one_line
from vanillaformer.modeling.base import VanillaPreTrainedModel

from .architectures.gpt import GPT2_STACK
from .mapping.fields import Values
from .mapping.tensors import SAME, Table, Tensors, block, rows
from .mapping.weights import Link, expand_table, present_links, tensors_of, to_our_values, uncovered, write_tensors

BIASED = {"attention_bias": True, "mlp_bias": True, "norm_bias": True}
# For a model without embeddings: a new table, by default of one row, and no special tokens
NO_TOKENS = {"vocab_size": 1, "pad_token_id": None, "bos_token_id": None, "eos_token_id": None}


@dataclass(frozen=True)
class Reading:
    """Our model for a state dict."""

    model_class: type[VanillaPreTrainedModel]  # our model
    links: list[Link]  # the links of its tensors
    inferred: Values  # fields that its names and shapes determine
    assumed: Values  # fields that weights do not determine, with the library's default
    ignored: str = "(?!)"  # pattern of the names of other tensors
    initialized: str = "(?!)"  # pattern of our tensors that the state dict may lack


def layers_in(state: Collection[str], prefix: str) -> int:
    """Return the number of layers with a prefix; raise ValueError if there are none."""
    numbers = [re.match(rf"{re.escape(prefix)}(\d+)\.", name) for name in state]
    if not any(numbers):
        raise ValueError(f"the state dict has no {prefix}0...: is it another model's, or does it need a prefix?")
    return 1 + max(int(match[1]) for match in numbers if match)


def shape_of(state: Tensors, name: str) -> torch.Size:
    """Return the shape of a tensor; raise ValueError if it is missing."""
    if name not in state:
        raise ValueError(f"the state dict has no {name}: is it another model's, or does it need a prefix?")
    return state[name].shape


# GPT-2's tensors where linear layers are not transposed
GPT: Table = {
    ours: (native[0], rows(3) if isinstance(ours, tuple) else SAME) if isinstance(native, tuple) else native
    for ours, native in GPT2_STACK.items()
}


def read_gpt(state: Tensors, causal: bool, hidden_act: str) -> Reading:
    """Read a GPT-2 whose layers are `nn.Linear`: `transformer.h.0.attn.c_attn.weight` (3D, D)."""
    vocabulary, width = shape_of(state, "transformer.wte.weight")
    layers = layers_in(state, "transformer.h.")
    links = expand_table(GPT, layers, "model.", "transformer.")
    tied = "lm_head.weight" not in state or torch.equal(state["lm_head.weight"], state["transformer.wte.weight"])
    links += [] if "lm_head.weight" not in state else expand_table({"lm_head.weight": "lm_head.weight"})
    inferred = {
        "vocab_size": vocabulary,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "intermediate_size": shape_of(state, "transformer.h.0.mlp.c_fc.weight")[0],
        "max_position_embeddings": shape_of(state, "transformer.wpe.weight")[0],
        "attention_bias": "transformer.h.0.attn.c_attn.bias" in state,
        "mlp_bias": "transformer.h.0.mlp.c_fc.bias" in state,
        "norm_bias": "transformer.ln_f.bias" in state,
        "tie_word_embeddings": tied,
        "position_embedding_type": "learned",
    }
    masks = r"transformer\.h\.\d+\.attn\.bias"
    return Reading(modeling.VanillaDecoderForCausalLM, links, inferred, {"hidden_act": hidden_act}, ignored=masks)


def torch_attention(ours: str, native: str) -> Table:
    """Return the table of an `nn.MultiheadAttention`, with queries, keys and values in one tensor."""
    names = [f"layers.{{layer}}.{ours}.{name}_proj" for name in "qkv"]
    fused: Table = {
        tuple(f"{name}.{kind}" for name in names): (f"layers.{{layer}}.{native}.in_proj_{kind}", rows(3))
        for kind in ("weight", "bias")
    }
    return fused | {f"layers.{{layer}}.{ours}.o_proj": f"layers.{{layer}}.{native}.out_proj"}


TORCH_ENCODER = torch_attention("self_attn", "self_attn") | {"norm": "norm"} | block(
    "layers.{layer}.", attention_norm="norm1", up="linear1", down="linear2", mlp_norm="norm2"
)  # fmt: skip
TORCH_DECODER = TORCH_ENCODER | torch_attention("cross_attn", "multihead_attn")
TORCH_DECODER |= block("layers.{layer}.", cross_norm="norm2", mlp_norm="norm3")
TORCH_ASSUMED = NO_TOKENS | {
    "position_embedding_type": "none", "norm_placement": "post", "norm_eps": 1e-5, "hidden_act": "relu",
    "scale_embedding": False, "embedding_norm": False, "type_vocab_size": 0,
}  # fmt: skip
EMBEDDINGS = r"(encoder\.|decoder\.)?(embed_tokens|embeddings)\."


def read_torch(state: Tensors, causal: bool) -> Reading:
    """Read an `nn.Transformer`, or an `nn.TransformerEncoder`, which has no names `encoder` and `decoder`."""
    both = any(name.startswith("decoder.") for name in state)
    first = "encoder." if both else ""
    inner, width = shape_of(state, f"{first}layers.0.linear1.weight")
    depth = layers_in(state, f"{first}layers.")
    inferred = {
        "hidden_size": width,
        "num_hidden_layers": depth,
        "intermediate_size": inner,
        "final_norm": f"{first}norm.weight" in state,
    }
    inferred |= dict.fromkeys(BIASED, f"{first}layers.0.linear1.bias" in state)
    if not both:
        model_class = modeling.VanillaDecoderModel if causal else modeling.VanillaEncoderModel
        links = expand_table(TORCH_ENCODER, depth)
        return Reading(model_class, links, inferred, TORCH_ASSUMED, initialized=EMBEDDINGS)
    inferred |= {
        "encoder_layers": depth,
        "encoder_intermediate_size": inner,
        "num_hidden_layers": layers_in(state, "decoder.layers."),
        "intermediate_size": shape_of(state, "decoder.layers.0.linear1.weight")[0],
    }
    links = expand_table(TORCH_ENCODER, depth, "encoder.", "encoder.")
    links += expand_table(TORCH_DECODER, inferred["num_hidden_layers"], "decoder.", "decoder.")
    apart = {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False, "decoder_start_token_id": None}
    return Reading(modeling.VanillaEncoderDecoderModel, links, inferred, TORCH_ASSUMED | apart, initialized=EMBEDDINGS)


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
        state_dict: The tensors by name, a checkpoint that has them (nanoGPT's `ckpt.pt`), or a file of either.
        source: The kind of model: `torch.nn.Transformer`, `nanogpt` or `mingpt`.
        prefix: Prefix of the names; other tensors are left out.
        causal: Whether an `nn.TransformerEncoder` is a decoder.
        **options: Fields of our config that weights do not determine. `num_attention_heads` must be given (nanoGPT's
            checkpoints hold it); for the others the library's default is taken: `hidden_act`, `norm_eps`, and for
            `torch.nn.Transformer` `norm_placement="post"` (its `norm_first=True` is `"pre"`).

    Raises:
        ValueError: `source` is unknown, a field is missing or contradicts the weights, a tensor has no counterpart on
            the other side, or the file cannot be read.
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
    ours = reading.model_class._from_config(config, dtype=dtype)
    table = present_links(reading.links, tensors_of(ours), state)
    covered = {link.native for link in table}
    if left := [name for name in state if name not in covered and not re.fullmatch(reading.ignored, name)]:
        raise ValueError(f"{type(ours).__name__} has no counterpart of the {source} tensors {', '.join(left)}")
    missing = uncovered(ours, [name for link in table for name in link.ours])
    if left := [name for name in missing if not re.match(reading.initialized, name)]:
        raise ValueError(f"the {source} state dict has no counterpart of our {', '.join(left)}")
    write_tensors(ours, to_our_values(table, state, ours.config, tensors_of(ours).keys()))
    return ours.eval()


def load_state_dict(path: str | os.PathLike) -> Mapping[str, Any]:
    """Return the tensors in a file: safetensors, or a pickle, of which no code is run."""
    try:
        if Path(path).suffix == ".safetensors":
            return load_file(path)
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # unpickling a damaged file raises any error
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
        raise ValueError(f"our config does not allow this model: {one_line(error)}") from error
