"""Pegasus (Zhang et al. 2020): pre-LN and sinusoidal positions."""

from vanillaformer.configuration import VanillaEncoderDecoderConfig

from ..mapping.architecture import Architecture
from ..mapping.fields import constant
from .bart import HEAD, NO_FORCED_END, ONE_TIE, SEQ2SEQ, SHARED, both_sides, read_logits_bias, seq2seq_heads

# Fixed sines and cosines that the checkpoint holds all the same
POSITION_TABLES = {
    f"model.{side}.embed_positions.weight": f"model.{side}.embeddings.positions.table"
    for side in ("encoder", "decoder")
}

ARCHITECTURE = Architecture(
    name="pegasus",
    config_class=VanillaEncoderDecoderConfig,
    native_config="PegasusConfig",
    prefix="model.",
    fields=(
        *SEQ2SEQ,
        ONE_TIE,
        NO_FORCED_END,
        constant(norm_placement="pre", position_embedding_type="sinusoidal", sinusoidal_layout="halves"),
    ),
    parts=both_sides({}),
    heads=seq2seq_heads("Pegasus", "PegasusForConditionalGeneration", HEAD),
    unconstrained=("lm_head_bias",),
    unused=SHARED,
    fixed_tables=POSITION_TABLES,
    read=read_logits_bias,
)
