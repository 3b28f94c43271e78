"""StableLM (Bellagente et al. 2024): Llama with LayerNorm, partial rotary positions and maybe a parallel block."""

from vanillaformer.configuration import BlockConfig, VanillaDecoderConfig

from ..mapping.architecture import Architecture, Part
from ..mapping.fields import DERIVED_HEAD_DIM, Field, attention_biases, constant, rotary
from ..mapping.tensors import HeadRow, Table
from .llama import ATTENTION, DECODER, ENDS, GATED, GATED_FEED_FORWARD, GROUPED, LAYER_NORM, PRE_NORMS, decoder_heads


def is_parallel(config: BlockConfig) -> bool:
    return config.block_layout == "parallel_shared_norm"


LAYOUT = Field(
    to_ours=lambda config: {"block_layout": "parallel_shared_norm" if config.use_parallel_residual else "sequential"},
    to_native=lambda config: {"use_parallel_residual": is_parallel(config)},
)
QUERY_KEY_NORM = Field(
    to_ours=lambda config: {"qk_norm": "each_head" if config.qk_layernorm else "none"},
    to_native=lambda config: {"qk_layernorm": config.qk_norm == "each_head"},
)
HEAD_NORMS: Table = {
    f"layers.{{layer}}.self_attn.{name}_norm.weight": (
        f"layers.{{layer}}.self_attn.{name}_layernorm.norms.{{head}}.weight",
        HeadRow(heads),
    )
    for name, heads in (("q", "num_attention_heads"), ("k", "num_key_value_heads"))
}

ARCHITECTURE = Architecture(
    name="stablelm",
    config_class=VanillaDecoderConfig,
    native_config="StableLmConfig",
    prefix="model.",
    fields=(
        *DECODER,
        *GATED_FEED_FORWARD,
        LAYER_NORM,
        LAYOUT,
        QUERY_KEY_NORM,
        GROUPED,
        DERIVED_HEAD_DIM,
        attention_biases("use_qkv_bias", "q_proj", "k_proj", "v_proj"),
        constant(mlp_bias=False),
        Field(
            to_ours=lambda config: {"dropout": config.hidden_dropout},
            to_native=lambda config: {"hidden_dropout": config.dropout},
        ),
        rotary(partial=True),
    ),
    parts=(
        Part(ATTENTION | HEAD_NORMS | GATED | ENDS),
        Part(PRE_NORMS, when=lambda config: not is_parallel(config)),
        Part({"layers.{layer}.norm": "layers.{layer}.input_layernorm"}, when=is_parallel),
    ),
    heads=decoder_heads("StableLm"),
)
