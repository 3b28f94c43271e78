"""Llama (Touvron et al. 2023) and related decoders, which differ in a norm, a layer or the form of a tensor."""

from typing import Any

from vanillaformer.configuration import BlockConfig, VanillaDecoderConfig

from ..mapping.architecture import Architecture, Head, Part
from ..mapping.fields import (
    DERIVED_HEAD_DIM,
    HEAD_DIM,
    PLAIN_HEADS,
    TEXT,
    WINDOW_BY_LAYER,
    WINDOW_OF_ALL_LAYERS,
    Field,
    Values,
    all_biases,
    attention_biases,
    constant,
    filled,
    first_rope,
    mapped,
    renamed,
    rotary,
    same,
    switch,
)
from ..mapping.tensors import HEAD_ROWS, QUERY_KEY_VALUE_ROWS, Table, block, rows, stacked_heads

LAYER, SELF_ATTENTION, MLP = "layers.{layer}.", "layers.{layer}.self_attn.", "layers.{layer}.mlp."
ATTENTION = block(SELF_ATTENTION, q="q_proj", k="k_proj", v="v_proj", o="o_proj")
QUERY_KEY_NORMS = block(SELF_ATTENTION, q_norm="q_norm", k_norm="k_norm")
QUERY_KEY_LAYER_NORMS = block(SELF_ATTENTION, q_norm="q_layernorm", k_norm="k_layernorm")
PLAIN = block(MLP, up="up_proj", down="down_proj")
GATED = PLAIN | block(MLP, gate="gate_proj")
FUSED_GATE = block(MLP, gate_up=("gate_up_proj", rows(2)), down="down_proj")
PRE_NORMS = block(LAYER, attention_norm="input_layernorm", mlp_norm="post_attention_layernorm")
SHARED_NORM = block(LAYER, shared_norm="input_layernorm")
# The norms of OLMo 2 are after the sublayers, inside the residual connections; Gemma 2 has them on both sides
INSIDE_NORMS = block(LAYER, attention_norm="post_attention_layernorm", mlp_norm="post_feedforward_layernorm")
SANDWICH_NORMS = block(
    LAYER, attention_norm="input_layernorm", attention_out_norm="post_attention_layernorm",
    mlp_norm="pre_feedforward_layernorm", mlp_out_norm="post_feedforward_layernorm",
)  # fmt: skip
ENDS: Table = {"embed_tokens": "embed_tokens", "norm": "norm"}
BLOCK = ATTENTION | GATED | PRE_NORMS


def neox_block(layer: str, attention: str) -> Table:
    """Return the linear layers of GPT-NeoX's block, with queries, keys and values head by head."""
    projections = block(f"{layer}{attention}.", qkv=("query_key_value", HEAD_ROWS), o="dense")
    return projections | block(f"{layer}mlp.", up="dense_h_to_4h", down="dense_4h_to_h")


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
INPUT_BIASES = attention_biases("attention_bias", "q_proj", "k_proj", "v_proj")
LAYERS: tuple[Field, ...] = (*RMS_NORM, *GATED_FEED_FORWARD, GROUPED)
COMMON: tuple[Field, ...] = (*LAYERS, rotary())
WINDOW = (WINDOW_BY_LAYER, Field(to_native=lambda config: {"use_sliding_window": config.sliding_window is not None}))
# The output projection is square: the heads have to be as wide as the model
SQUARE_HEAD_DIM = DERIVED_HEAD_DIM._replace(to_native=lambda config: {"head_dim": config.head_dim})
INTERLEAVED = constant(rope_interleaved=True)


def decoder(
    name: str, classes: str, table: Table, *fields: Field, prefix: str = "model.", language_model: str = "",
    output: str = "lm_head", lm: tuple[Field, ...] = (), ignored: tuple[str, ...] = (), classifies: bool = True,
    more: tuple[Part, ...] = (), stack: str = "",
) -> Architecture:  # fmt: skip
    """Return a decoder of one stack; `lm` are the fields of its language model, a class called `language_model`.

    `more` are parts that only some models have, and `stack` is the prefix of the native stack's tensors.
    """
    heads = {"base": Head(ignored=ignored), "lm": Head({"lm_head": output}, lm, ignored, native_class=language_model)}
    heads |= {"sequence": Head({"score": "score"}, ignored=ignored)} if classifies else {}
    parts = (Part(table, native=stack), *more)
    return Architecture(name, classes, VanillaDecoderConfig, fields, parts, heads, prefix=prefix)


def llama_like(name: str, classes: str, table: Table, *fields: Field, **options: Any) -> Architecture:
    """Return a decoder with Llama's names of sizes, embeddings and last norm, and further tensors and fields."""
    return decoder(name, classes, ENDS | table, *DECODER, *fields, **options)


