"""Names that are not ours: what other configs call our fields, and what a misspelled one was meant to be."""

import difflib
from collections.abc import Iterable

# Names that other Hugging Face configs use for our fields: accepted silently they would leave the default in force.
FOREIGN_NAMES = {
    "activation_function": "hidden_act",
    "attention_multiplier": "attention_scale",
    "attention_probs_dropout_prob": "attention_dropout",
    "attn_pdrop": "attention_dropout",
    "d_ff": "intermediate_size",
    "d_kv": "head_dim",
    "d_model": "hidden_size",
    "decoder_attention_heads": "num_attention_heads",
    "decoder_ffn_dim": "intermediate_size",
    "decoder_layerdrop": "layer_drop",
    "decoder_layers": "num_hidden_layers",
    "dropout_rate": "dropout",
    "embd_pdrop": "dropout",
    "encoder_attention_heads": "num_attention_heads",
    "encoder_ffn_dim": "encoder_intermediate_size",
    "encoder_layerdrop": "layer_drop",
    "feed_forward_proj": "feed_forward",
    "hidden_dropout": "dropout",
    "hidden_dropout_prob": "dropout",
    "init_std": "initializer_range",
    "layerdrop": "layer_drop",
    "local_attention": "sliding_window",
    "n_ctx": "max_position_embeddings",
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_layer": "num_hidden_layers",
    "n_positions": "max_position_embeddings",
    "num_decoder_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "num_layers": "num_hidden_layers",
    "qk_layernorm": "qk_norm",
    "query_pre_attn_scalar": "attention_scale",
    "resid_pdrop": "dropout",
    "rotary_pct": "partial_rotary_factor",
    "use_parallel_residual": "block_layout",
    "use_qk_norm": "qk_norm",
}

# How rotary positions may be described; transformers turns the others into the first.
ROPE_NAMES = ("rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor")

# Accepted as keywords, and an attribute only of those configs that they say something about.
CONDITIONAL_NAMES = (*ROPE_NAMES, "layer_types", "encoder_layer_types")


def meant_by(key: str, fields: Iterable[str]) -> str | None:
    """Return the field that an unknown keyword was probably meant to be, or `None`."""
    if key in CONDITIONAL_NAMES:
        return None
    if key in FOREIGN_NAMES:
        return FOREIGN_NAMES[key] if FOREIGN_NAMES[key] in [*fields, *CONDITIONAL_NAMES] else None
    return next(iter(difflib.get_close_matches(key, [*fields, *CONDITIONAL_NAMES], n=1, cutoff=0.85)), None)
