"""mBART (Liu et al. 2020): BART with its norms in front of the sublayers."""

from vanillaformer.configuration import VanillaEncoderDecoderConfig

from ..mapping.architecture import Architecture
from ..mapping.fields import constant
from .bart import HEAD, LEARNED, NO_FORCED_END, ONE_TIE, SEQ2SEQ, SHARED, both_sides, read_logits_bias, seq2seq_heads

ARCHITECTURE = Architecture(
    name="mbart",
    config_class=VanillaEncoderDecoderConfig,
    native_config="MBartConfig",
    prefix="model.",
    fields=(
        *SEQ2SEQ,
        ONE_TIE,
        NO_FORCED_END,
        constant(norm_placement="pre", embedding_norm=True, position_embedding_type="learned", position_offset=2),
    ),
    parts=both_sides(LEARNED),
    heads=seq2seq_heads("MBart", "MBartForConditionalGeneration", HEAD),
    unconstrained=("lm_head_bias",),
    unused=SHARED,
    read=read_logits_bias,
)
