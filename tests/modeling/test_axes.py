"""The cover of all pairs is one, and nothing that can be chosen is left out of it."""

import itertools
from typing import get_args

import pytest
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from vanillaformer.configuration import options

from .axes import (
    ALL_CONFIGS,
    APART,
    AROUND,
    CONFIGS,
    ROPES,
    VALUES,
    axes,
    cover,
    is_allowed,
    merged,
    own_fields,
    pair_cover,
)

every_kind = pytest.mark.parametrize("kind", CONFIGS)


def places_of(kind: str) -> list[tuple[str, int]]:
    return [(axis, number) for axis, values in axes(kind).items() for number in range(len(values))]


def pairs_of(kind: str) -> list[tuple[tuple[str, int], tuple[str, int]]]:
    return [pair for pair in itertools.combinations(places_of(kind), 2) if pair[0][0] != pair[1][0]]


@every_kind
def test_every_two_values_that_a_config_accepts_meet_in_a_config(kind):
    met = set()
    for row in pair_cover(kind).rows:
        met |= set(itertools.combinations([(axis, row[axis]) for axis in axes(kind) if axis in row], 2))
    missing = [pair for pair in pairs_of(kind) if pair not in met and merged(kind, pair) is not None]
    assert 10 < len(missing) < 100
    for pair in missing:
        for third in places_of(kind):
            fields = merged(kind, [*pair, third]) if third[0] not in dict(pair) else merged(kind, pair)
            assert fields is None or not is_allowed(kind, AROUND | fields), f"{pair} never meet, but with {third} can"


@every_kind
def test_every_config_of_the_cover_is_accepted_and_has_what_it_stands_for(kind):
    for row, fields in zip(pair_cover(kind).rows, cover(kind)):
        assert is_allowed(kind, fields)
        whole = AROUND | merged(kind, row.items())
        assert fields.items() <= whole.items()


@every_kind
def test_every_field_has_values_or_stands_apart(kind):
    for axis, values in axes(kind).items():
        assert values, f"{axis} is a new field of {CONFIGS[kind].__name__}: it needs a line in VALUES"


@every_kind
def test_every_value_is_accepted_beside_the_toys_other_ones(kind):
    for axis, values in axes(kind).items():
        for value in values:
            assert is_allowed(kind, AROUND | value), f"{axis}: what {value} needs beside it belongs into NEEDS"


# They have tests of their own: classifiers, ways of decoding, recurrent models
OF_OTHERS = ("Pooling", "Decoding", "Cell", "CrossAttentionScore", "RecurrentInitialization")


def test_every_name_of_an_option_is_a_value_of_an_axis():
    found = {
        (name, value)
        for kind in ALL_CONFIGS
        for values in axes(kind).values()
        for fields in values
        for name, value in fields.items()
        if isinstance(value, str)
    }
    values = {value for _, value in found} | {
        value for fields in VALUES["sliding_window"] for value in fields.get("layer_types", [])
    }
    for name, literal in vars(options).items():
        if get_args(literal) and name not in OF_OTHERS:
            assert values >= set(get_args(literal)), name


def test_every_scaling_of_rotary_positions_is_a_value():
    assert set(ROPES) == {"default", *ROPE_INIT_FUNCTIONS}


def test_what_stands_apart_exists_and_is_no_axis():
    assert {name for kind in CONFIGS for name in own_fields(kind)} >= APART
    assert not APART & {axis for kind in CONFIGS for axis in axes(kind)}
