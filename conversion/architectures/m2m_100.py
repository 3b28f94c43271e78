"""M2M-100 (Fan et al. 2021): fairseq's pre-LN Transformer, whose positions are numbered after the padding's."""

from vanillaformer.configuration import VanillaEncoderDecoderConfig

from ..mapping.architecture import Architecture
from ..mapping.fields import Field, constant
from .bart import ONE_TIE, SEQ2SEQ, SHARED, both_sides, seq2seq_heads

ARCHITECTURE = Architecture(
    name="m2m_100",
    config_class=VanillaEncoderDecoderConfig,
    native_config="M2M100Config",
    prefix="model.",
    fields=(
        *SEQ2SEQ,
        ONE_TIE,
        Field(to_ours=lambda config: {"position_offset": config.pad_token_id + 1}, to_native=lambda config: {}),
        constant(norm_placement="pre", position_embedding_type="sinusoidal", sinusoidal_layout="tensor2tensor"),
    ),
    parts=both_sides({}),
    heads=seq2seq_heads("M2M100", "M2M100ForConditionalGeneration", {"lm_head": "lm_head"}),
    unused=SHARED,
    distinct_tokens=(("decoder_start_token_id", "pad_token_id"),),  # padding has no position, wherever it stands
)
