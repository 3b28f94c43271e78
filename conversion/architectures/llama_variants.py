"""Decoders that differ from Llama in a norm, a layer or the form of a tensor."""

import copy

from transformers import PreTrainedConfig

from vanillaformer.configuration import BlockConfig, VanillaDecoderConfig

from ..mapping.architecture import Architecture, Part
from ..mapping.fields import (
    HEAD_DIM,
    PLAIN_HEADS,
    Field,
    Values,
    attention_biases,
    constant,
    first_rope,
    renamed,
    rotary,
    same,
    switch,
    window_by_layer,
    window_of_all_layers,
)
from ..mapping.tensors import QueryKeyValueRows, Rows, Table
from .gpt_neox import QUERY_KEY_VALUE, block
from .llama import (
    ATTENTION,
    ATTENTION_BIAS,
    BLOCK,
    DECODER,
    ENDS,
    GATED,
    GATED_FEED_FORWARD,
    GROUPED,
    LAYER_NORM,
    OLMO2_NORMS,
    PRE_NORMS,
    QUERY_KEY_NORMS,
    RMS_NORM,
    WINDOW,
    decoder_heads,
)

PLAIN: Table = {f"layers.{{layer}}.mlp.{name}_proj": f"layers.{{layer}}.mlp.{name}_proj" for name in ("up", "down")}
FUSED_GATE: Table = {
    ("layers.{layer}.mlp.gate_proj", "layers.{layer}.mlp.up_proj"): ("layers.{layer}.mlp.gate_up_proj", Rows(2)),
    "layers.{layer}.mlp.down_proj": "layers.{layer}.mlp.down_proj",
}
LLAMA: Table = BLOCK | ENDS
# The output projection is square: the heads have to be as wide as the model
SQUARE_HEAD_DIM = Field(
    to_ours=lambda config: {"head_dim": config.hidden_size // config.num_attention_heads},
    to_native=lambda config: {"head_dim": config.head_dim},
)
INPUT_BIASES = attention_biases("attention_bias", "q_proj", "k_proj", "v_proj")
INTERLEAVED = constant(rope_interleaved=True)


def llama_variant(
    name: str, classes: str, table: Table, *fields: Field, ignored: tuple[str, ...] = ()
) -> Architecture:
    """Return an architecture with Llama's stack; `fields` are those that it does not share with all decoders."""
    return Architecture(
        name=name,
        config_class=VanillaDecoderConfig,
        prefix="model.",
        fields=(*DECODER, *fields),
        parts=(Part(table),),
        heads=decoder_heads(classes, ignored=ignored),
    )


def rotary_layers_to_native(config: BlockConfig) -> Values:
    return {"no_rope_layers": [int(config.is_rotary_layer(layer)) for layer in range(config.num_hidden_layers)]}


def ropes_to_ours(config: PreTrainedConfig) -> Values:
    return {"position_embedding_type": "rotary", "rope_parameters": copy.deepcopy(config.rope_parameters)}


def ropes_to_native(config: BlockConfig) -> Values:
    first = first_rope(config)
    if first is None:
        return {}
    ropes = {name: dict(config.rope_of(name) or first) for name in ("full_attention", "sliding_attention")}
    for rope in ropes.values():
        rope.pop("partial_rotary_factor", None)
    return {"rope_parameters": ropes}


def original_length(config: BlockConfig) -> Values:
    """Return the length that the positions had before they were extended, if they were."""
    rope = first_rope(config) or {}
    length = rope.get("original_max_position_embeddings", config.max_position_embeddings)
    return {"original_max_position_embeddings": length}


ALL = (
    # OLMo (Groeneveld et al. 2024): LayerNorm without weights
    llama_variant(
        "olmo", "Olmo", LLAMA, *GATED_FEED_FORWARD, GROUPED, HEAD_DIM, ATTENTION_BIAS, rotary(),
        constant(norm="layer_norm", norm_eps=1e-5, norm_weight=False, norm_bias=False, mlp_bias=False),
    ),
    # OLMo 3 (OLMo team 2025): OLMo 2 with windows in three of four layers, and positions of their own there
    llama_variant(
        "olmo3", "Olmo3", ATTENTION | QUERY_KEY_NORMS | GATED | OLMO2_NORMS | ENDS, *RMS_NORM, *GATED_FEED_FORWARD,
        GROUPED, HEAD_DIM, ATTENTION_BIAS, window_by_layer(), Field(ropes_to_ours, ropes_to_native),
        constant(norm_placement="inside", qk_norm="full", mlp_bias=False),
    ),
    # Arcee (2025): a plain feed-forward layer with squared ReLU
    llama_variant(
        "arcee", "Arcee", ATTENTION | PLAIN | PRE_NORMS | ENDS, *RMS_NORM, GROUPED, ATTENTION_BIAS, rotary(),
        same("head_dim", "mlp_bias", "hidden_act"), constant(feed_forward="plain"),
    ),
    # Helium (Kyutai 2025): neighboring dimensions are rotated
    llama_variant(
        "helium", "Helium", LLAMA, *RMS_NORM, *GATED_FEED_FORWARD, GROUPED, SQUARE_HEAD_DIM, INPUT_BIASES,
        same("mlp_bias"), INTERLEAVED, rotary(),
    ),
    # GLM-4 (GLM team 2024): half of each head is rotated, neighbors with each other
    llama_variant(
        "glm", "Glm", ATTENTION | FUSED_GATE | PRE_NORMS | ENDS, *RMS_NORM, *GATED_FEED_FORWARD, GROUPED, INPUT_BIASES,
        same("head_dim"), constant(mlp_bias=False), INTERLEAVED, rotary(partial=True),
    ),
    # Phi 3 (Abdin et al. 2024): one tensor for queries, keys and values, one for gate and up
    llama_variant(
        "phi3", "Phi3",
        FUSED_GATE | PRE_NORMS | ENDS | {
            QUERY_KEY_VALUE: ("layers.{layer}.self_attn.qkv_proj", QueryKeyValueRows()),
            "layers.{layer}.self_attn.o_proj": "layers.{layer}.self_attn.o_proj",
        },
        *RMS_NORM, *GATED_FEED_FORWARD, GROUPED, HEAD_DIM, window_of_all_layers(), rotary(partial=True),
        renamed(dropout=("resid_pdrop", "embd_pdrop")), constant(attention_bias=False, mlp_bias=False),
        Field(to_native=original_length),
    ),
    # SmolLM 3 (Hugging Face 2025): every fourth layer does not rotate
    llama_variant(
        "smollm3", "SmolLM3", LLAMA, *RMS_NORM, *GATED_FEED_FORWARD, *WINDOW, GROUPED, HEAD_DIM, ATTENTION_BIAS,
        same("mlp_bias"), rotary(),
        Field(lambda config: {"rotary_layers": [bool(has) for has in config.no_rope_layers]}, rotary_layers_to_native),
        ignored=("no_rope_layer_interval",),  # `no_rope_layers` has it layer by layer
    ),
    # Nemotron (Parmar et al. 2024): LayerNorm of weight 1 + w, squared ReLU
    llama_variant(
        "nemotron", "Nemotron", ATTENTION | PLAIN | PRE_NORMS | ENDS, GROUPED, ATTENTION_BIAS, rotary(partial=True),
        same("head_dim", "mlp_bias", "hidden_act", "norm_eps"), constant(feed_forward="plain", norm_unit_offset=True),
    ),
    # Persimmon (Adept 2023): GPT-NeoX's tensors in a sequential block, squared ReLU
    llama_variant(
        "persimmon", "Persimmon",
        block("layers.{layer}", "self_attn") | PRE_NORMS | {
            "embed_tokens": "embed_tokens",
            "norm": "final_layernorm",
            "layers.{layer}.self_attn.q_norm": "layers.{layer}.self_attn.q_layernorm",
            "layers.{layer}.self_attn.k_norm": "layers.{layer}.self_attn.k_layernorm",
        },
        LAYER_NORM, *PLAIN_HEADS, rotary(partial=True), same("hidden_act"), renamed(dropout="hidden_dropout"),
        switch("qk_layernorm", "qk_norm", on="head", off="none"),
    ),
)  # fmt: skip
