"""BART (Lewis et al. 2020), and what the encoder-decoders that follow it share."""

from transformers import PreTrainedConfig, PreTrainedModel

from vanillaformer.configuration import VanillaEncoderDecoderConfig

from ..mapping.architecture import Architecture, Head, Part
from ..mapping.fields import (
    ALL_KEY_VALUE_HEADS,
    DERIVED_HEAD_DIM,
    TEXT,
    Field,
    Values,
    constant,
    native_constant,
    optional,
    renamed,
    same,
)
from ..mapping.tensors import BufferRow, Table


def attention(ours: str, native: str) -> Table:
    """Return the projections and the norm of an attention layer."""
    table: Table = {f"layers.{{layer}}.{ours}.{name}_proj": f"layers.{{layer}}.{native}.{name}_proj" for name in "qkv"}
    return table | {
        f"layers.{{layer}}.{ours}.o_proj": f"layers.{{layer}}.{native}.out_proj",
        f"layers.{{layer}}.{ours}_residual.norm": f"layers.{{layer}}.{native}_layer_norm",
    }


ENCODER: Table = attention("self_attn", "self_attn") | {
    "embed_tokens": "embed_tokens",
    "embeddings.norm": "layernorm_embedding",
    "norm": "layer_norm",
    "layers.{layer}.mlp.up_proj": "layers.{layer}.fc1",
    "layers.{layer}.mlp.down_proj": "layers.{layer}.fc2",
    "layers.{layer}.mlp_residual.norm": "layers.{layer}.final_layer_norm",
}
DECODER: Table = ENCODER | attention("cross_attn", "encoder_attn")
LEARNED: Table = {"embeddings.positions.embed_positions": "embed_positions"}
HEAD: Table = {"lm_head.weight": "lm_head.weight", "lm_head.bias": ("final_logits_bias", BufferRow())}


def both_sides(positions: Table) -> tuple[Part, Part]:
    """Return the two stacks, with a table of positions."""
    return (
        Part(ENCODER | positions, "encoder.", "encoder.", "encoder_layers"),
        Part(DECODER | positions, "decoder.", "decoder."),
    )


def seq2seq_heads(name: str, head_class: str, head: Table) -> dict[str, Head]:
    """Return the heads of the encoder-decoders whose classes are called `name`."""
    return {"base": Head(f"{name}Model"), "lm": Head(head_class, head)}


def read_logits_bias(model: PreTrainedModel) -> Values:
    """Return whether there is a bias: a buffer of zeros is none, since the native model does not train it."""
    bias = getattr(model, "final_logits_bias", None)
    return {} if bias is None else {"lm_head_bias": bool(bias.any())}


TIES = ("tie_word_embeddings", "share_encoder_decoder_embeddings")
LAYER_DROPS = ("encoder_layerdrop", "decoder_layerdrop")


def layer_drop_to_ours(config: PreTrainedConfig) -> Values:
    # ours is the same on both sides; different native rates only concern training
    rates = {getattr(config, name) or 0.0 for name in LAYER_DROPS}
    return {"layer_drop": rates.pop()} if len(rates) == 1 else {}


# One switch for the tables of source and target and the output layer
ONE_TIE = Field(
    to_ours=lambda config: dict.fromkeys(TIES, config.tie_word_embeddings),
    to_native=lambda config: {"tie_word_embeddings": config.tie_word_embeddings},
)

SEQ2SEQ: tuple[Field, ...] = (
    TEXT,
    optional("decoder_start_token_id"),
    renamed(
        hidden_size="d_model",
        num_hidden_layers="decoder_layers",
        num_attention_heads=("encoder_attention_heads", "decoder_attention_heads"),
        intermediate_size="decoder_ffn_dim",
        hidden_act="activation_function",
        initializer_range="init_std",
    ),
    Field(
        to_ours=lambda config: {"encoder_intermediate_size": config.encoder_ffn_dim},
        to_native=lambda config: {"encoder_ffn_dim": config.encoder_inner_width},
    ),
    same("vocab_size", "encoder_layers", "max_position_embeddings", "scale_embedding", "use_cache"),
    same("dropout", "attention_dropout", "activation_dropout"),
    Field(layer_drop_to_ours, lambda config: dict.fromkeys(LAYER_DROPS, config.layer_drop)),
    ALL_KEY_VALUE_HEADS,
    DERIVED_HEAD_DIM,
    constant(norm_eps=1e-5, attention_bias=True, initialization="normal"),
)
# The generation config has it, and is copied
NO_FORCED_END = native_constant(forced_eos_token_id=None)
SHARED = {"model.shared.weight": "model.encoder.embed_tokens.weight"}

ARCHITECTURE = Architecture(
    name="bart",
    config_class=VanillaEncoderDecoderConfig,
    native_config="BartConfig",
    prefix="model.",
    fields=(
        *SEQ2SEQ,
        ONE_TIE,
        NO_FORCED_END,
        constant(norm_placement="post", embedding_norm=True, position_embedding_type="learned", position_offset=2),
    ),
    parts=both_sides(LEARNED),
    heads=seq2seq_heads("Bart", "BartForConditionalGeneration", HEAD),
    unconstrained=("lm_head_bias",),
    unused=SHARED,
    read=read_logits_bias,
)
