"""GPT (Radford et al. 2018), GPT-2 (2019), and related decoders: GPT-J, OPT, GPT-Neo, GPT-BigCode, XGLM, BioGPT."""

from transformers import PreTrainedConfig

from vanillaformer.configuration import BlockConfig, layer_types

from ..mapping.architecture import Part
from ..mapping.fields import PLAIN_HEADS, TEXT, Field, Values, all_biases, constant, first_rope, mapped, renamed, same
from ..mapping.tensors import HEAD_ROWS, QUERY_KEY_VALUE_ROWS, TRANSPOSED, TRANSPOSED_ROWS, Kind, Table, block
from .bart import BLOCK as BART_BLOCK
from .llama import decoder

BLOCK = block(
    "h.{layer}.", qkv=("attn.c_attn", TRANSPOSED_ROWS), o=("attn.c_proj", TRANSPOSED), attention_norm="ln_1",
    up=("mlp.c_fc", TRANSPOSED), down=("mlp.c_proj", TRANSPOSED), mlp_norm="ln_2",
)  # fmt: skip
ENDS: Table = {"embed_tokens": "wte", "norm": "ln_f"}
POSITIONS: Table = {"embeddings.positions.embed_positions": "wpe"}
GPT2_STACK: Table = BLOCK | ENDS | POSITIONS
FIELDS: tuple[Field, ...] = (
    TEXT,
    renamed(hidden_size="n_embd", num_hidden_layers="n_layer", num_attention_heads="n_head"),
    renamed(max_position_embeddings="n_positions", norm_eps="layer_norm_epsilon"),
    renamed(dropout=("resid_pdrop", "embd_pdrop"), attention_dropout="attn_pdrop"),
    *PLAIN_HEADS,
    same("vocab_size", "initializer_range", "tie_word_embeddings"),
)
GPT2_FIELDS: tuple[Field, ...] = (
    *FIELDS,
    # By default it is four times the model's width
    Field(
        to_ours=lambda config: {"intermediate_size": config.n_inner or 4 * config.n_embd},
        to_native=lambda config: {"n_inner": config.intermediate_size},
    ),
    same("use_cache"),
    renamed(hidden_act="activation_function"),
)
SCALED = mapped(
    "attention_scale", lambda on: None if on else 1.0, lambda scale: scale != 1.0, native="scale_attn_weights"
)

GPT2 = decoder(
    "gpt2", "GPT2", GPT2_STACK, *GPT2_FIELDS, SCALED, constant(position_embedding_type="learned"),
    prefix="transformer.", language_model="GPT2LMHeadModel",
)  # fmt: skip

# GPT is post-LN and has its own names for activations
ACTIVATIONS = {"gelu": "gelu_new", "silu": "silu", "swish": "silu", "relu": "relu"}
NATIVE_ACTIVATIONS = {"gelu_new": "gelu", "gelu_pytorch_tanh": "gelu", "silu": "silu", "swish": "silu"}

OPENAI_GPT = decoder(
    "openai-gpt", "OpenAIGPT",
    BLOCK | {"embed_tokens": "tokens_embed", "embeddings.positions.embed_positions": "positions_embed"},
    *FIELDS,
    mapped("hidden_act", ACTIVATIONS.__getitem__, lambda act: NATIVE_ACTIVATIONS.get(act, "relu"), native="afn"),
    Field(lambda config: {"intermediate_size": 4 * config.n_embd}),
    constant(position_embedding_type="learned", norm_placement="post", initialization="normal"),
    prefix="transformer.", language_model="OpenAIGPTLMHeadModel",
)  # fmt: skip