LLAMA = llama_like("llama", "Llama", BLOCK, *COMMON, ATTENTION_BIAS, same("head_dim", "mlp_bias"))
# Mistral (Jiang et al. 2023): Llama with a sliding window
MISTRAL = llama_like(
    "mistral", "Mistral", BLOCK, *COMMON, same("head_dim"), WINDOW_OF_ALL_LAYERS,
    constant(attention_bias=False, mlp_bias=False),
)  # fmt: skip
# Qwen 2 (Yang et al. 2024): Llama with biases on queries, keys and values
QWEN2 = llama_like(
    "qwen2", "Qwen2", BLOCK, *COMMON, *WINDOW, HEAD_DIM,
    constant(attention_bias=["q_proj", "k_proj", "v_proj"], mlp_bias=False),
)  # fmt: skip
# Qwen 3 (Yang et al. 2025): Llama with a norm on the queries and keys of each head
QWEN3 = llama_like(
    "qwen3", "Qwen3", BLOCK | QUERY_KEY_NORMS, *COMMON, *WINDOW, ATTENTION_BIAS, same("head_dim"),
    constant(qk_norm="head", mlp_bias=False),
)  # fmt: skip
OLMO2 = llama_like(
    "olmo2", "Olmo2", ATTENTION | QUERY_KEY_NORMS | GATED | INSIDE_NORMS, *COMMON, HEAD_DIM, ATTENTION_BIAS,
    constant(norm_placement="inside", qk_norm="full", mlp_bias=False),
)  # fmt: skip

# Gemma and Gemma 2 (Gemma team 2024): GEGLU, norms that multiply by 1 + weight and scaled embeddings
GEMMA_FIELDS: tuple[Field, ...] = (
    *RMS_NORM, GROUPED, ATTENTION_BIAS, rotary(), same("head_dim"),
    constant(feed_forward="gated", norm_unit_offset=True, scale_embedding=True, mlp_bias=False),
)  # fmt: skip
# transformers takes "gelu" in a Gemma config for the approximation by tanh, and warns each time
GEMMA_ACTIVATION = mapped("hidden_act", lambda act: act, lambda act: "gelu_pytorch_tanh" if act == "gelu" else act)
# The native config has the number whose inverse square root is the scale, an integer
ATTENTION_SCALE = Field(
    to_ours=lambda config: {"attention_scale": config.query_pre_attn_scalar**-0.5},
    to_native=lambda config: {
        "query_pre_attn_scalar": max(1, round((config.attention_scale or config.head_dim**-0.5) ** -2))
    },
)
GEMMA = llama_like("gemma", "Gemma", BLOCK, *GEMMA_FIELDS, GEMMA_ACTIVATION)
GEMMA2 = llama_like(
    "gemma2", "Gemma2", ATTENTION | GATED | SANDWICH_NORMS, *GEMMA_FIELDS, same("attn_logit_softcapping"),
    renamed(hidden_act="hidden_activation"), ATTENTION_SCALE, constant(norm_placement="sandwich"), WINDOW_BY_LAYER,
    lm=(same("final_logit_softcapping"),),
)  # fmt: skip

# StarCoder 2 (Lozhkov et al. 2024): GPT-2's block with rotary positions and shared key and value heads
STARCODER2 = llama_like(
    "starcoder2", "Starcoder2",
    ATTENTION | PRE_NORMS | block(MLP, up="c_fc", down="c_proj"),
    GROUPED, HEAD_DIM, same("hidden_act"), WINDOW_OF_ALL_LAYERS, all_biases("use_bias"), rotary(),
    renamed(norm_eps="norm_epsilon", dropout=("residual_dropout", "embedding_dropout")),
    constant(feed_forward="plain"),
)  # fmt: skip

# StableLM (Bellagente et al. 2024): LayerNorm, partial rotary positions and maybe a parallel block
HEAD_NORMS: Table = {
    f"layers.{{layer}}.self_attn.{name}_norm.weight": (
        f"layers.{{layer}}.self_attn.{name}_layernorm.norms.{{head}}.weight",
        stacked_heads(heads),
    )
    for name, heads in (("q", "num_attention_heads"), ("k", "num_key_value_heads"))
}
STABLELM = llama_like(
    "stablelm", "StableLm", ATTENTION | HEAD_NORMS | GATED, *GATED_FEED_FORWARD, LAYER_NORM, GROUPED, DERIVED_HEAD_DIM,
    switch("use_parallel_residual", "block_layout", on="parallel_shared_norm", off="sequential"),
    switch("qk_layernorm", "qk_norm", on="each_head", off="none"), rotary(partial=True),
    attention_biases("use_qkv_bias", "q_proj", "k_proj", "v_proj"), constant(mlp_bias=False),
    renamed(dropout="hidden_dropout"),
    more=(
        Part(PRE_NORMS, when=lambda config: config.block_layout != "parallel_shared_norm"),
        Part(SHARED_NORM, when=lambda config: config.block_layout == "parallel_shared_norm"),
    ),
)  # fmt: skip

