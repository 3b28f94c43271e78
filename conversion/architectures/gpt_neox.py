"""GPT-NeoX (Black et al. 2022) and Pythia: attention and feed-forward in parallel, each after its norm."""

from vanillaformer.configuration import VanillaDecoderConfig

from ..mapping.architecture import Architecture, Part
from ..mapping.fields import ALL_KEY_VALUE_HEADS, DERIVED_HEAD_DIM, Field, renamed, rotary, same
from ..mapping.tensors import HeadRows, Table
from .llama import ATTENTION_BIAS, DECODER, LAYER_NORM, PRE_NORMS, decoder_heads

QUERY_KEY_VALUE = tuple(f"layers.{{layer}}.self_attn.{name}_proj" for name in "qkv")
STACK: Table = PRE_NORMS | {
    "embed_tokens": "embed_in",
    "norm": "final_layer_norm",
    QUERY_KEY_VALUE: ("layers.{layer}.attention.query_key_value", HeadRows()),
    "layers.{layer}.self_attn.o_proj": "layers.{layer}.attention.dense",
    "layers.{layer}.mlp.up_proj": "layers.{layer}.mlp.dense_h_to_4h",
    "layers.{layer}.mlp.down_proj": "layers.{layer}.mlp.dense_4h_to_h",
}

ARCHITECTURE = Architecture(
    name="gpt_neox",
    config_class=VanillaDecoderConfig,
    native_config="GPTNeoXConfig",
    prefix="gpt_neox.",
    fields=(
        *DECODER,
        LAYER_NORM,
        ALL_KEY_VALUE_HEADS,
        DERIVED_HEAD_DIM,
        ATTENTION_BIAS,
        same("hidden_act"),
        renamed(dropout="hidden_dropout"),
        Field(
            to_ours=lambda config: {"block_layout": "parallel" if config.use_parallel_residual else "sequential"},
            to_native=lambda config: {"use_parallel_residual": config.block_layout == "parallel"},
        ),
        rotary(partial=True),
    ),
    parts=(Part(STACK),),
    heads=decoder_heads("GPTNeoX"),
)
