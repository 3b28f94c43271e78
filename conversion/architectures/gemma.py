"""Gemma (Gemma team 2024): Llama with GEGLU, norms that multiply by 1 + weight and scaled embeddings."""

from vanillaformer.configuration import VanillaDecoderConfig

from ..mapping.architecture import Architecture, Part
from ..mapping.fields import Field, constant, rotary, same
from .llama import (
    ATTENTION,
    ATTENTION_BIAS,
    DECODER,
    ENDS,
    GATED,
    GROUPED,
    PRE_NORMS,
    RMS_NORM,
    decoder_heads,
)

# transformers takes "gelu" in a Gemma config for the approximation by tanh, and warns each time
ACTIVATION = Field(
    to_ours=lambda config: {"hidden_act": config.hidden_act},
    to_native=lambda config: {"hidden_act": "gelu_pytorch_tanh" if config.hidden_act == "gelu" else config.hidden_act},
)
UNIT_OFFSET = constant(norm_unit_offset=True, scale_embedding=True, mlp_bias=False)

ARCHITECTURE = Architecture(
    name="gemma",
    config_class=VanillaDecoderConfig,
    native_config="GemmaConfig",
    prefix="model.",
    fields=(
        *DECODER,
        *RMS_NORM,
        ACTIVATION,
        constant(feed_forward="gated"),
        GROUPED,
        ATTENTION_BIAS,
        UNIT_OFFSET,
        same("head_dim"),
        rotary(),
    ),
    parts=(Part(ATTENTION | GATED | PRE_NORMS | ENDS),),
    heads=decoder_heads("Gemma"),
)
