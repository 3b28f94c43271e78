"""Names that are not fields: those of other libraries, of transformers, and misspelled ones."""

import difflib
from collections.abc import Iterable

from transformers import GenerationConfig

# Names of fields in other libraries and Hugging Face configs: accepting them would silently keep the default.
FOREIGN_NAMES = frozenset(
    """
    act_dropout act_fn activation activation_fn activation_function add_bias_linear add_cross_attention
    add_final_layer_norm add_qkv_bias alibi apply_residual_connection_post_layernorm attention_dropout_prob
    attention_dropout_rate attention_head_dim attention_head_size attention_heads attention_implementation
    attention_logit_cap attention_multiplier attention_probs_dropout_prob attention_window attention_window_size
    attn_bias attn_dropout attn_logit_softcap attn_pdrop attn_scale attn_softcap bias bidirectional block_size bos_id
    bos_idx bos_index cell_type channels class_token classifier_activation classifier_dropout_prob clip_qkv cls_dropout
    context_length context_size copy_attn copy_mechanism d_ff d_head d_inner d_kv d_model decoder_activation_function
    decoder_attention_heads decoder_ffn_dim decoder_layerdrop decoder_layers decoder_normalize_before
    decoder_num_hidden_layers dense_act_fn depth dim dim_feedforward dim_ff dim_head dim_model do_layer_norm_before
    drop_path drop_path_prob dropout_p dropout_prob dropout_rate elementwise_affine emb_dim embd_pdrop embed_dim
    embed_dropout embed_scale embedding_dropout embedding_multiplier embedding_size encoder_activation_function
    encoder_attention_heads encoder_d_model encoder_dim encoder_embed_dim encoder_ffn_dim encoder_layerdrop
    encoder_normalize_before eos_id eos_idx eos_index eps feed_forward_proj ff_bias ff_dim ff_dropout ffn_bias ffn_dim
    ffn_dropout ffn_hidden_size ffn_type final_layer_norm final_logit_softcap gated_mlp global_attn_every_n_layers
    global_pool glu head_size heads hidden_activation hidden_dim hidden_dropout hidden_dropout_prob img_size
    in_channels in_chans init init_method init_std init_values initializer initializer_factor initializer_std inner_dim
    input_feed input_size is_decoder is_gated_act kv_channels kv_heads layer_norm_bias layer_norm_type layer_scale
    layerdrop layernorm_bias layernorm_embedding layernorm_eps layernorm_epsilon layers layers_block_type
    layerscale_value local_attention logit_multiplier logit_softcap logits_scale logits_scaling logits_soft_cap
    max_context_length max_position max_positions max_seq_len max_seq_length max_sequence_length max_source_positions
    max_target_positions mlp_dim mlp_hidden_size mlp_ratio mlp_type model_dim moe_intermediate_size multi_query
    n_blocks n_classes n_ctx n_embd n_encoder_layers n_head n_head_kv n_heads n_inner n_kv_head n_kv_heads n_labels
    n_layer n_layers n_positions n_token_types n_tokens n_vocab n_words nhead no_rope_layer_interval no_rope_layers
    no_scale_embedding norm_elementwise_affine norm_first norm_position norm_type normalization normalize_before
    normalize_embedding num_attention_groups num_blocks num_buckets num_classes num_decoder_layers num_encoder_layers
    num_experts num_experts_per_tok num_heads num_kv_heads num_layers num_local_experts num_position_embeddings
    num_query_groups num_query_heads num_registers num_token_types num_tokens pad_id pad_idx pad_index padding_idx
    parallel_attn parallel_block parallel_residual per_layer_config pointer_gen pool pooling pooling_mode pooling_type
    pos_emb_type pos_embedding position_embeddings_type position_encoding positional_embedding positional_encoding
    post_norm pre_norm prenorm qk_layer_norm qk_layernorm qkv_bias query_key_norm query_pre_attn_scalar reg_tokens
    relative_attention_buckets relu_dropout resid_dropout resid_pdrop residual_dropout residual_multiplier resolution
    rmsnorm_eps rnn_cell rnn_type rope_base rope_interleave rope_type rotary_base rotary_dim rotary_emb_base
    rotary_embedding_base rotary_interleaved rotary_ndims rotary_pct rotary_percentage scale_attn_weights scale_emb
    seq_classif_dropout seq_len seq_length sequence_length share_all_embeddings share_decoder_input_output_embed
    share_embeddings sinusoidal_pos_embds sliding_window_pattern sliding_window_size softmax_scale source_vocab_size
    src_vocab_size start_token_id static_position_embeddings stochastic_depth_prob stochastic_depth_rate
    summary_activation summary_type target_vocab_size tgt_vocab_size tie_embeddings tie_encoder_decoder tie_weights
    tied_embeddings token_type_vocab_size use_alibi use_attention_bias use_bias use_class_token use_flash_attention
    use_flash_attention_2 use_gated_mlp use_glu use_mean_pooling use_mlp_bias use_parallel_residual use_qk_layernorm
    use_qk_norm use_qkv_bias use_rms_norm use_rmsnorm use_rope use_rotary use_sliding_window vocabulary_size
    weight_init word_embed_proj_dim
    """.split()  # noqa: SIM905 - a list takes six times as many lines
)

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

# Fields of some model types that transformers or its Trainer may set on any config
STANDARD_NAMES = frozenset(
    {"use_cache", "vocab_size", "tie_word_embeddings", "pad_token_id", "bos_token_id", "eos_token_id"}
    | {"decoder_start_token_id"}
)


def unknown_reason(key: str, known: Iterable[str]) -> str | None:
    """Return why a keyword is refused, with the field that was probably meant; `None` if it is the user's own name."""
    if key.startswith("_"):  # private to transformers
        return None
    if key in GENERATION_NAMES:
        return "it is a setting of generation_config"
    if nearest := difflib.get_close_matches(key, known, n=1, cutoff=0.85):
        return f"did you mean {nearest[0]!r}?"
    if key in FOREIGN_NAMES:
        return (
            "fields have the names of Hugging Face's Llama and BART, such as hidden_size, num_hidden_layers, "
            "num_attention_heads, intermediate_size"
        )
    return None