# GPT-J has attention and feed-forward side by side, and interleaved rotary positions
ROTARY_DIM = Field(
    to_ours=lambda config: {
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            # a little more than the quotient, so that rounding down gives the same number
            "partial_rotary_factor": min(1.0, (config.rotary_dim + 1e-6) / (config.n_embd // config.n_head)),
        }
    },
    to_native=lambda config: {
        "rotary_dim": int(config.head_dim * (first_rope(config) or {}).get("partial_rotary_factor", 1.0))
    },
)
GPTJ = decoder(
    "gptj", "GPTJ",
    ENDS | block(
        "h.{layer}.", q="attn.q_proj", k="attn.k_proj", v="attn.v_proj", o="attn.out_proj", shared_norm="ln_1",
        up="mlp.fc_in", down="mlp.fc_out",
    ),
    *GPT2_FIELDS, ROTARY_DIM, constant(position_embedding_type="rotary", rope_interleaved=True),
    constant(block_layout="parallel_shared_norm", attention_bias=False, initialization="normal"),
    prefix="transformer.", lm=(constant(lm_head_bias=True),),
)  # fmt: skip

# OPT (Zhang et al. 2022): an open GPT-3, with ReLU and positions from row 2
OPT_STACK: Table = BART_BLOCK | {
    "embed_tokens": "embed_tokens",
    "embeddings.positions.embed_positions": "embed_positions",
    "norm": "final_layer_norm",
}


NORMS = Field(
    to_ours=lambda config: {
        "norm_placement": "pre" if config.do_layer_norm_before else "post",
        "final_norm": False if config.do_layer_norm_before and config._remove_final_layer_norm else None,
        **dict.fromkeys(("norm_weight", "norm_bias"), config.layer_norm_elementwise_affine),
    },
    to_native=lambda config: {
        "do_layer_norm_before": config.norm_placement != "post",
        "_remove_final_layer_norm": config.norm_placement != "post" and config.final_norm is False,
        "layer_norm_elementwise_affine": config.norm_weight or config.norm_bias,
    },
)
OPT = decoder(
    "opt", "OPT", OPT_STACK, TEXT, *PLAIN_HEADS,
    same("vocab_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings"),
    same("dropout", "attention_dropout", "use_cache", "tie_word_embeddings"),
    renamed(hidden_size=("hidden_size", "word_embed_proj_dim"), intermediate_size="ffn_dim"),
    renamed(hidden_act="activation_function", initializer_range="init_std", layer_drop="layerdrop"),
    all_biases("enable_bias"), NORMS,
    constant(position_embedding_type="learned", position_offset=2, norm_eps=1e-5, initialization="normal"),
    stack="decoder.",
)  # fmt: skip

COMMON: tuple[Field, ...] = (
    TEXT,
    same("vocab_size", "use_cache", "tie_word_embeddings"),
    constant(initialization="normal"),
)
GPT_NEO = ENDS | POSITIONS | block(
    "h.{layer}.", q="attn.attention.q_proj", k="attn.attention.k_proj", v="attn.attention.v_proj",
    o="attn.attention.out_proj", attention_norm="ln_1", up="mlp.c_fc", down="mlp.c_proj", mlp_norm="ln_2",
)  # fmt: skip
BIG_CODE: Table = {name: native for name, native in GPT_NEO.items() if ".self_attn." not in name}
BIG_CODE |= block("h.{layer}.", o="attn.c_proj")
TYPES = {"global": "full_attention", "local": "sliding_attention"}


def windows_to_ours(config: PreTrainedConfig) -> Values:
    types = [TYPES[name] for name in config.attention_layers]
    return {"sliding_window": config.window_size, "layer_types": types} if "sliding_attention" in types else {}


def windows_to_native(config: BlockConfig) -> Values:
    native = {ours: name for name, ours in TYPES.items()}
    window = {} if config.sliding_window is None else {"window_size": config.sliding_window}
    return window | {"attention_types": [[[native[name] for name in layer_types(config)], 1]]}


def is_multi_query(config: BlockConfig) -> bool:
    return config.num_key_value_heads == 1 < config.num_attention_heads


def without_position(config: PreTrainedConfig) -> Values:
    if (config.pad_token_id or 0) >= 2:  # rows 0 and 1 of its table have no position
        raise ValueError(f"pad_token_id={config.pad_token_id} takes a position away: it must be 0, 1 or None")
    return {}


def fused(kind: Kind) -> Table:
    return block("h.{layer}.attn.", qkv=("c_attn", kind))


VARIANTS = (
    # GPT-Neo (Black et al. 2021): every other layer attends to a window; scores are not scaled
    decoder(
        "gpt_neo", "GPTNeo", GPT_NEO, *COMMON, *PLAIN_HEADS,
        same("hidden_size", "max_position_embeddings", "attention_dropout", "initializer_range"),
        renamed(num_hidden_layers="num_layers", num_attention_heads="num_heads", norm_eps="layer_norm_epsilon"),
        renamed(hidden_act="activation_function", dropout=("resid_dropout", "embed_dropout")),
        Field(
            to_ours=lambda config: {"intermediate_size": config.intermediate_size or 4 * config.hidden_size},
            to_native=lambda config: {"intermediate_size": config.intermediate_size},
        ),
        Field(windows_to_ours, windows_to_native),
        constant(position_embedding_type="learned", attention_scale=1.0, attention_bias=["o_proj"]),
        prefix="transformer.",
    ),
    # GPT-BigCode (Ben Allal et al. 2023): GPT-2 with one head of keys and values
    decoder(
        "gpt_bigcode", "GPTBigCode", BIG_CODE, *GPT2_FIELDS, SCALED,
        Field(
            lambda config: {"num_key_value_heads": 1 if config.multi_query else config.n_head},
            lambda config: {"multi_query": is_multi_query(config)},
        ),
        constant(position_embedding_type="learned", initialization="normal"), prefix="transformer.",
        ignored=("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32"),
        more=(
            Part(fused(QUERY_KEY_VALUE_ROWS), when=is_multi_query),
            Part(fused(HEAD_ROWS), when=lambda config: not is_multi_query(config)),
        ),
    ),
    # XGLM (Lin et al. 2022): fairseq's decoder with fixed positions
    decoder(
        "xglm", "XGLM", OPT_STACK | {"norm": "layer_norm"}, *COMMON, *PLAIN_HEADS,
        same("max_position_embeddings", "dropout", "attention_dropout", "activation_dropout", "scale_embedding"),
        renamed(hidden_size="d_model", intermediate_size="ffn_dim", num_hidden_layers="num_layers"),
        renamed(num_attention_heads="attention_heads", hidden_act="activation_function"),
        renamed(initializer_range="init_std", layer_drop="layerdrop"),
        constant(position_embedding_type="sinusoidal", sinusoidal_layout="tensor2tensor", position_offset=2),
        Field(without_position),
        ignored=("decoder_start_token_id",), classifies=False,
    ),
    # BioGPT (Luo et al. 2022): GPT-2's block with scaled embeddings and positions from row 2
    decoder(
        "biogpt", "BioGpt", OPT_STACK | {"norm": "layer_norm"}, *COMMON, *PLAIN_HEADS,
        same("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act"),
        same("max_position_embeddings", "initializer_range", "scale_embedding", "activation_dropout"),
        renamed(dropout="hidden_dropout_prob", attention_dropout="attention_probs_dropout_prob"),
        renamed(layer_drop="layerdrop"),
        constant(position_embedding_type="learned", position_offset=2, norm_eps=1e-5),
        prefix="biogpt.", output="output_projection", ignored=("layer_norm_eps",),  # its code does not read it
    ),
)  # fmt: skip
