"""The names in `configuration/options.py` are the keys of its entries and of the parts' dictionaries."""

import dataclasses
from typing import Literal, get_args, get_origin

import pytest
from transformers.activations import ACT2FN

from vanillaformer.configuration import options
from vanillaformer.configuration.names import ACTIVATION_ALIASES, ACTIVATIONS
from vanillaformer.configuration.options import FIELD_READERS, SIZE_READERS
from vanillaformer.modeling.block import BLOCKS
from vanillaformer.modeling.decoding import DECODINGS
from vanillaformer.modeling.parts.attention import QUERY_KEY_NORMS
from vanillaformer.modeling.parts.feed_forward import FEED_FORWARDS
from vanillaformer.modeling.parts.initialization import INITIALIZATIONS
from vanillaformer.modeling.parts.norms import NORMS
from vanillaformer.modeling.parts.patches import PATCHES
from vanillaformer.modeling.parts.pointers import POINTERS
from vanillaformer.modeling.parts.pooling import IMAGE_POOLINGS, POOLINGS
from vanillaformer.modeling.parts.position_schemes import POSITIONS
from vanillaformer.modeling.parts.positions import NoPositions, PositionTable
from vanillaformer.modeling.parts.recurrence import CELLS, RECURRENT_INITIALIZATIONS
from vanillaformer.modeling.parts.recurrent_attention import CROSS_ATTENTIONS
from vanillaformer.modeling.parts.residual import RESIDUALS
from vanillaformer.modeling.stack import BIDIRECTIONAL_MASKS, CAUSAL_MASKS

from .test_block import ALL_CONFIGS

LITERALS = {name: value for name, value in vars(options).items() if get_origin(value) is Literal}
PARTS = {
    "Norm": NORMS, "NormPlacement": RESIDUALS, "BlockLayout": BLOCKS, "FeedForward": FEED_FORWARDS,
    "PositionEmbedding": {name: POSITIONS[name] for name in options.SEQUENCE_POSITION_CHOICES},
    "ImagePosition": POSITIONS, "QueryKeyNorm": QUERY_KEY_NORMS, "LayerType": CAUSAL_MASKS,
    "Initialization": INITIALIZATIONS, "Pooling": POOLINGS, "PatchEmbedding": PATCHES, "ImagePooling": IMAGE_POOLINGS,
    "OutputDistribution": POINTERS, "Cell": CELLS, "CrossAttentionScore": CROSS_ATTENTIONS,
    "RecurrentInitialization": RECURRENT_INITIALIZATIONS, "Decoding": DECODINGS,
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in LITERALS if name not in ("SinusoidalLayout", "Parametrization")])
def test_every_name_has_a_part_and_every_part_a_name(name):
    assert list(get_args(LITERALS[name])) == list(PARTS[name])


def test_every_name_has_an_entry_and_every_entry_a_name_of_a_field():
    fields, literals = {"layer_types"}, {options.LayerType}  # a list, and no field of the dataclass
    assert list(get_args(options.LayerType)) == list(options.OPTIONS["layer_types"])
    for field in (field for config in ALL_CONFIGS for field in dataclasses.fields(config)):
        for literal in {field.type, *get_args(field.type)} & {*LITERALS.values()}:
            of_texts = literal is options.PositionEmbedding
            choices = options.SEQUENCE_POSITION_CHOICES if of_texts else options.OPTIONS[field.name]
            assert list(get_args(literal)) == list(choices)
            fields.add(field.name)
            literals.add(literal)
    assert fields == options.OPTIONS.keys()
    assert literals == {*LITERALS.values()}


def test_what_entries_say_of_each_other_exists_and_every_type_of_layer_has_two_masks():
    for choice in options.PLACEMENT_CHOICES.values():
        assert {*choice.layouts} <= options.LAYOUT_CHOICES.keys()
        assert choice.initialization in (None, *options.INITIALIZATION_CHOICES)
    names = set().union(*(config.keywords() for config in ALL_CONFIGS))
    assert {*FIELD_READERS, *SIZE_READERS} <= names
    assert {*ACTIVATIONS, *ACTIVATION_ALIASES, *ACTIVATION_ALIASES.values()} <= {*ACT2FN}
    assert list(BIDIRECTIONAL_MASKS) == list(CAUSAL_MASKS)


@pytest.mark.parametrize("name", POSITIONS)
def test_the_entry_of_a_position_scheme_says_what_its_class_does(name):
    choice = options.POSITION_CHOICES[name]
    assert choice.has_table == issubclass(POSITIONS[name], PositionTable)
    assert choice.is_biased == (POSITIONS[name].score_bias is not NoPositions.score_bias)
