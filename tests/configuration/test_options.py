"""The names in `configuration/options.py` are the keys of the parts' dictionaries, and each can be built."""

import itertools
from typing import get_args

import pytest
import torch

from vanillaformer import VanillaDecoderConfig
from vanillaformer.configuration import options
from vanillaformer.modeling.block import BLOCKS
from vanillaformer.modeling.parts.attention import QUERY_KEY_NORMS
from vanillaformer.modeling.parts.feed_forward import FEED_FORWARDS
from vanillaformer.modeling.parts.initialization import INITIALIZATIONS
from vanillaformer.modeling.parts.norms import NORMS
from vanillaformer.modeling.parts.pooling import POOLINGS
from vanillaformer.modeling.parts.positions import POSITIONS, SinusoidalPositions
from vanillaformer.modeling.parts.residual import RESIDUALS
from vanillaformer.modeling.stack import BIDIRECTIONAL_MASKS, CAUSAL_MASKS

PARTS = {
    "Norm": NORMS,
    "NormPlacement": RESIDUALS,
    "BlockLayout": BLOCKS,
    "FeedForward": FEED_FORWARDS,
    "PositionEmbedding": POSITIONS,
    "QueryKeyNorm": QUERY_KEY_NORMS,
    "LayerType": CAUSAL_MASKS,
    "Initialization": INITIALIZATIONS,
    "Pooling": POOLINGS,
}


@pytest.mark.parametrize("name", PARTS)
def test_every_name_has_a_part_and_every_part_a_name(name):
    assert list(get_args(getattr(options, name))) == list(PARTS[name])


def test_every_list_of_names_is_compared_here():
    literals = {name for name, value in vars(options).items() if get_args(value)}
    assert literals == {*PARTS, "SinusoidalLayout"}


def test_every_sinusoidal_layout_is_a_table_of_its_own():
    tables = [
        SinusoidalPositions(
            VanillaDecoderConfig(hidden_size=16, position_embedding_type="sinusoidal", sinusoidal_layout=layout)
        ).table
        for layout in get_args(options.SinusoidalLayout)
    ]
    assert len(tables) == 3
    for one, other in itertools.combinations(tables, 2):
        assert not torch.equal(one, other)
    assert torch.equal(tables[0].sort(dim=1).values, tables[1].sort(dim=1).values)


def test_both_kinds_of_stack_have_a_mask_for_every_type_of_layer():
    assert list(BIDIRECTIONAL_MASKS) == list(CAUSAL_MASKS)
