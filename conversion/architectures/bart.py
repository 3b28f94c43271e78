"""BART (Lewis et al. 2020) and the encoder-decoders that follow it: mBART, Pegasus, Marian and others."""

from transformers import PreTrainedConfig

from vanillaformer.configuration import VanillaEncoderDecoderConfig

from ..mapping.architecture import Architecture, Head, Part
from ..mapping.fields import PLAIN_HEADS, TEXT, Field, constant, filled, optional, renamed, same
from ..mapping.tensors import BUFFER_ROW, Table, block

ATTENTION = block(
    "layers.{layer}.self_attn", q=".q_proj", k=".k_proj", v=".v_proj", o=".out_proj", attention_norm="_layer_norm"
)
CROSS_ATTENTION = block(
    "layers.{layer}.encoder_attn", cross_q=".q_proj", cross_k=".k_proj", cross_v=".v_proj", cross_o=".out_proj",
    cross_norm="_layer_norm",
)  # fmt: skip
BLOCK = ATTENTION | block("layers.{layer}.", up="fc1", down="fc2", mlp_norm="final_layer_norm")
ENCODER = BLOCK | {"embed_tokens": "embed_tokens", "embeddings.norm": "layernorm_embedding", "norm": "layer_norm"}
DECODER = ENCODER | CROSS_ATTENTION
LEARNED: Table = {"embeddings.positions.embed_positions": "embed_positions"}
# Fixed sines and cosines that checkpoints of Pegasus and Marian contain nevertheless
POSITION_TABLES = {
    f"model.{side}.embed_positions.weight": f"model.{side}.embeddings.positions.table"
    for side in ("encoder", "decoder")
}


def both_sides(positions: Table) -> tuple[Part, Part]:
    return (
        Part(ENCODER | positions, "encoder.", "encoder.", "encoder_layers"),
        Part(DECODER | positions, "decoder.", "decoder."),
    )


TIES = ("tie_word_embeddings", "share_encoder_decoder_embeddings")
# One switch for the tables of source and target and the output layer
ONE_TIE = Field(
    to_ours=lambda config: dict.fromkeys(TIES, config.tie_word_embeddings),
    to_native=lambda config: {"tie_word_embeddings": config.tie_word_embeddings},
)
SEQ2SEQ: tuple[Field, ...] = (
    TEXT,
    optional("decoder_start_token_id"),
    renamed(hidden_size="d_model", num_hidden_layers="decoder_layers", intermediate_size="decoder_ffn_dim"),
    renamed(num_attention_heads=("encoder_attention_heads", "decoder_attention_heads")),
    renamed(hidden_act="activation_function", initializer_range="init_std"),
    filled("encoder_intermediate_size", lambda config: config.encoder_inner_width, "encoder_ffn_dim"),
    same("vocab_size", "encoder_layers", "max_position_embeddings", "scale_embedding", "use_cache"),
    same("dropout", "attention_dropout", "activation_dropout"),
    # ours is the same on both sides; different native rates only concern training
    Field(
        to_ours=lambda config: (
            {"layer_drop": config.decoder_layerdrop or 0.0}
            if (config.encoder_layerdrop or 0.0) == (config.decoder_layerdrop or 0.0)
            else {}
        ),
        to_native=lambda config: dict.fromkeys(("encoder_layerdrop", "decoder_layerdrop"), config.layer_drop),
    ),
    *PLAIN_HEADS,
    constant(norm_eps=1e-5, attention_bias=True, initialization="normal"),
)
SHARED = {"model.shared.weight": "model.encoder.embed_tokens.weight"}


