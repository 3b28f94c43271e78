"""Encoder-decoders near BART and T5: Blenderbot, PLBART, mT5 and UMT5."""

from dataclasses import replace

from ..mapping.architecture import Architecture, Head
from ..mapping.fields import constant
from ..mapping.tensors import Table
from .bart import LEARNED, ONE_TIE, with_logits_bias
from .t5 import ENDS, FIELDS, T5, stacks


def bart_variant(name: str, native: str, **constants: object) -> Architecture:
    """Return an architecture with BART's stacks and learned positions, and other values of some fields."""
    fields = constant(position_embedding_type="learned", **constants)
    return with_logits_bias(name, native, f"{native}ForConditionalGeneration", LEARNED, ONE_TIE, fields)


def t5_variant(name: str, native: str, ends: Table, **constants: object) -> Architecture:
    """Return an architecture with T5's stacks and other values of some fields."""
    return replace(
        T5,
        name=name,
        fields=(*FIELDS, constant(**constants)),
        parts=stacks(ends),
        heads={
            "base": Head(f"{native}Model"),
            "lm": Head(f"{native}ForConditionalGeneration", {"lm_head": "lm_head"}),
        },
    )


BIASES = "embeddings.positions.relative_attention_bias"
NATIVE_BIASES = "block.{layer}.layer.0.SelfAttention.relative_attention_bias"
BY_LAYER: Table = {name: native for name, native in ENDS.items() if BIASES not in str(name)}
BY_LAYER |= {f"{BIASES}.{{layer}}": NATIVE_BIASES}

ALL = (
    # Blenderbot (Roller et al. 2020): pre-LN BART, positions from row 0
    bart_variant("blenderbot", "Blenderbot", norm_placement="pre", embedding_norm=False, position_offset=0),
    # PLBART (Ahmad et al. 2021): BART for programming languages
    bart_variant("plbart", "PLBart", norm_placement="post", embedding_norm=True, position_offset=2),
    t5_variant("mt5", "MT5", ENDS, scale_decoder_outputs=False),  # Xue et al. 2021: T5 1.1 in 101 languages
    # UMT5 (Chung et al. 2023): mT5 with a table of distances per layer
    t5_variant("umt5", "UMT5", BY_LAYER, scale_decoder_outputs=True, relative_attention_per_layer=True),
)
