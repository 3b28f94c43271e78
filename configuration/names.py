"""Names that are not fields: aliases in other libraries, and suggestions for misspelled ones."""

import difflib
from collections.abc import Iterable

from transformers import GenerationConfig

# Names of our fields in other libraries and Hugging Face configs: accepting them would silently keep the default.
ALIASES: dict[str, tuple[str, ...]] = {
    "hidden_size": ("d_model", "dim", "dim_model", "emb_dim", "embed_dim", "hidden_dim", "model_dim", "n_embd"),
    "num_hidden_layers": (
        "decoder_layers", "decoder_num_hidden_layers", "depth", "layers", "n_blocks", "n_layer", "n_layers",
        "num_blocks", "num_decoder_layers", "num_layers",
    ),
    "num_attention_heads": (
        "attention_heads", "decoder_attention_heads", "encoder_attention_heads", "heads", "n_head", "n_heads", "nhead",
        "num_heads", "num_query_heads",
    ),
    "num_key_value_heads": (
        "kv_heads", "multi_query", "n_head_kv", "n_kv_head", "n_kv_heads", "num_attention_groups", "num_kv_heads",
        "num_query_groups",
    ),
    "head_dim": (
        "attention_head_dim", "attention_head_size", "d_head", "d_kv", "dim_head", "head_size", "kv_channels",
    ),
    "intermediate_size": (
        "d_ff", "d_inner", "decoder_ffn_dim", "dim_feedforward", "dim_ff", "ff_dim", "ffn_dim", "ffn_hidden_size",
        "inner_dim", "mlp_dim", "mlp_hidden_size", "mlp_ratio", "n_inner",
    ),
    "feed_forward": (
        "feed_forward_proj", "ffn_type", "gated_mlp", "glu", "is_gated_act", "mlp_type", "use_gated_mlp", "use_glu",
    ),
    "hidden_act": (
        "act_fn", "activation", "activation_fn", "activation_function", "decoder_activation_function", "dense_act_fn",
        "encoder_activation_function", "hidden_activation",
    ),
    "mlp_bias": ("ff_bias", "ffn_bias", "use_mlp_bias"),
    "norm": ("layer_norm_type", "norm_type", "normalization", "use_rms_norm", "use_rmsnorm"),
    "norm_eps": ("eps", "layernorm_eps", "layernorm_epsilon", "rmsnorm_eps"),
    "norm_weight": ("elementwise_affine", "norm_elementwise_affine"),
    "norm_bias": ("layer_norm_bias", "layernorm_bias"),
    "norm_placement": (
        "apply_residual_connection_post_layernorm", "decoder_normalize_before", "do_layer_norm_before",
        "encoder_normalize_before", "norm_first", "norm_position", "normalize_before", "post_norm", "pre_norm",
        "prenorm",
    ),
    "embedding_norm": ("layernorm_embedding", "normalize_embedding"),
    "final_norm": ("add_final_layer_norm", "final_layer_norm"),
    "block_layout": ("parallel_attn", "parallel_block", "parallel_residual", "use_parallel_residual"),
    "position_embedding_type": (
        "alibi", "pos_emb_type", "pos_embedding", "position_embeddings_type", "position_encoding",
        "positional_embedding", "positional_encoding", "sinusoidal_pos_embds", "static_position_embeddings",
        "use_alibi", "use_rope", "use_rotary",
    ),
    "max_position_embeddings": (
        "block_size", "context_length", "context_size", "max_context_length", "max_position", "max_positions",
        "max_seq_len", "max_seq_length", "max_sequence_length", "max_source_positions", "max_target_positions",
        "n_ctx", "n_positions", "num_position_embeddings", "seq_len", "seq_length", "sequence_length",
    ),
    "rope_parameters": ("rope_type",),
    "rope_theta": ("rope_base", "rotary_base", "rotary_emb_base", "rotary_embedding_base"),
    "partial_rotary_factor": ("rotary_dim", "rotary_ndims", "rotary_pct", "rotary_percentage"),
    "rope_interleaved": ("rope_interleave", "rotary_interleaved"),
    "rotary_layers": ("no_rope_layer_interval", "no_rope_layers"),
    "relative_attention_num_buckets": ("num_buckets", "relative_attention_buckets"),
    "attention_bias": (
        "add_bias_linear", "add_qkv_bias", "attn_bias", "bias", "qkv_bias", "use_attention_bias", "use_bias",
        "use_qkv_bias",
    ),
    "qk_norm": ("qk_layer_norm", "qk_layernorm", "query_key_norm", "use_qk_layernorm", "use_qk_norm"),
    "attention_scale": (
        "attention_multiplier", "attn_scale", "query_pre_attn_scalar", "scale_attn_weights", "softmax_scale",
    ),
    "attn_logit_softcapping": ("attention_logit_cap", "attn_logit_softcap", "attn_softcap"),
    "sliding_window": (
        "attention_window", "attention_window_size", "local_attention", "sliding_window_size", "use_sliding_window",
    ),
    "layer_types": ("global_attn_every_n_layers", "layers_block_type", "sliding_window_pattern"),
    "scale_embedding": ("embed_scale", "embedding_multiplier", "no_scale_embedding", "scale_emb"),
    "dropout": (
        "dropout_p", "dropout_prob", "dropout_rate", "embd_pdrop", "embed_dropout", "embedding_dropout",
        "hidden_dropout", "hidden_dropout_prob", "resid_dropout", "resid_pdrop", "residual_dropout",
    ),
    "attention_dropout": (
        "attention_dropout_prob", "attention_dropout_rate", "attention_probs_dropout_prob", "attn_dropout",
        "attn_pdrop",
    ),
    "activation_dropout": ("act_dropout", "ff_dropout", "ffn_dropout", "relu_dropout"),
    "layer_drop": ("decoder_layerdrop", "encoder_layerdrop", "layerdrop"),
    "drop_path_rate": ("drop_path", "drop_path_prob", "stochastic_depth_prob", "stochastic_depth_rate"),
    "layer_scale_init_value": ("init_values", "layer_scale", "layerscale_value"),
    "initialization": ("init", "init_method", "initializer", "weight_init"),
    "initializer_range": ("init_std", "initializer_factor", "initializer_std"),
    "logit_scale": ("logit_multiplier", "logits_scale", "logits_scaling"),
    "final_logit_softcapping": ("final_logit_softcap", "logit_softcap", "logits_soft_cap"),
    "tie_word_embeddings": (
        "share_decoder_input_output_embed", "share_embeddings", "tie_embeddings", "tie_weights", "tied_embeddings",
    ),
    "vocab_size": (
        "n_tokens", "n_vocab", "n_words", "num_tokens", "source_vocab_size", "src_vocab_size", "vocabulary_size",
    ),
    "pad_token_id": ("pad_id", "pad_idx", "pad_index", "padding_idx"),
    "bos_token_id": ("bos_id", "bos_idx", "bos_index"),
    "eos_token_id": ("eos_id", "eos_idx", "eos_index"),
    "num_labels": ("n_classes", "n_labels", "num_classes"),
    "attn_implementation": ("attention_implementation", "use_flash_attention", "use_flash_attention_2"),
    "type_vocab_size": ("n_token_types", "num_token_types", "token_type_vocab_size"),
    "classifier_dropout": ("classifier_dropout_prob", "cls_dropout", "seq_classif_dropout"),
    "classifier_pooling": ("pooling", "pooling_mode", "pooling_type", "summary_type"),
    "classifier_act": ("classifier_activation", "summary_activation"),
    "decoder_vocab_size": ("target_vocab_size", "tgt_vocab_size"),
    "share_encoder_decoder_embeddings": ("share_all_embeddings",),
    "output_distribution": ("copy_attn", "copy_mechanism", "pointer_gen"),
    "encoder_layers": ("n_encoder_layers", "num_encoder_layers"),
    "encoder_hidden_size": ("encoder_d_model", "encoder_dim", "encoder_embed_dim"),
    "encoder_intermediate_size": ("encoder_ffn_dim",),
    "cell": ("cell_type", "rnn_cell", "rnn_type"),
    "bidirectional_encoder": ("bidirectional",),
    "input_feeding": ("input_feed",),
    "decoder_start_token_id": ("start_token_id",),
    "image_size": ("img_size", "input_size", "resolution"),
    "num_channels": ("channels", "in_chans", "in_channels"),
    "use_cls_token": ("class_token", "use_class_token"),
    "num_register_tokens": ("num_registers", "reg_tokens"),
    "image_pooling": ("global_pool", "pool", "use_mean_pooling"),
}  # fmt: skip
FIELD_ALIASES = {name: ours for ours, names in ALIASES.items() for name in names}

