"""Mistral (Jiang et al. 2023): Llama with a sliding window."""

from vanillaformer.configuration import VanillaDecoderConfig

from ..mapping.architecture import Architecture, Part
from ..mapping.fields import constant, rotary, same, window_of_all_layers
from .llama import ATTENTION, DECODER, ENDS, GATED, GATED_FEED_FORWARD, GROUPED, PRE_NORMS, RMS_NORM, decoder_heads

ARCHITECTURE = Architecture(
    name="mistral",
    config_class=VanillaDecoderConfig,
    native_config="MistralConfig",
    prefix="model.",
    fields=(
        *DECODER,
        *RMS_NORM,
        *GATED_FEED_FORWARD,
        GROUPED,
        constant(attention_bias=False, mlp_bias=False),
        same("head_dim"),
        window_of_all_layers(),
        rotary(),
    ),
    parts=(Part(ATTENTION | GATED | PRE_NORMS | ENDS),),
    heads=decoder_heads("Mistral"),
)