# GPT-NeoX (Black et al. 2022) with Pythia: attention and feed-forward in parallel, each after its norm
GPT_NEOX = decoder(
    "gpt_neox", "GPTNeoX",
    neox_block(LAYER, "attention") | PRE_NORMS | {"embed_tokens": "embed_in", "norm": "final_layer_norm"},
    *DECODER, LAYER_NORM, *PLAIN_HEADS, ATTENTION_BIAS, same("hidden_act"), renamed(dropout="hidden_dropout"),
    switch("use_parallel_residual", "block_layout", on="parallel", off="sequential"), rotary(partial=True),
    prefix="gpt_neox.",
)  # fmt: skip

# BLOOM (BigScience 2022): ALiBi and a norm after the embeddings
BLOOM = decoder(
    "bloom", "Bloom",
    neox_block("h.{layer}.", "self_attention")
    | block("h.{layer}.", attention_norm="input_layernorm", mlp_norm="post_attention_layernorm")
    | {"embed_tokens": "word_embeddings", "embeddings.norm": "word_embeddings_layernorm", "norm": "ln_f"},
    TEXT, *PLAIN_HEADS,
    same("vocab_size", "hidden_size", "attention_dropout", "initializer_range", "use_cache", "tie_word_embeddings"),
    renamed(num_hidden_layers="n_layer", num_attention_heads="n_head", norm_eps="layer_norm_epsilon"),
    renamed(dropout="hidden_dropout"), Field(lambda config: {"intermediate_size": 4 * config.hidden_size}),
    constant(position_embedding_type="alibi", embedding_norm=True, hidden_act="gelu_pytorch_tanh"),
    constant(initialization="normal"),
    prefix="transformer.",
)  # fmt: skip

# Phi (Li et al. 2023): attention and feed-forward in parallel after one norm, partial rotary positions
PHI = llama_like(
    "phi", "Phi",
    ATTENTION | block(SELF_ATTENTION, o="dense") | block(MLP, up="fc1", down="fc2")
    | QUERY_KEY_LAYER_NORMS | SHARED_NORM | {"norm": "final_layernorm"},
    LAYER_NORM, GROUPED, HEAD_DIM, same("hidden_act"), rotary(partial=True),
    renamed(dropout=("resid_pdrop", "embd_pdrop")), switch("qk_layernorm", "qk_norm", on="head", off="none"),
    constant(block_layout="parallel_shared_norm"),
    lm=(constant(lm_head_bias=True),),
)  # fmt: skip

# Command R (Cohere 2024): the same layout, and scaled logits
LOGIT_SCALE = mapped("logit_scale", lambda scale: scale, lambda scale: 1.0 if scale is None else scale)
COHERE = llama_like(
    "cohere", "Cohere", ATTENTION | QUERY_KEY_NORMS | GATED | SHARED_NORM, *GATED_FEED_FORWARD, LAYER_NORM,
    GROUPED, HEAD_DIM, ATTENTION_BIAS, rotary(), switch("use_qk_norm", "qk_norm", on="each_head", off="none"),
    constant(block_layout="parallel_shared_norm", norm_bias=False, mlp_bias=False, rope_interleaved=True),
    lm=(LOGIT_SCALE,), ignored=("logit_scale",), classifies=False,
)  # fmt: skip


# Granite (IBM 2024): Llama with muP's four factors
GRANITE_FACTORS: tuple[Field, ...] = (
    renamed(embedding_scale="embedding_multiplier", residual_scale="residual_multiplier"),
    filled("attention_scale", lambda config: config.attention_scale or config.head_dim**-0.5, "attention_multiplier"),
    mapped("logit_scale", lambda scaling: 1 / scaling, lambda scale: 1 / (scale or 1.0), "logits_scaling"),
)

NO_ROPE_LAYERS = Field(
    to_ours=lambda config: {"rotary_layers": [bool(has) for has in config.no_rope_layers]},
    to_native=lambda config: {
        "no_rope_layers": list(map(int, map(config.is_rotary_layer, range(config.num_hidden_layers))))
    },
)


