"""Command R (Cohere 2024): attention and feed-forward in parallel after one norm, and scaled logits."""

from vanillaformer.configuration import VanillaDecoderConfig

from ..mapping.architecture import Architecture, Head, Part
from ..mapping.fields import HEAD_DIM, Field, constant, rotary
from .llama import ATTENTION, ATTENTION_BIAS, DECODER, ENDS, GATED, GATED_FEED_FORWARD, GROUPED, LAYER_NORM
from .qwen3 import QUERY_KEY_NORMS

QUERY_KEY_NORM = Field(
    to_ours=lambda config: {"qk_norm": "each_head" if config.use_qk_norm else "none"},
    to_native=lambda config: {"use_qk_norm": config.qk_norm == "each_head"},
)
LOGIT_SCALE = Field(
    to_ours=lambda config: {"logit_scale": config.logit_scale},
    to_native=lambda config: {"logit_scale": 1.0 if config.logit_scale is None else config.logit_scale},
)

ARCHITECTURE = Architecture(
    name="cohere",
    config_class=VanillaDecoderConfig,
    native_config="CohereConfig",
    prefix="model.",
    fields=(
        *DECODER,
        *GATED_FEED_FORWARD,
        LAYER_NORM,
        GROUPED,
        HEAD_DIM,
        ATTENTION_BIAS,
        QUERY_KEY_NORM,
        constant(block_layout="parallel_shared_norm", norm_bias=False, mlp_bias=False, rope_interleaved=True),
        rotary(),
    ),
    parts=(
        Part(ATTENTION | QUERY_KEY_NORMS | GATED | ENDS | {"layers.{layer}.norm": "layers.{layer}.input_layernorm"}),
    ),
    heads={
        "base": Head("CohereModel", ignored=("logit_scale",)),
        "lm": Head("CohereForCausalLM", {"lm_head": "lm_head"}, (LOGIT_SCALE,)),
    },
)
