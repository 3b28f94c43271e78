"""Command R (Cohere 2024): attention and feed-forward in parallel after one norm, and scaled logits."""

from vanillaformer.configuration import VanillaDecoderConfig

from ..mapping.architecture import Architecture, Head, Part
from ..mapping.fields import HEAD_DIM, Field, constant, rotary, switch
from .llama import (
    ATTENTION,
    ATTENTION_BIAS,
    DECODER,
    ENDS,
    GATED,
    GATED_FEED_FORWARD,
    GROUPED,
    LAYER_NORM,
    QUERY_KEY_NORMS,
    SHARED_NORM,
)

LOGIT_SCALE = Field(
    to_ours=lambda config: {"logit_scale": config.logit_scale},
    to_native=lambda config: {"logit_scale": 1.0 if config.logit_scale is None else config.logit_scale},
)

COHERE = Architecture(
    name="cohere",
    config_class=VanillaDecoderConfig,
    fields=(
        *DECODER,
        *GATED_FEED_FORWARD,
        LAYER_NORM,
        GROUPED,
        HEAD_DIM,
        ATTENTION_BIAS,
        switch("use_qk_norm", "qk_norm", on="each_head", off="none"),
        constant(block_layout="parallel_shared_norm", norm_bias=False, mlp_bias=False, rope_interleaved=True),
        rotary(),
    ),
    parts=(Part(ATTENTION | QUERY_KEY_NORMS | GATED | SHARED_NORM | ENDS),),
    heads={
        "base": Head("CohereModel", ignored=("logit_scale",)),
        "lm": Head("CohereForCausalLM", {"lm_head": "lm_head"}, (LOGIT_SCALE,)),
    },
)