def with_logits_bias(
    name: str, classes: str, positions: Table, *fields: Field, language_model: str = ""
) -> Architecture:
    """Return an architecture with a bias of the logits that is not trained natively."""
    head: Table = {"lm_head.weight": "lm_head.weight", "lm_head.bias": ("final_logits_bias", BUFFER_ROW)}
    no_forced_end = Field(to_native=lambda config: {"forced_eos_token_id": None})  # the generation config has it
    return Architecture(
        name,
        classes,
        VanillaEncoderDecoderConfig,
        fields=(*SEQ2SEQ, *fields, no_forced_end),
        parts=both_sides(positions),
        heads={"base": Head(), "lm": Head(head, native_class=language_model)},
        unconstrained=("lm_head_bias",),
        unused=SHARED,
        fixed_tables={} if positions else POSITION_TABLES,
        # a buffer of zeros counts as no bias, since the native model does not train it
        read=lambda model: (
            {"lm_head_bias": bool(model.get_buffer("final_logits_bias").any())}
            if hasattr(model, "final_logits_bias")
            else {}
        ),
    )


def bart_like(name: str, classes: str, **constants: object) -> Architecture:
    """Return an architecture with BART's stacks and learned positions, and values of some fields."""
    fields = constant(position_embedding_type="learned", **constants)
    return with_logits_bias(name, classes, LEARNED, ONE_TIE, fields)


BART = bart_like("bart", "Bart", norm_placement="post", embedding_norm=True, position_offset=2)

# mBART (Liu et al. 2020): its norms are before the sublayers
MBART = bart_like("mbart", "MBart", norm_placement="pre", embedding_norm=True, position_offset=2)

# Pegasus (Zhang et al. 2020): pre-LN and sinusoidal positions
PEGASUS = with_logits_bias(
    "pegasus", "Pegasus", {}, ONE_TIE,
    constant(norm_placement="pre", position_embedding_type="sinusoidal", sinusoidal_layout="halves"),
)  # fmt: skip


# Marian (Junczys-Dowmunt et al. 2018): the model of the paper, with one vocabulary or two
def shares_vocabulary(config: PreTrainedConfig) -> bool:
    """Return whether source and target share a table: without tied weights nothing is shared."""
    return config.share_encoder_decoder_embeddings and config.tie_word_embeddings


VOCABULARIES = Field(
    to_ours=lambda config: {
        "share_encoder_decoder_embeddings": shares_vocabulary(config),
        "decoder_vocab_size": None if shares_vocabulary(config) else config.decoder_vocab_size,
    },
    to_native=lambda config: {
        "share_encoder_decoder_embeddings": config.share_encoder_decoder_embeddings,
        "decoder_vocab_size": config.target_vocab_size,
    },
)
MARIAN = with_logits_bias(
    "marian", "Marian", {}, same("tie_word_embeddings"), VOCABULARIES,
    constant(norm_placement="post", position_embedding_type="sinusoidal", sinusoidal_layout="halves"),
    language_model="MarianMTModel",
)  # fmt: skip

# M2M-100 (Fan et al. 2021): fairseq's pre-LN Transformer, whose positions begin after the id of the padding token
M2M_100 = Architecture(
    name="m2m_100",
    classes="M2M100",
    config_class=VanillaEncoderDecoderConfig,
    fields=(
        *SEQ2SEQ,
        ONE_TIE,
        Field(lambda config: {"position_offset": config.pad_token_id + 1}),
        constant(norm_placement="pre", position_embedding_type="sinusoidal", sinusoidal_layout="tensor2tensor"),
    ),
    parts=both_sides({}),
    heads={"base": Head(), "lm": Head({"lm_head": "lm_head"})},
    unused=SHARED,
    distinct_tokens=(("decoder_start_token_id", "pad_token_id"),),  # padding has no position, wherever it is
)

VARIANTS = (
    # Blenderbot (Roller et al. 2020): pre-LN BART, positions from row 0
    bart_like("blenderbot", "Blenderbot", norm_placement="pre", embedding_norm=False, position_offset=0),
    # PLBART (Ahmad et al. 2021): BART for programming languages
    bart_like("plbart", "PLBart", norm_placement="post", embedding_norm=True, position_offset=2),
)
