"""OLMo 2 (OLMo team 2025): the norms are after the sublayers, inside the residual connections."""

from vanillaformer.configuration import VanillaDecoderConfig

from ..mapping.architecture import Architecture, Part
from ..mapping.fields import HEAD_DIM, constant, rotary
from ..mapping.tensors import Table
from .llama import (
    ATTENTION,
    ATTENTION_BIAS,
    DECODER,
    ENDS,
    GATED,
    GATED_FEED_FORWARD,
    GROUPED,
    RMS_NORM,
    decoder_heads,
)
from .qwen3 import QUERY_KEY_NORMS

NORMS: Table = {
    "layers.{layer}.self_attn_residual.norm": "layers.{layer}.post_attention_layernorm",
    "layers.{layer}.mlp_residual.norm": "layers.{layer}.post_feedforward_layernorm",
}

ARCHITECTURE = Architecture(
    name="olmo2",
    config_class=VanillaDecoderConfig,
    native_config="Olmo2Config",
    prefix="model.",
    fields=(
        *DECODER,
        *RMS_NORM,
        *GATED_FEED_FORWARD,
        GROUPED,
        HEAD_DIM,
        ATTENTION_BIAS,
        constant(norm_placement="inside", qk_norm="full", mlp_bias=False),
        rotary(),
    ),
    parts=(Part(ATTENTION | QUERY_KEY_NORMS | GATED | NORMS | ENDS),),
    heads=decoder_heads("Olmo2"),
)
