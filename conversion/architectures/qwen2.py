"""Qwen 2 (Yang et al. 2024): Llama with biases on queries, keys and values."""

from vanillaformer.configuration import VanillaDecoderConfig

from ..mapping.architecture import Architecture, Part
from ..mapping.fields import HEAD_DIM, Field, constant, rotary, window_by_layer
from .llama import ATTENTION, DECODER, ENDS, GATED, GATED_FEED_FORWARD, GROUPED, PRE_NORMS, RMS_NORM, decoder_heads

WINDOW = (
    window_by_layer(),
    Field(
        to_ours=lambda config: {}, to_native=lambda config: {"use_sliding_window": config.sliding_window is not None}
    ),
)

ARCHITECTURE = Architecture(
    name="qwen2",
    config_class=VanillaDecoderConfig,
    native_config="Qwen2Config",
    prefix="model.",
    fields=(
        *DECODER,
        *RMS_NORM,
        *GATED_FEED_FORWARD,
        *WINDOW,
        GROUPED,
        HEAD_DIM,
        constant(attention_bias=["q_proj", "k_proj", "v_proj"], mlp_bias=False),
        rotary(),
    ),
    parts=(Part(ATTENTION | GATED | PRE_NORMS | ENDS),),
    heads=decoder_heads("Qwen2"),
)
