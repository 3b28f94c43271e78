"""GPT-J (Wang and Komatsuzaki 2021): attention and feed-forward side by side, interleaved rotary positions."""

from transformers import PreTrainedConfig

from vanillaformer.configuration import BlockConfig, VanillaDecoderConfig

from ..mapping.architecture import Architecture, Part
from ..mapping.fields import (
    ALL_KEY_VALUE_HEADS,
    DERIVED_HEAD_DIM,
    TEXT,
    Field,
    Values,
    constant,
    first_rope,
    renamed,
    same,
)
from ..mapping.tensors import Table
from .gpt2 import INNER_SIZE, SIZES
from .llama import decoder_heads

STACK: Table = {
    "embed_tokens": "wte",
    "norm": "ln_f",
    "layers.{layer}.norm": "h.{layer}.ln_1",
    "layers.{layer}.self_attn.q_proj": "h.{layer}.attn.q_proj",
    "layers.{layer}.self_attn.k_proj": "h.{layer}.attn.k_proj",
    "layers.{layer}.self_attn.v_proj": "h.{layer}.attn.v_proj",
    "layers.{layer}.self_attn.o_proj": "h.{layer}.attn.out_proj",
    "layers.{layer}.mlp.up_proj": "h.{layer}.mlp.fc_in",
    "layers.{layer}.mlp.down_proj": "h.{layer}.mlp.fc_out",
}


def rotary_to_ours(config: PreTrainedConfig) -> Values:
    # a little more than the quotient, so that rounding down gives the same number
    part = min(1.0, (config.rotary_dim + 1e-6) / (config.n_embd // config.n_head))
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": part}}


def rotary_to_native(config: BlockConfig) -> Values:
    part = (first_rope(config) or {}).get("partial_rotary_factor", 1.0)
    return {"rotary_dim": int(config.head_dim * part)}


ARCHITECTURE = Architecture(
    name="gptj",
    config_class=VanillaDecoderConfig,
    native_config="GPTJConfig",
    prefix="transformer.",
    fields=(
        TEXT,
        SIZES,
        INNER_SIZE,
        ALL_KEY_VALUE_HEADS,
        DERIVED_HEAD_DIM,
        same("vocab_size", "initializer_range", "use_cache", "tie_word_embeddings"),
        renamed(hidden_act="activation_function"),
        Field(rotary_to_ours, rotary_to_native),
        constant(position_embedding_type="rotary", rope_interleaved=True, initialization="normal"),
        constant(block_layout="parallel_shared_norm", attention_bias=False),
    ),
    parts=(Part(STACK),),
    heads=decoder_heads("GPTJ", constant(lm_head_bias=True)),
)
