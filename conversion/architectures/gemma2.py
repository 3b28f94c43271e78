"""Gemma 2 (Gemma team 2024): norms on both sides of the sublayers, soft caps, and windows in every other layer."""

from vanillaformer.configuration import BlockConfig, VanillaDecoderConfig

from ..mapping.architecture import Architecture, Part
from ..mapping.fields import Field, Values, constant, renamed, rotary, same, window_by_layer
from ..mapping.tensors import Table
from .gemma import UNIT_OFFSET
from .llama import ATTENTION, ATTENTION_BIAS, DECODER, ENDS, GATED, GROUPED, RMS_NORM, decoder_heads

NORMS: Table = {
    "layers.{layer}.self_attn_residual.norm": "layers.{layer}.input_layernorm",
    "layers.{layer}.self_attn_residual.out_norm": "layers.{layer}.post_attention_layernorm",
    "layers.{layer}.mlp_residual.norm": "layers.{layer}.pre_feedforward_layernorm",
    "layers.{layer}.mlp_residual.out_norm": "layers.{layer}.post_feedforward_layernorm",
}


def scale_to_native(config: BlockConfig) -> Values:
    """The native config has the number whose inverse square root is the scale, a whole one."""
    scale = config.head_dim**-0.5 if config.attention_scale is None else config.attention_scale
    return {"query_pre_attn_scalar": max(1, round(scale**-2))}


ARCHITECTURE = Architecture(
    name="gemma2",
    config_class=VanillaDecoderConfig,
    native_config="Gemma2Config",
    prefix="model.",
    fields=(
        *DECODER,
        *RMS_NORM,
        GROUPED,
        ATTENTION_BIAS,
        UNIT_OFFSET,
        same("head_dim", "attn_logit_softcapping"),
        renamed(hidden_act="hidden_activation"),
        Field(
            to_ours=lambda config: {"attention_scale": config.query_pre_attn_scalar**-0.5}, to_native=scale_to_native
        ),
        constant(norm_placement="sandwich", feed_forward="gated"),
        window_by_layer(),
        rotary(),
    ),
    parts=(Part(ATTENTION | GATED | NORMS | ENDS),),
    heads=decoder_heads("Gemma2", same("final_logit_softcapping")),
)
