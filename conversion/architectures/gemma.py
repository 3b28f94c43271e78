"""Gemma and Gemma 2 (Gemma team 2024): Llama with GEGLU, norms that multiply by 1 + weight and scaled embeddings."""

from vanillaformer.configuration import VanillaDecoderConfig

from ..mapping.architecture import Architecture, Part
from ..mapping.fields import Field, constant, renamed, rotary, same, window_by_layer
from ..mapping.tensors import Table
from .llama import ATTENTION, ATTENTION_BIAS, BLOCK, DECODER, ENDS, GATED, GROUPED, RMS_NORM, decoder_heads

FIELDS: tuple[Field, ...] = (
    *DECODER,
    *RMS_NORM,
    GROUPED,
    ATTENTION_BIAS,
    same("head_dim"),
    constant(feed_forward="gated", norm_unit_offset=True, scale_embedding=True, mlp_bias=False),
    rotary(),
)
# transformers takes "gelu" in a Gemma config for the approximation by tanh, and warns each time
ACTIVATION = Field(
    to_ours=lambda config: {"hidden_act": config.hidden_act},
    to_native=lambda config: {"hidden_act": "gelu_pytorch_tanh" if config.hidden_act == "gelu" else config.hidden_act},
)

GEMMA = Architecture(
    "gemma", VanillaDecoderConfig, (*FIELDS, ACTIVATION), (Part(BLOCK | ENDS),), decoder_heads("Gemma")
)

# Gemma 2: norms on both sides of the sublayers, soft caps, and windows in every other layer
GEMMA2_NORMS: Table = {
    "layers.{layer}.self_attn_residual.norm": "layers.{layer}.input_layernorm",
    "layers.{layer}.self_attn_residual.out_norm": "layers.{layer}.post_attention_layernorm",
    "layers.{layer}.mlp_residual.norm": "layers.{layer}.pre_feedforward_layernorm",
    "layers.{layer}.mlp_residual.out_norm": "layers.{layer}.post_feedforward_layernorm",
}


# The native config has the number whose inverse square root is the scale, a whole one
ATTENTION_SCALE = Field(
    to_ours=lambda config: {"attention_scale": config.query_pre_attn_scalar**-0.5},
    to_native=lambda config: {
        "query_pre_attn_scalar": max(1, round((config.attention_scale or config.head_dim**-0.5) ** -2))
    },
)
GEMMA2 = Architecture(
    name="gemma2",
    config_class=VanillaDecoderConfig,
    fields=(
        *FIELDS,
        same("attn_logit_softcapping"),
        renamed(hidden_act="hidden_activation"),
        ATTENTION_SCALE,
        constant(norm_placement="sandwich"),
        window_by_layer(),
    ),
    parts=(Part(ATTENTION | GATED | GEMMA2_NORMS | ENDS),),
    heads=decoder_heads("Gemma2", same("final_logit_softcapping")),
)
