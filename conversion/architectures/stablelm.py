"""StableLM (Bellagente et al. 2024): Llama with LayerNorm, partial rotary positions and maybe a parallel block."""

from vanillaformer.configuration import VanillaDecoderConfig

from ..mapping.architecture import Architecture, Part
from ..mapping.fields import DERIVED_HEAD_DIM, attention_biases, constant, renamed, rotary, switch
from ..mapping.tensors import HeadRow, Table
from .llama import (
    ATTENTION,
    DECODER,
    ENDS,
    GATED,
    GATED_FEED_FORWARD,
    GROUPED,
    LAYER_NORM,
    PRE_NORMS,
    SHARED_NORM,
    decoder_heads,
)

HEAD_NORMS: Table = {
    f"layers.{{layer}}.self_attn.{name}_norm.weight": (
        f"layers.{{layer}}.self_attn.{name}_layernorm.norms.{{head}}.weight",
        HeadRow(heads),
    )
    for name, heads in (("q", "num_attention_heads"), ("k", "num_key_value_heads"))
}

STABLELM = Architecture(
    name="stablelm",
    config_class=VanillaDecoderConfig,
    fields=(
        *DECODER,
        *GATED_FEED_FORWARD,
        LAYER_NORM,
        GROUPED,
        DERIVED_HEAD_DIM,
        switch("use_parallel_residual", "block_layout", on="parallel_shared_norm", off="sequential"),
        switch("qk_layernorm", "qk_norm", on="each_head", off="none"),
        attention_biases("use_qkv_bias", "q_proj", "k_proj", "v_proj"),
        constant(mlp_bias=False),
        renamed(dropout="hidden_dropout"),
        rotary(partial=True),
    ),
    parts=(
        Part(ATTENTION | HEAD_NORMS | GATED | ENDS),
        Part(PRE_NORMS, when=lambda config: config.block_layout != "parallel_shared_norm"),
        Part(SHARED_NORM, when=lambda config: config.block_layout == "parallel_shared_norm"),
    ),
    heads=decoder_heads("StableLm"),
)