# Fields of other models that have no counterpart here
UNSUPPORTED_FIELDS = (
    "add_cross_attention", "clip_qkv", "embedding_size", "is_decoder", "moe_intermediate_size", "num_experts",
    "num_experts_per_tok", "num_local_experts", "per_layer_config", "residual_multiplier", "tie_encoder_decoder",
    "word_embed_proj_dim",
)  # fmt: skip

# Keywords for rotary positions; transformers converts the others into the first.
ROPE_PARTS = ("rope_theta", "partial_rotary_factor")
ROPE_NAMES = ("rope_parameters", "rope_scaling", *ROPE_PARTS)
LAYER_TYPES = ("layer_types", "encoder_layer_types")

# Accepted as keywords, but attributes only of configs in which they have an effect.
CONDITIONAL_NAMES = (*ROPE_NAMES, "layer_types")

# Keywords of transformers that are not fields
TRANSFORMERS_NAMES = (
    "attn_implementation", "experts_implementation", "name_or_path", "num_labels", "output_attentions", "torch_dtype",
)  # fmt: skip

# Settings that transformers would silently drop from a config
GENERATION_NAMES = frozenset(GenerationConfig._get_default_generation_params()) - {"use_cache"}

# Fields and keywords of some model types only, with their configs. Only those that change the model: transformers and
# its Trainer give every config `use_cache` and the ids of special tokens.
FIELD_OWNERS: dict[str, tuple[str, ...]] = {
    "type_vocab_size": ("VanillaDecoderConfig", "VanillaEncoderConfig"),
    **dict.fromkeys(
        (
            "max_ngram", "ngram_buckets", "classifier_pooling", "classifier_act", "classifier_norm", "wide_max_ngram",
            "wide_buckets", "head_act", "head_bias", "classifier_dropout",
        ),
        ("VanillaEncoderConfig",),
    ),
    **dict.fromkeys(
        (
            "encoder_intermediate_size", "encoder_layer_types", "scale_decoder_outputs", "output_distribution",
            "decoding", "max_length_difference", "ctc_upsampling",
        ),
        ("VanillaEncoderDecoderConfig",),
    ),
    **dict.fromkeys(
        ("decoder_vocab_size", "share_encoder_decoder_embeddings", "encoder_layers", "encoder_hidden_size"),
        ("VanillaEncoderDecoderConfig", "VanillaRecurrentEncoderDecoderConfig"),
    ),
    **dict.fromkeys(
        ("cell", "bidirectional_encoder", "cross_attention", "input_feeding", "recurrent_initialization"),
        ("VanillaRecurrentEncoderDecoderConfig",),
    ),
    **dict.fromkeys(
        (
            "image_size", "patch_size", "num_channels", "patch_embedding", "patch_norm", "use_cls_token",
            "use_distillation_token", "num_register_tokens", "use_mask_token", "image_pooling", "pooler_norm",
            "pooler_act", "rope_2d_theta", "depths", "stage_heads", "window_size",
        ),
        ("VanillaImageEncoderConfig",),
    ),
}  # fmt: skip


def suggest_field(key: str, known: Iterable[str]) -> str | None:
    """Return why a keyword is not known, with the field that was probably meant; `None` for any other name."""
    known = list(known)
    if key.startswith("_"):  # private to transformers
        return None
    if key in FIELD_OWNERS:
        return f"it is a field of {' and '.join(FIELD_OWNERS[key])}"
    if key in UNSUPPORTED_FIELDS:
        return "no field here corresponds to it"
    if key in GENERATION_NAMES:
        return "it is a setting of generation_config"
    meant = FIELD_ALIASES.get(key) or next(iter(difflib.get_close_matches(key, known, n=1, cutoff=0.85)), None)
    if meant is None:
        return None
    owner = "" if meant in known or meant not in FIELD_OWNERS else f" of {' and '.join(FIELD_OWNERS[meant])}"
    return f"did you mean {meant!r}{owner}?"
