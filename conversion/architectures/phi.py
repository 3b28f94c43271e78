"""Phi (Li et al. 2023): attention and feed-forward in parallel after one norm, partial rotary positions."""

from vanillaformer.configuration import VanillaDecoderConfig

from ..mapping.architecture import Architecture, Part
from ..mapping.fields import HEAD_DIM, constant, renamed, rotary, same, switch
from ..mapping.tensors import Table
from .llama import DECODER, GROUPED, LAYER_NORM, SHARED_NORM, decoder_heads

STACK: Table = SHARED_NORM | {
    "embed_tokens": "embed_tokens",
    "norm": "final_layernorm",
    **{f"layers.{{layer}}.self_attn.{name}_proj": f"layers.{{layer}}.self_attn.{name}_proj" for name in "qkv"},
    "layers.{layer}.self_attn.o_proj": "layers.{layer}.self_attn.dense",
    "layers.{layer}.self_attn.q_norm": "layers.{layer}.self_attn.q_layernorm",
    "layers.{layer}.self_attn.k_norm": "layers.{layer}.self_attn.k_layernorm",
    "layers.{layer}.mlp.up_proj": "layers.{layer}.mlp.fc1",
    "layers.{layer}.mlp.down_proj": "layers.{layer}.mlp.fc2",
}

PHI = Architecture(
    name="phi",
    config_class=VanillaDecoderConfig,
    fields=(
        *DECODER,
        LAYER_NORM,
        GROUPED,
        HEAD_DIM,
        same("hidden_act"),
        renamed(dropout=("resid_pdrop", "embd_pdrop")),
        switch("qk_layernorm", "qk_norm", on="head", off="none"),
        constant(block_layout="parallel_shared_norm"),
        rotary(partial=True),
    ),
    parts=(Part(STACK),),
    heads=decoder_heads("Phi", constant(lm_head_bias=True)),
)
