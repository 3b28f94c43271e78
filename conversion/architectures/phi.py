"""Phi (Li et al. 2023): attention and feed-forward in parallel after one norm, partial rotary positions."""

from vanillaformer.configuration import VanillaDecoderConfig

from ..mapping.architecture import Architecture, Part
from ..mapping.fields import HEAD_DIM, Field, constant, renamed, rotary, same
from ..mapping.tensors import Table
from .llama import DECODER, GROUPED, LAYER_NORM, decoder_heads

STACK: Table = {
    "embed_tokens": "embed_tokens",
    "norm": "final_layernorm",
    "layers.{layer}.norm": "layers.{layer}.input_layernorm",
    "layers.{layer}.self_attn.q_proj": "layers.{layer}.self_attn.q_proj",
    "layers.{layer}.self_attn.k_proj": "layers.{layer}.self_attn.k_proj",
    "layers.{layer}.self_attn.v_proj": "layers.{layer}.self_attn.v_proj",
    "layers.{layer}.self_attn.o_proj": "layers.{layer}.self_attn.dense",
    "layers.{layer}.self_attn.q_norm": "layers.{layer}.self_attn.q_layernorm",
    "layers.{layer}.self_attn.k_norm": "layers.{layer}.self_attn.k_layernorm",
    "layers.{layer}.mlp.up_proj": "layers.{layer}.mlp.fc1",
    "layers.{layer}.mlp.down_proj": "layers.{layer}.mlp.fc2",
}

ARCHITECTURE = Architecture(
    name="phi",
    config_class=VanillaDecoderConfig,
    native_config="PhiConfig",
    prefix="model.",
    fields=(
        *DECODER,
        LAYER_NORM,
        GROUPED,
        HEAD_DIM,
        same("hidden_act"),
        renamed(dropout=("resid_pdrop", "embd_pdrop")),
        Field(
            to_ours=lambda config: {"qk_norm": "head" if config.qk_layernorm else "none"},
            to_native=lambda config: {"qk_layernorm": config.qk_norm == "head"},
        ),
        constant(block_layout="parallel_shared_norm"),
        rotary(partial=True),
    ),
    parts=(Part(STACK),),
    heads=decoder_heads("Phi", constant(lm_head_bias=True)),
)
