"""Decoders near GPT-2 and OPT: GPT-Neo, GPT-BigCode, XGLM and BioGPT."""

from transformers import PreTrainedConfig

from vanillaformer.configuration import BlockConfig, VanillaDecoderConfig, layer_types

from ..mapping.architecture import Architecture, Head, Part
from ..mapping.fields import PLAIN_HEADS, TEXT, Field, Values, constant, renamed, same
from ..mapping.tensors import HeadRows, QueryKeyValueRows, Table
from .gpt import FIELDS, INNER_SIZE
from .gpt_neox import QUERY_KEY_VALUE
from .llama import decoder_heads
from .opt import STACK as OPT_STACK

COMMON: tuple[Field, ...] = (
    TEXT,
    same("vocab_size", "use_cache", "tie_word_embeddings"),
    constant(initialization="normal"),
)
GPT_NEO: Table = {
    "embed_tokens": "wte",
    "embeddings.positions.embed_positions": "wpe",
    "norm": "ln_f",
    **{f"layers.{{layer}}.self_attn.{x}_proj": f"h.{{layer}}.attn.attention.{x}_proj" for x in "qkv"},
    "layers.{layer}.self_attn.o_proj": "h.{layer}.attn.attention.out_proj",
    "layers.{layer}.self_attn_residual.norm": "h.{layer}.ln_1",
    "layers.{layer}.mlp.up_proj": "h.{layer}.mlp.c_fc",
    "layers.{layer}.mlp.down_proj": "h.{layer}.mlp.c_proj",
    "layers.{layer}.mlp_residual.norm": "h.{layer}.ln_2",
}
BIG_CODE: Table = {
    **{name: native for name, native in GPT_NEO.items() if ".self_attn." not in name},
    "layers.{layer}.self_attn.o_proj": "h.{layer}.attn.c_proj",
}
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


ALL = (
    # GPT-Neo (Black et al. 2021): every other layer attends to a window; scores are not scaled
    Architecture(
        name="gpt_neo",
        config_class=VanillaDecoderConfig,
        prefix="transformer.",
        fields=(
            *COMMON,
            *PLAIN_HEADS,
            same("hidden_size", "max_position_embeddings", "attention_dropout", "initializer_range"),
            renamed(num_hidden_layers="num_layers", num_attention_heads="num_heads", norm_eps="layer_norm_epsilon"),
            renamed(hidden_act="activation_function", dropout=("resid_dropout", "embed_dropout")),
            Field(
                to_ours=lambda config: {"intermediate_size": config.intermediate_size or 4 * config.hidden_size},
                to_native=lambda config: {"intermediate_size": config.intermediate_size},
            ),
            Field(windows_to_ours, windows_to_native),
            constant(position_embedding_type="learned", attention_scale=1.0, attention_bias=["o_proj"]),
        ),
        parts=(Part(GPT_NEO),),
        heads=decoder_heads("GPTNeo"),
    ),
    # GPT-BigCode (Ben Allal et al. 2023): GPT-2 with one head of keys and values
    Architecture(
        name="gpt_bigcode",
        config_class=VanillaDecoderConfig,
        prefix="transformer.",
        fields=(
            *FIELDS,
            INNER_SIZE,
            same("use_cache"),
            renamed(hidden_act="activation_function"),
            Field(
                lambda config: {
                    "num_key_value_heads": 1 if config.multi_query else config.n_head,
                    "attention_scale": None if config.scale_attn_weights else 1.0,
                },
                lambda config: {
                    "multi_query": is_multi_query(config), "scale_attn_weights": config.attention_scale != 1.0
                },
            ),
            constant(position_embedding_type="learned", initialization="normal"),
        ),
        parts=(
            Part(BIG_CODE),
            Part({QUERY_KEY_VALUE: ("h.{layer}.attn.c_attn", QueryKeyValueRows())}, when=is_multi_query),
            Part({QUERY_KEY_VALUE: ("h.{layer}.attn.c_attn", HeadRows())}, when=lambda x: not is_multi_query(x)),
        ),
        heads=decoder_heads(
            "GPTBigCode", ignored=("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32")
        ),
    ),
    # XGLM (Lin et al. 2022): fairseq's decoder with fixed positions
    Architecture(
        name="xglm",
        config_class=VanillaDecoderConfig,
        prefix="model.",
        fields=(
            *COMMON,
            *PLAIN_HEADS,
            same("max_position_embeddings", "dropout", "attention_dropout", "activation_dropout", "scale_embedding"),
            renamed(hidden_size="d_model", intermediate_size="ffn_dim", num_hidden_layers="num_layers"),
            renamed(num_attention_heads="attention_heads", hidden_act="activation_function"),
            renamed(initializer_range="init_std", layer_drop="layerdrop"),
            constant(position_embedding_type="sinusoidal", sinusoidal_layout="tensor2tensor", position_offset=2),
        ),
        parts=(Part({name: "layer_norm" if name == "norm" else native for name, native in OPT_STACK.items()}),),
        heads={"base": Head("XGLMModel", ignored=("decoder_start_token_id",)),
               "lm": Head("XGLMForCausalLM", {"lm_head": "lm_head"}, ignored=("decoder_start_token_id",))},
    ),
    # BioGPT (Luo et al. 2022): GPT-2's block with scaled embeddings and positions from row 2
    Architecture(
        name="biogpt",
        config_class=VanillaDecoderConfig,
        prefix="biogpt.",
        fields=(
            *COMMON,
            *PLAIN_HEADS,
            same("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act"),
            same("max_position_embeddings", "initializer_range", "scale_embedding", "activation_dropout"),
            renamed(dropout="hidden_dropout_prob", attention_dropout="attention_probs_dropout_prob"),
            renamed(layer_drop="layerdrop"),
            constant(position_embedding_type="learned", position_offset=2, norm_eps=1e-5),
        ),
        parts=(Part({name: "layer_norm" if name == "norm" else native for name, native in OPT_STACK.items()}),),
        heads={
            "base": Head("BioGptModel", ignored=("layer_norm_eps",)),  # which its code does not read
            "lm": Head("BioGptForCausalLM", {"lm_head": "output_projection"}, ignored=("layer_norm_eps",)),
            "sequence": Head("BioGptForSequenceClassification", {"score": "score"}, ignored=("layer_norm_eps",)),
        },
    ),
)  # fmt: skip
