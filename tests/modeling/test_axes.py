"""The cover of all pairs is one, and nothing that can be chosen is left out of it."""

import itertools
from typing import get_args

import pytest
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from vanillaformer.configuration import options

from . import axes as module
from .axes import APART, AROUND, CONFIGS, axes, is_allowed, merged

every_kind = pytest.mark.parametrize("kind", CONFIGS)


@every_kind
def test_every_two_values_that_a_config_accepts_meet_in_a_config(kind):
    met, paired = set(), [(axis, values) for axis, values in axes(kind).items() if axis != module.UNPAIRED]
    for row, fields in zip(module.pair_cover(kind).rows, module.cover(kind), strict=True):
        assert is_allowed(kind, fields)
        assert fields.items() <= (AROUND | merged(kind, row.items())).items()
        met |= set(itertools.combinations([(axis, row[axis]) for axis, _ in paired if axis in row], 2))
    places = [(axis, number) for axis, values in paired for number in range(len(values))]
    missing = [pair for pair in itertools.combinations(places, 2) if pair[0][0] != pair[1][0] and pair not in met]
    together = [fields for pair in missing if (fields := merged(kind, pair)) is not None]
    assert 10 < len(together) < 100
    for fields in together:
        assert not is_allowed(kind, AROUND | fields), f"{fields} never meet, but can"


@every_kind
def test_every_field_has_values_that_are_accepted_beside_the_toys_other_ones_or_stands_apart(kind):
    for axis, values in axes(kind).items():
        assert values, f"{axis} is a new field of {CONFIGS[kind].__name__}: it needs a line in VALUES"
    for axis, values in axes(kind).items():
        for value in values:
            assert is_allowed(kind, AROUND | value), f"{axis}: what {value} needs beside it belongs into NEEDS"


# They have tests of their own: classifiers, ways of decoding, recurrent models
OF_OTHERS = ("Pooling", "Decoding", "Cell", "CrossAttentionScore", "RecurrentInitialization")


def test_every_name_of_an_option_and_scaling_is_a_value_and_what_stands_apart_is_no_axis():
    found = {
        (name, value) for kind in module.ALL_CONFIGS for values in axes(kind).values() for fields in values
        for name, value in fields.items() if isinstance(value, str)
    }  # fmt: skip
    values = {value for _, value in found}
    values |= {value for fields in module.VALUES["sliding_window"] for value in fields.get("layer_types", [])}
    for name, literal in vars(options).items():
        if get_args(literal) and name not in OF_OTHERS:
            assert values >= set(get_args(literal)), name
    assert set(module.ROPES) == {"default", *ROPE_INIT_FUNCTIONS}
    assert {name for kind in CONFIGS for name in module.own_fields(kind)} >= APART
    assert not APART & {axis for kind in CONFIGS for axis in axes(kind)}
