"""T5 (Raffel et al. 2020) and T5 v1.1 (Shazeer 2020), one architecture with a few switches; mT5 and UMT5."""

from dataclasses import replace

from torch import nn
from transformers import PreTrainedModel

from vanillaformer.configuration import BlockConfig, VanillaEncoderDecoderConfig

from ..mapping.architecture import Architecture, Head, Part
from ..mapping.fields import ALL_KEY_VALUE_HEADS, TEXT, Field, Values, constant, optional, renamed, same
from ..mapping.tensors import Table, block

ENDS: Table = {
    "embed_tokens": "embed_tokens",
    "norm": "final_layer_norm",
    "embeddings.positions.relative_attention_bias.0": "block.0.layer.0.SelfAttention.relative_attention_bias",
}


def feed_forwards(side: str, sublayer: int, depth: str) -> tuple[Part, Part]:
    """Return the plain and the gated feed-forward layer of a side."""
    layer = f"block.{{layer}}.layer.{sublayer}.DenseReluDense."
    plain, gated = block(layer, up="wi", down="wo"), block(layer, gate="wi_0", up="wi_1", down="wo")
    return (
        Part(plain, side, side, depth, lambda config: config.feed_forward == "plain"),
        Part(gated, side, side, depth, lambda config: config.feed_forward == "gated"),
    )


def stacks(ends: Table) -> tuple[Part, ...]:
    """Return the two stacks; `ends` are the modules around their layers."""
    layer = "block.{layer}.layer."
    self_attention = block(f"{layer}0.SelfAttention.", **{name: name for name in "qkvo"})
    cross_attention = block(f"{layer}1.EncDecAttention.", **{f"cross_{name}": name for name in "qkvo"})
    both = ends | self_attention | block(layer, attention_norm="0.layer_norm")
    decoder = both | cross_attention | block(layer, cross_norm="1.layer_norm", mlp_norm="2.layer_norm")
    return (
        Part(both | block(layer, mlp_norm="1.layer_norm"), "encoder.", "encoder.", "encoder_layers"),
        *feed_forwards("encoder.", 1, "encoder_layers"),
        Part(decoder, "decoder.", "decoder."),
        *feed_forwards("decoder.", 2, "num_hidden_layers"),
    )


def feed_forward_to_native(config: BlockConfig) -> Values:
    if config.feed_forward == "plain":
        return {"feed_forward_proj": config.hidden_act}
    # the published configs have "gated-gelu" for the approximation by tanh
    return {"feed_forward_proj": "gated-gelu" if config.hidden_act == "gelu_new" else f"gated-{config.hidden_act}"}


def separate_head(model: PreTrainedModel, config: BlockConfig) -> None:
    """Untie the output layer, as in checkpoints of v1.1, which the native config cannot express."""
    if not config.tie_word_embeddings and hasattr(model, "lm_head"):
        model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
        model.all_tied_weights_keys.pop("lm_head.weight", None)


RATES = ("dropout", "attention_dropout", "activation_dropout")
FIELDS: tuple[Field, ...] = (
    TEXT,
    optional("decoder_start_token_id"),
    renamed(hidden_size="d_model", head_dim="d_kv", intermediate_size="d_ff", num_attention_heads="num_heads"),
    renamed(encoder_layers="num_layers", num_hidden_layers="num_decoder_layers", norm_eps="layer_norm_epsilon"),
    same("vocab_size", "use_cache", "relative_attention_num_buckets", "relative_attention_max_distance"),
    ALL_KEY_VALUE_HEADS,
    Field(
        to_ours=lambda config: {
            "feed_forward": "gated" if config.is_gated_act else "plain",
            "hidden_act": config.dense_act_fn,
        },
        to_native=feed_forward_to_native,
    ),
    Field(
        to_ours=lambda config: dict.fromkeys(RATES, config.dropout_rate),
        to_native=lambda config: {"dropout_rate": config.dropout},
    ),
    constant(norm="rms_norm", norm_placement="pre", position_embedding_type="relative", initialization="t5"),
    constant(attention_scale=1.0, attention_bias=False, mlp_bias=False, scale_embedding=False),
)


T5 = Architecture(
    name="t5",
    classes="T5",
    config_class=VanillaEncoderDecoderConfig,
    prefix="",
    fields=(*FIELDS, same("scale_decoder_outputs")),
    parts=stacks(ENDS),
    heads={"base": Head(), "lm": Head({"lm_head": "lm_head"})},
    unconstrained=("tie_word_embeddings",),
    unused={"shared.weight": "model.encoder.embed_tokens.weight"},
    finish=separate_head,
)


def t5_variant(name: str, classes: str, ends: Table, **constants: object) -> Architecture:
    """Return an architecture with T5's stacks and other values of some fields."""
    return replace(T5, name=name, classes=classes, fields=(*FIELDS, constant(**constants)), parts=stacks(ends))


BIASES = "embeddings.positions.relative_attention_bias"
NATIVE_BIASES = "block.{layer}.layer.0.SelfAttention.relative_attention_bias"
BY_LAYER: Table = {name: native for name, native in ENDS.items() if BIASES not in str(name)}
BY_LAYER |= {f"{BIASES}.{{layer}}": NATIVE_BIASES}

VARIANTS = (
    t5_variant("mt5", "MT5", ENDS, scale_decoder_outputs=False),  # Xue et al. 2021: T5 1.1 in 101 languages
    # UMT5 (Chung et al. 2023): mT5 with a table of distances per layer
    t5_variant("umt5", "UMT5", BY_LAYER, scale_decoder_outputs=True, relative_attention_per_layer=True),
)
