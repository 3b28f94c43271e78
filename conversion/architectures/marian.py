"""Marian (Junczys-Dowmunt et al. 2018): the model of the paper, with one vocabulary or two."""

from transformers import PreTrainedConfig

from vanillaformer.configuration import BlockConfig, VanillaEncoderDecoderConfig

from ..mapping.architecture import Architecture
from ..mapping.fields import Field, Values, constant, same
from .bart import HEAD, NO_FORCED_END, SEQ2SEQ, SHARED, both_sides, read_logits_bias, seq2seq_heads
from .pegasus import POSITION_TABLES


def vocabularies_to_ours(config: PreTrainedConfig) -> Values:
    # without tied weights nothing is shared, whatever the other switch is
    shared = config.share_encoder_decoder_embeddings and config.tie_word_embeddings
    return {
        "share_encoder_decoder_embeddings": shared,
        "decoder_vocab_size": None if shared else config.decoder_vocab_size,
    }


def vocabularies_to_native(config: BlockConfig) -> Values:
    return {
        "share_encoder_decoder_embeddings": config.share_encoder_decoder_embeddings,
        "decoder_vocab_size": config.target_vocab_size,
    }


ARCHITECTURE = Architecture(
    name="marian",
    config_class=VanillaEncoderDecoderConfig,
    native_config="MarianConfig",
    prefix="model.",
    fields=(
        *SEQ2SEQ,
        NO_FORCED_END,
        same("tie_word_embeddings"),
        Field(vocabularies_to_ours, vocabularies_to_native),
        constant(norm_placement="post", position_embedding_type="sinusoidal", sinusoidal_layout="halves"),
    ),
    parts=both_sides({}),
    heads=seq2seq_heads("Marian", "MarianMTModel", HEAD),
    unconstrained=("lm_head_bias",),
    unused=SHARED,
    fixed_tables=POSITION_TABLES,
    read=read_logits_bias,
)
