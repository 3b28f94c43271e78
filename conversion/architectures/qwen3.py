"""Qwen 3 (Yang et al. 2025): Llama with a norm on the queries and keys of each head."""

from vanillaformer.configuration import VanillaDecoderConfig

from ..mapping.architecture import Architecture, Part
from ..mapping.fields import constant, rotary, same
from ..mapping.tensors import Table
from .llama import (
    ATTENTION,
    ATTENTION_BIAS,
    DECODER,
    ENDS,
    GATED,
    GATED_FEED_FORWARD,
    GROUPED,
    PRE_NORMS,
    RMS_NORM,
    decoder_heads,
)
from .qwen2 import WINDOW

QUERY_KEY_NORMS: Table = {
    f"layers.{{layer}}.self_attn.{name}_norm": f"layers.{{layer}}.self_attn.{name}_norm" for name in "qk"
}

ARCHITECTURE = Architecture(
    name="qwen3",
    config_class=VanillaDecoderConfig,
    native_config="Qwen3Config",
    prefix="model.",
    fields=(
        *DECODER,
        *RMS_NORM,
        *GATED_FEED_FORWARD,
        *WINDOW,
        GROUPED,
        ATTENTION_BIAS,
        same("head_dim"),
        constant(qk_norm="head", mlp_bias=False),
        rotary(),
    ),
    parts=(Part(ATTENTION | QUERY_KEY_NORMS | GATED | PRE_NORMS | ENDS),),
    heads=decoder_heads("Qwen3"),
)
