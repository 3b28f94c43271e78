"""Llama (Touvron et al. 2023), its nearest kin, and what its many other descendants share."""

from vanillaformer.configuration import VanillaDecoderConfig

from ..mapping.architecture import Architecture, Head, Part
from ..mapping.fields import (
    HEAD_DIM,
    TEXT,
    Field,
    attention_biases,
    constant,
    renamed,
    rotary,
    same,
    window_by_layer,
    window_of_all_layers,
)
from ..mapping.tensors import Table

ATTENTION: Table = {
    f"layers.{{layer}}.self_attn.{name}_proj": f"layers.{{layer}}.self_attn.{name}_proj" for name in "qkvo"
}
QUERY_KEY_NORMS: Table = {
    f"layers.{{layer}}.self_attn.{name}_norm": f"layers.{{layer}}.self_attn.{name}_norm" for name in "qk"
}
GATED: Table = {
    f"layers.{{layer}}.mlp.{name}_proj": f"layers.{{layer}}.mlp.{name}_proj" for name in ("gate", "up", "down")
}
PRE_NORMS: Table = {
    "layers.{layer}.self_attn_residual.norm": "layers.{layer}.input_layernorm",
    "layers.{layer}.mlp_residual.norm": "layers.{layer}.post_attention_layernorm",
}
SHARED_NORM: Table = {"layers.{layer}.norm": "layers.{layer}.input_layernorm"}
ENDS: Table = {"embed_tokens": "embed_tokens", "norm": "norm"}
BLOCK: Table = ATTENTION | GATED | PRE_NORMS

DECODER: tuple[Field, ...] = (
    TEXT,
    same(
        "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
        "max_position_embeddings", "attention_dropout", "initializer_range", "use_cache", "tie_word_embeddings",
    ),
    constant(initialization="normal"),
)  # fmt: skip
GROUPED = same("num_key_value_heads")
RMS_NORM: tuple[Field, ...] = (constant(norm="rms_norm"), renamed(norm_eps="rms_norm_eps"))
LAYER_NORM = renamed(norm_eps="layer_norm_eps")
GATED_FEED_FORWARD: tuple[Field, ...] = (constant(feed_forward="gated"), same("hidden_act"))
ATTENTION_BIAS = attention_biases("attention_bias", "q_proj", "k_proj", "v_proj", "o_proj")
WINDOW = (
    window_by_layer(),
    Field(to_native=lambda config: {"use_sliding_window": config.sliding_window is not None}),
)


def decoder_heads(name: str, *fields: Field, ignored: tuple[str, ...] = ()) -> dict[str, Head]:
    """Return the heads of the decoders whose classes are called `name`; `fields` are the language model's."""
    return {
        "base": Head(f"{name}Model", ignored=ignored),
        "lm": Head(f"{name}ForCausalLM", {"lm_head": "lm_head"}, fields, ignored),
        "sequence": Head(f"{name}ForSequenceClassification", {"score": "score"}, ignored=ignored),
    }


def llama_kin(name: str, native: str, table: Table, *fields: Field) -> Architecture:
    """Return a decoder with RMSNorm and gated feed-forward layers, whose classes are called `native`."""
    return Architecture(
        name,
        VanillaDecoderConfig,
        (*DECODER, *RMS_NORM, *GATED_FEED_FORWARD, GROUPED, *fields, rotary()),
        (Part(table | ENDS),),
        decoder_heads(native),
    )


LLAMA = llama_kin("llama", "Llama", BLOCK, ATTENTION_BIAS, same("head_dim", "mlp_bias"))

# Mistral (Jiang et al. 2023): Llama with a sliding window
MISTRAL = llama_kin(
    "mistral",
    "Mistral",
    BLOCK,
    constant(attention_bias=False, mlp_bias=False),
    same("head_dim"),
    window_of_all_layers(),
)

# Qwen 2 (Yang et al. 2024): Llama with biases on queries, keys and values
QWEN2 = llama_kin(
    "qwen2",
    "Qwen2",
    BLOCK,
    *WINDOW,
    HEAD_DIM,
    constant(attention_bias=["q_proj", "k_proj", "v_proj"], mlp_bias=False),
)

# Qwen 3 (Yang et al. 2025): Llama with a norm on the queries and keys of each head
QWEN3 = llama_kin(
    "qwen3",
    "Qwen3",
    BLOCK | QUERY_KEY_NORMS,
    *WINDOW,
    ATTENTION_BIAS,
    same("head_dim"),
    constant(qk_norm="head", mlp_bias=False),
)

# OLMo 2 (OLMo team 2025): the norms are after the sublayers, inside the residual connections
OLMO2_NORMS: Table = {
    "layers.{layer}.self_attn_residual.norm": "layers.{layer}.post_attention_layernorm",
    "layers.{layer}.mlp_residual.norm": "layers.{layer}.post_feedforward_layernorm",
}
OLMO2 = llama_kin(
    "olmo2",
    "Olmo2",
    ATTENTION | QUERY_KEY_NORMS | GATED | OLMO2_NORMS,
    HEAD_DIM,
    ATTENTION_BIAS,
    constant(norm_placement="inside", qk_norm="full", mlp_bias=False),
)
