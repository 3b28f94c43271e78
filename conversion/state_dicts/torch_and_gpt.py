"""State dicts of nanoGPT, minGPT and torch: the names and shapes of their tensors, and our config inferred from them.

Shapes and names determine sizes, biases, norms and ties; other fields (heads, activation) come from the caller, or
are that library's default. Each function here reads one kind of state dict.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass

import torch

from vanillaformer.modeling import (
    VanillaDecoderForCausalLM,
    VanillaDecoderModel,
    VanillaEncoderDecoderModel,
    VanillaEncoderModel,
)
from vanillaformer.modeling.base import VanillaPreTrainedModel

from ..architectures import gpt
from ..mapping.fields import Values
from ..mapping.tensors import SAME, Rows, Table, Tensors
from ..mapping.weights import Link, expand_table

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
    ignored: str = "(?!)"  # pattern of names that are not weights
    initialized: str = "(?!)"  # pattern of our tensors that it may lack


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
    ours: (native[0], Rows(3) if isinstance(ours, tuple) else SAME) if isinstance(native, tuple) else native
    for ours, native in gpt.GPT2_STACK.items()
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
    return Reading(VanillaDecoderForCausalLM, links, inferred, {"hidden_act": hidden_act}, ignored=masks)


def torch_attention(ours: str, native: str) -> Table:
    """Return an `nn.MultiheadAttention`, its queries, keys and values in one."""
    names = [f"layers.{{layer}}.{ours}.{name}_proj" for name in "qkv"]
    fused: Table = {
        tuple(f"{name}.{kind}" for name in names): (f"layers.{{layer}}.{native}.in_proj_{kind}", Rows(3))
        for kind in ("weight", "bias")
    }
    return fused | {f"layers.{{layer}}.{ours}.o_proj": f"layers.{{layer}}.{native}.out_proj"}


def torch_norms(*sublayers: str) -> Table:
    """Return the numbered norms of a layer."""
    return {
        f"layers.{{layer}}.{name}_residual.norm": f"layers.{{layer}}.norm{number}"
        for number, name in enumerate(sublayers, 1)
    }


TORCH_ENDS: Table = {
    "layers.{layer}.mlp.up_proj": "layers.{layer}.linear1",
    "layers.{layer}.mlp.down_proj": "layers.{layer}.linear2",
    "norm": "norm",
}
TORCH_ENCODER = TORCH_ENDS | torch_attention("self_attn", "self_attn") | torch_norms("self_attn", "mlp")
TORCH_DECODER = (
    TORCH_ENDS
    | torch_attention("self_attn", "self_attn")
    | torch_attention("cross_attn", "multihead_attn")
    | torch_norms("self_attn", "cross_attn", "mlp")
)
TORCH_ASSUMED = NO_TOKENS | {
    "position_embedding_type": "none",
    "norm_placement": "post",
    "norm_eps": 1e-5,
    "hidden_act": "relu",
    "scale_embedding": False,
    "embedding_norm": False,
    "type_vocab_size": 0,
}
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
        model_class = VanillaDecoderModel if causal else VanillaEncoderModel
        return Reading(
            model_class, expand_table(TORCH_ENCODER, depth), inferred, TORCH_ASSUMED, initialized=EMBEDDINGS
        )
    inferred |= {
        "encoder_layers": depth,
        "encoder_intermediate_size": inner,
        "num_hidden_layers": layers_in(state, "decoder.layers."),
        "intermediate_size": shape_of(state, "decoder.layers.0.linear1.weight")[0],
    }
    links = expand_table(TORCH_ENCODER, depth, "encoder.", "encoder.")
    links += expand_table(TORCH_DECODER, inferred["num_hidden_layers"], "decoder.", "decoder.")
    apart = {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False, "decoder_start_token_id": None}
    return Reading(VanillaEncoderDecoderModel, links, inferred, TORCH_ASSUMED | apart, initialized=EMBEDDINGS)