def ropes_to_native(config: BlockConfig) -> Values:
    first = first_rope(config)
    if first is None:
        return {}
    ropes = {name: dict(config.rope_of(name) or first) for name in ("full_attention", "sliding_attention")}
    for rope in ropes.values():
        rope.pop("partial_rotary_factor", None)
    return {"rope_parameters": ropes}


# The length that the positions had before they were extended, if they were
ORIGINAL = "original_max_position_embeddings"
ORIGINAL_LENGTH = Field(
    to_native=lambda config: {ORIGINAL: (first_rope(config) or {}).get(ORIGINAL, config.max_position_embeddings)}
)


VARIANTS = (
    llama_like(
        "granite", "Granite", BLOCK, *COMMON, HEAD_DIM, ATTENTION_BIAS, same("mlp_bias"), *GRANITE_FACTORS,
        classifies=False,
    ),
    # OLMo (Groeneveld et al. 2024): LayerNorm without weights
    llama_like(
        "olmo", "Olmo", BLOCK, *GATED_FEED_FORWARD, GROUPED, HEAD_DIM, ATTENTION_BIAS, rotary(),
        constant(norm="layer_norm", norm_eps=1e-5, norm_weight=False, norm_bias=False, mlp_bias=False),
    ),
    # OLMo 3 (OLMo team 2025): OLMo 2 with windows in three of four layers, which have separate rotary parameters
    llama_like(
        "olmo3", "Olmo3", ATTENTION | QUERY_KEY_NORMS | GATED | INSIDE_NORMS, *LAYERS, HEAD_DIM, ATTENTION_BIAS,
        WINDOW_BY_LAYER, constant(position_embedding_type="rotary"),
        Field(lambda config: {"rope_parameters": config.rope_parameters}, ropes_to_native),
        constant(norm_placement="inside", qk_norm="full", mlp_bias=False),
    ),
    # Arcee (2025): a plain feed-forward layer with squared ReLU
    llama_like(
        "arcee", "Arcee", ATTENTION | PLAIN | PRE_NORMS, *RMS_NORM, GROUPED, ATTENTION_BIAS, rotary(),
        same("head_dim", "mlp_bias", "hidden_act"), constant(feed_forward="plain"),
    ),
    # Helium (Kyutai 2025): neighboring dimensions are rotated
    llama_like("helium", "Helium", BLOCK, *COMMON, SQUARE_HEAD_DIM, INPUT_BIASES, same("mlp_bias"), INTERLEAVED),
    # GLM-4 (GLM team 2024): half of each head is rotated, neighbors with each other
    llama_like(
        "glm", "Glm", ATTENTION | FUSED_GATE | PRE_NORMS, *LAYERS, INPUT_BIASES, same("head_dim"),
        constant(mlp_bias=False), INTERLEAVED, rotary(partial=True),
    ),
    # Phi 3 (Abdin et al. 2024): one tensor for queries, keys and values, one for gate and up
    llama_like(
        "phi3", "Phi3",
        FUSED_GATE | PRE_NORMS | block(SELF_ATTENTION, qkv=("qkv_proj", QUERY_KEY_VALUE_ROWS), o="o_proj"),
        *LAYERS, HEAD_DIM, WINDOW_OF_ALL_LAYERS, rotary(partial=True), ORIGINAL_LENGTH,
        renamed(dropout=("resid_pdrop", "embd_pdrop")), constant(attention_bias=False, mlp_bias=False),
    ),
    # SmolLM 3 (Hugging Face 2025): every fourth layer does not rotate
    llama_like(
        "smollm3", "SmolLM3", BLOCK, *COMMON, *WINDOW, HEAD_DIM, ATTENTION_BIAS, same("mlp_bias"), NO_ROPE_LAYERS,
        ignored=("no_rope_layer_interval",),  # `no_rope_layers` has it layer by layer
    ),
    # Nemotron (Parmar et al. 2024): LayerNorm of weight 1 + w, squared ReLU
    llama_like(
        "nemotron", "Nemotron", ATTENTION | PLAIN | PRE_NORMS, GROUPED, ATTENTION_BIAS, rotary(partial=True),
        same("head_dim", "mlp_bias", "hidden_act", "norm_eps"), constant(feed_forward="plain", norm_unit_offset=True),
    ),
    # Persimmon (Adept 2023): GPT-NeoX's tensors in a sequential block, squared ReLU
    llama_like(
        "persimmon", "Persimmon",
        neox_block(LAYER, "self_attn") | PRE_NORMS | QUERY_KEY_LAYER_NORMS | {"norm": "final_layernorm"},
        LAYER_NORM, *PLAIN_HEADS, rotary(partial=True), same("hidden_act"), renamed(dropout="hidden_dropout"),
        switch("qk_layernorm", "qk_norm", on="head", off="none"),
    ),
)  # fmt: skip
