"""Llama (Touvron et al. 2023), and what its many descendants share."""

from vanillaformer.configuration import VanillaDecoderConfig

from ..mapping.architecture import Architecture, Head, Part
from ..mapping.fields import TEXT, Field, attention_biases, constant, renamed, rotary, same
from ..mapping.tensors import Table

ATTENTION: Table = {
    f"layers.{{layer}}.self_attn.{name}_proj": f"layers.{{layer}}.self_attn.{name}_proj" for name in "qkvo"
}
GATED: Table = {
    f"layers.{{layer}}.mlp.{name}_proj": f"layers.{{layer}}.mlp.{name}_proj" for name in ("gate", "up", "down")
}
PRE_NORMS: Table = {
    "layers.{layer}.self_attn_residual.norm": "layers.{layer}.input_layernorm",
    "layers.{layer}.mlp_residual.norm": "layers.{layer}.post_attention_layernorm",
}
ENDS: Table = {"embed_tokens": "embed_tokens", "norm": "norm"}

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


def decoder_heads(name: str, *fields: Field) -> dict[str, Head]:
    """Return the heads of the decoders whose classes are called `name`; `fields` are the language model's."""
    return {
        "base": Head(f"{name}Model"),
        "lm": Head(f"{name}ForCausalLM", {"lm_head": "lm_head"}, fields),
        "sequence": Head(f"{name}ForSequenceClassification", {"score": "score"}),
    }


ATTENTION_BIAS = attention_biases("attention_bias", "q_proj", "k_proj", "v_proj", "o_proj")

ARCHITECTURE = Architecture(
    name="llama",
    config_class=VanillaDecoderConfig,
    native_config="LlamaConfig",
    prefix="model.",
    fields=(
        *DECODER,
        *RMS_NORM,
        *GATED_FEED_FORWARD,
        GROUPED,
        ATTENTION_BIAS,
        same("head_dim", "mlp_bias"),
        rotary(),
    ),
    parts=(Part(ATTENTION | GATED | PRE_NORMS | ENDS),),
    heads=decoder_heads("Llama"),
)
