"""BLOOM (BigScience 2022): ALiBi and a norm after the embeddings."""

from vanillaformer.configuration import VanillaDecoderConfig

from ..mapping.architecture import Architecture, Part
from ..mapping.fields import ALL_KEY_VALUE_HEADS, DERIVED_HEAD_DIM, TEXT, Field, constant, renamed, same
from ..mapping.tensors import HeadRows, Table
from .llama import decoder_heads

QUERY_KEY_VALUE = tuple(f"layers.{{layer}}.self_attn.{name}_proj" for name in "qkv")
STACK: Table = {
    "embed_tokens": "word_embeddings",
    "embeddings.norm": "word_embeddings_layernorm",
    "norm": "ln_f",
    QUERY_KEY_VALUE: ("h.{layer}.self_attention.query_key_value", HeadRows()),
    "layers.{layer}.self_attn.o_proj": "h.{layer}.self_attention.dense",
    "layers.{layer}.self_attn_residual.norm": "h.{layer}.input_layernorm",
    "layers.{layer}.mlp.up_proj": "h.{layer}.mlp.dense_h_to_4h",
    "layers.{layer}.mlp.down_proj": "h.{layer}.mlp.dense_4h_to_h",
    "layers.{layer}.mlp_residual.norm": "h.{layer}.post_attention_layernorm",
}

ARCHITECTURE = Architecture(
    name="bloom",
    config_class=VanillaDecoderConfig,
    native_config="BloomConfig",
    prefix="transformer.",
    fields=(
        TEXT,
        ALL_KEY_VALUE_HEADS,
        DERIVED_HEAD_DIM,
        same("vocab_size", "hidden_size", "attention_dropout", "initializer_range", "use_cache"),
        same("tie_word_embeddings"),
        renamed(num_hidden_layers="n_layer", num_attention_heads="n_head", norm_eps="layer_norm_epsilon"),
        renamed(dropout="hidden_dropout"),
        Field(to_ours=lambda config: {"intermediate_size": 4 * config.hidden_size}, to_native=lambda config: {}),
        constant(position_embedding_type="alibi", embedding_norm=True, hidden_act="gelu_pytorch_tanh"),
        constant(initialization="normal"),
    ),
    parts=(Part(STACK),),
    heads=decoder_heads("Bloom"),
)
