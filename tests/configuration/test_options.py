"""The names in `configuration/options.py` are the keys of the parts' dictionaries, and each can be built."""

from typing import get_args

import pytest
import torch

from vanillaformer import VanillaDecoderConfig
from vanillaformer.configuration import options
from vanillaformer.modeling.feed_forward import FEED_FORWARDS
from vanillaformer.modeling.initialization import INITIALIZATIONS
from vanillaformer.modeling.norms import NORMS
from vanillaformer.modeling.pooling import POOLINGS
from vanillaformer.modeling.positions import POSITIONS, SinusoidalPositions
from vanillaformer.modeling.residual import RESIDUALS

PARTS = {
    "Norm": NORMS,
    "NormPlacement": RESIDUALS,
    "FeedForward": FEED_FORWARDS,
    "PositionEmbedding": POSITIONS,
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
        SinusoidalPositions(VanillaDecoderConfig(hidden_size=16, sinusoidal_layout=layout)).table
        for layout in get_args(options.SinusoidalLayout)
    ]
    assert len(tables) == 2
    assert not torch.equal(*tables)
    assert torch.equal(tables[0].sort(dim=1).values, tables[1].sort(dim=1).values)
