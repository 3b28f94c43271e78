"""Every axis along which configs differ, read from the configs themselves, and a cover of all pairs of their values.

Fields that are a choice of names or a switch say themselves what they can be; the values of the others stand in
`VALUES`, and a test fails for a field that is in neither, so that a new one cannot be forgotten. A value is a
dictionary of fields: its own, and those without which it means nothing (`NEEDS`).
"""

import dataclasses
import itertools
import random
import types
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin
from unittest import mock

from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedConfig

import vanillaformer
from vanillaformer import BlockConfig, VanillaDecoderConfig, VanillaEncoderConfig, VanillaImageEncoderConfig
from vanillaformer.configuration import options

CONFIGS: dict[str, type[BlockConfig]] = {
    "encoder_decoder": vanillaformer.VanillaEncoderDecoderConfig,
    "decoder": VanillaDecoderConfig,
    "encoder": VanillaEncoderConfig,
}
# Images have tests of their own (`test_image_encoder.py`), and the same axes
ALL_CONFIGS: dict[str, type[BlockConfig]] = CONFIGS | {"image_encoder": VanillaImageEncoderConfig}
SOURCE_VOCABULARY, TARGET_VOCABULARY = 37, 29
PAD, FIRST_WORD = 0, 4

# Heads that share keys, a head width that is not hidden_size / heads, two vocabularies: a mix-up changes a shape.
SMALL = {
    "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "intermediate_size": 40, "max_position_embeddings": 24, "attention_bias": True, "mlp_bias": True,
    "scale_embedding": False, "dropout": 0.0,
}  # fmt: skip
OF_KIND: dict[str, dict[str, Any]] = {
    "encoder_decoder": {"vocab_size": SOURCE_VOCABULARY, "decoder_vocab_size": TARGET_VOCABULARY,
                        "share_encoder_decoder_embeddings": False},
    "decoder": {"vocab_size": SOURCE_VOCABULARY, "pad_token_id": PAD, "bos_token_id": 2, "eos_token_id": 3},
    "encoder": {"vocab_size": SOURCE_VOCABULARY, "pad_token_id": PAD},
    "image_encoder": {"image_size": [8, 12], "patch_size": 4, "num_channels": 2, "max_position_embeddings": None,
                      "num_labels": 5},
}  # fmt: skip
# Pairs are combined around the placement that goes with every layout.
AROUND = {"norm_placement": "pre"}
# Toys redraw all their weights, so the initialization of a config makes no difference.
UNPAIRED = "initialization"

Value = dict[str, Any]
PATCHES_ONLY: Value = {"use_cls_token": False, "image_pooling": "mean"}
ROTARY: Value = {"position_embedding_type": "rotary"}
RELATIVE: Value = {"position_embedding_type": "relative"}

# Rotary parameters of every scaling of transformers (`ROPE_INIT_FUNCTIONS`), for heads of width 8
ROPES: dict[str, Value] = {
    "default": {}, "linear": {"factor": 2.0}, "dynamic": {"factor": 2.0},
    "yarn": {"factor": 2.0, "original_max_position_embeddings": 12},
    "longrope": {"short_factor": [1.0, 1.5, 2.0, 3.0], "long_factor": [1.0, 2.0, 4.0, 8.0], "factor": 2.0,
                 "original_max_position_embeddings": 20},  # longer inputs change what is cached already
    "llama3": {"factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 12},
    "proportional": {"partial_rotary_factor": 0.5},
}  # fmt: skip


def rope(rope_type: str, theta: float = 1e3) -> Value:
    return {"rope_type": rope_type, "rope_theta": theta, **ROPES[rope_type]}


def window(size: int, *layers: str) -> Value:
    return {"sliding_window": size} | ({"layer_types": list(layers)} if layers else {})


MIXED = window(3, "sliding_attention", "full_attention")

# What the fields that are no choice of names and no switch can be, the toys' own value first
VALUES: dict[str, list[Value]] = {
    **{name: [{name: value} for value in values] for name, values in {
        "num_attention_heads": (4, 6), "num_key_value_heads": (2, 1, 4), "head_dim": (8, 4, 10),
        "hidden_act": ("relu", "gelu_new", "silu", "gelu", "linear"), "head_act": (None, "silu"),
        "norm_eps": (1e-5, 0.3), "layer_scale_init_value": (None, 0.1), "residual_scale": (1.0, 0.4),
        "embedding_scale": (1.0, 3.0), "attention_bias": (True, False, ["q_proj", "v_proj"], ["o_proj"]),
        "attention_scale": (None, 0.5), "attn_logit_softcapping": (None, 3.0), "logit_scale": (None, 0.3),
        "final_logit_softcapping": (None, 5.0), "type_vocab_size": (0, 2, 3), "encoder_layers": (2, 1, 3),
        "image_size": ([8, 12], 12), "patch_size": (4, 2), "num_channels": (2, 1), "num_register_tokens": (0, 3),
        "pooler_act": (None, "tanh"),
    }.items()},
    "base_width": [{"parametrization": "standard"}, {"parametrization": "mup", "base_width": 8}],
    "position_offset": [
        {"position_offset": 0}, {"position_offset": 2, "position_embedding_type": "learned"},
        {"position_offset": 2, "position_embedding_type": "sinusoidal"},
    ],
    "rotary_layers": [{"rotary_layers": None}, {"rotary_layers": [True, False], **ROTARY}],
    "relative_attention_num_buckets": [
        {}, {**RELATIVE, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 6}
    ],
    "sliding_window": [
        {}, *(window(3, *layers) for layers in itertools.product(get_args(options.LayerType), repeat=2)), window(5),
    ],
    "max_ngram": [{"max_ngram": 1}, {"max_ngram": 2, "ngram_buckets": 11}, {"max_ngram": 3, "ngram_buckets": 64}],
    "ngram_buckets": [{}, {"max_ngram": 2, "ngram_buckets": 1}],
    "wide_max_ngram": [{"wide_max_ngram": 0}, {"wide_max_ngram": 2, "wide_buckets": 11}],
    "wide_buckets": [{}, {"wide_max_ngram": 1, "wide_buckets": 3}],
    "encoder_hidden_size": [{}, {"encoder_hidden_size": 20}],
    "encoder_intermediate_size": [{}, {"encoder_intermediate_size": 28}],
    "rope_2d_theta": [{}, {"position_embedding_type": "rotary_2d", "rope_2d_theta": 30.0}],
    "depths": [{"depths": None}, {"depths": [1, 1], **PATCHES_ONLY}],
    "stage_heads": [{}, {"depths": [1, 1], "stage_heads": [2, 4], "num_attention_heads": 2, **PATCHES_ONLY}],
    "window_size": [{"window_size": None}, {"window_size": 2, **PATCHES_ONLY}],
    # keywords that are no fields: an attribute of those configs alone that they say something about
    "rope_parameters": [
        {}, *({"rope_parameters": rope(name), **ROTARY} for name in ROPES),
        {
            "rope_parameters": {"sliding_attention": rope("default", 30.0), "full_attention": rope("linear")},
            **ROTARY, **MIXED,
        },
        {"rope_parameters": {"sliding_attention": rope("default"), "full_attention": None}, **ROTARY, **MIXED},
    ],
    "partial_rotary_factor": [{}, {"partial_rotary_factor": 0.5, **ROTARY}],
    "encoder_layer_types": [{}, {"encoder_layer_types": ["full_attention", "sliding_attention"], **MIXED}],
}  # fmt: skip

# Without which a value means nothing, or with which it replaces a choice of the toys
NEEDS: dict[tuple[str, Any], Value] = {
    ("rope_interleaved", True): ROTARY, ("relative_attention_per_layer", True): RELATIVE,
    ("skip_first_norm", True): {"norm_placement": "pre"}, ("initialization", "admin"): {"norm_placement": "admin"},
    ("initialization", "dt_fixup"): {"norm_placement": "no_norm"},
    ("sinusoidal_layout", "halves"): {"position_embedding_type": "sinusoidal"},
    ("sinusoidal_layout", "tensor2tensor"): {"position_embedding_type": "sinusoidal"},
    ("use_cls_token", False): PATCHES_ONLY,
    ("position_embedding_type", "window_relative"): {"window_size": 2, **PATCHES_ONLY},
    ("share_encoder_decoder_embeddings", True): {"decoder_vocab_size": SOURCE_VOCABULARY},
    ("output_distribution", "pointer_generator"): {"share_encoder_decoder_embeddings": True,
                                                   "decoder_vocab_size": SOURCE_VOCABULARY},
}  # fmt: skip

# No axes: sizes that all toys share, what acts in training alone or on no layer, and what belongs to a classifier or
# to ways of decoding, which have tests of their own (`test_decoding.py`)
APART = {
    "hidden_size", "num_hidden_layers", "intermediate_size", "max_position_embeddings", "vocab_size",
    "decoder_vocab_size", "relative_attention_max_distance", "dropout", "attention_dropout", "activation_dropout",
    "layer_drop", "drop_path_rate", "initializer_range", "use_cache", "pad_token_id", "bos_token_id", "eos_token_id",
    "decoder_start_token_id", "decoding", "max_length_difference", "ctc_upsampling",
    "classifier_pooling", "classifier_act", "classifier_norm", "classifier_dropout",
}  # fmt: skip


def own_fields(kind: str) -> dict[str, Any]:
    """The fields that our config of this kind adds to transformers' own, and their types."""
    theirs = {field.name for field in dataclasses.fields(PreTrainedConfig)} - {"tie_word_embeddings"}
    return {field.name: field.type for field in dataclasses.fields(ALL_CONFIGS[kind]) if field.name not in theirs}


def names_of(field_type: Any) -> list[Any]:
    """What a field of this type can be if the type itself says so: names, or on and off."""
    members = get_args(field_type) if get_origin(field_type) in (Union, types.UnionType) else (field_type,)
    members = tuple(member for member in members if member is not type(None))
    if members == (bool,):
        return [False, True]
    return list(get_args(members[0])) if len(members) == 1 and get_origin(members[0]) is Literal else []


@cache
def axes(kind: str) -> dict[str, list[Value]]:
    """The axes of a kind of model, each a list of values."""
    fields = own_fields(kind)
    found = {}
    for name, field_type in fields.items():
        if name in APART:
            continue
        if name in VALUES:
            found[name] = VALUES[name]
        else:
            found[name] = [{name: value} | NEEDS.get((name, value), {}) for value in names_of(field_type)]
    keywords = [name for name in VALUES if not any(name in own_fields(other) for other in ALL_CONFIGS)]
    return found | {name: VALUES[name] for name in keywords if kind == "encoder_decoder" or "encoder" not in name}


def config_of(kind: str, fields: Value) -> BlockConfig:
    return ALL_CONFIGS[kind](**(SMALL | OF_KIND[kind] | fields))


def is_allowed(kind: str, fields: Value) -> bool:
    # Types are checked by three classes, which takes most of the time; those of the axes' values are right
    with mock.patch.object(ALL_CONFIGS[kind], "__setattr__", object.__setattr__):
        try:
            config_of(kind, fields)
        except (ValueError, StrictDataclassError):
            return False
    return True


Place = tuple[str, int]  # an axis and the number of one of its values
Row = dict[str, int]  # the number of the value on each axis


def merged(kind: str, places: Iterable[Place]) -> Value | None:
    """The fields of several values together, `None` if two of them want different things of one field."""
    fields: Value = {}
    for axis, number in places:
        for name, value in axes(kind)[axis][number].items():
            if fields.setdefault(name, value) != value:
                return None
    return fields


class PairCover:
    """A list of configs in which every two values of two axes meet, if any config allows them to (greedy search)."""

    def __init__(self, kind: str, known: Iterable[frozenset[Place]] = (), seed: int = 0):
        self.kind = kind
        self.random = random.Random(seed)
        self.axes = {axis: values for axis, values in axes(kind).items() if axis != UNPAIRED}
        self.places = [(axis, number) for axis, values in self.axes.items() for number in range(len(values))]
        self.open = dict.fromkeys(pair for pair in itertools.combinations(self.places, 2) if pair[0][0] != pair[1][0])
        self.refused = list(known)  # parts of rows that the config refuses
        self.rows: list[Row] = []
        while self.open:
            self.take(next(iter(self.open)))

    def take(self, pair: tuple[Place, Place]) -> None:
        """Add a row with this pair, or learn why there is none."""
        row = self.filled(pair)
        if row is None:
            del self.open[pair]
        elif self.asks(list(row.items())):
            self.rows.append(row)
            for met in itertools.combinations([(axis, row[axis]) for axis in self.axes if axis in row], 2):
                self.open.pop(met, None)
        else:
            self.refused.append(frozenset(self.reason(list(row.items()))))

    def asks(self, places: list[Place]) -> bool:
        fields = merged(self.kind, places)
        return fields is not None and is_allowed(self.kind, AROUND | fields)

    def filled(self, pair: tuple[Place, Place]) -> Row | None:
        """The pair and, on every other axis, the value that brings most new pairs and that nothing known forbids."""
        row = dict(pair)
        if not self.fits(row):
            return None
        others = [axis for axis in self.axes if axis not in row]
        self.random.shuffle(others)
        for axis in others:
            numbers = list(range(len(self.axes[axis])))
            self.random.shuffle(numbers)
            numbers.sort(key=lambda number: -self.gain(row, (axis, number)))
            chosen = next((number for number in numbers if self.fits(row | {axis: number})), None)
            if chosen is not None:  # an axis that has nothing to say beside the others keeps the toys' value
                row[axis] = chosen
        return row

    def fits(self, row: Row) -> bool:
        places = row.items()
        return merged(self.kind, places) is not None and not any(refused <= places for refused in self.refused)

    def gain(self, row: Row, place: Place) -> int:
        return sum((met, place) in self.open or (place, met) in self.open for met in row.items())

    def reason(self, row: list[Place]) -> list[Place]:
        """A part of a refused row that is refused whatever the other axes say."""
        core = self.smallest_refused(row)
        taken = {axis for axis, _ in core}
        helpful = {place[0] for place in self.places if place[0] not in taken and self.asks([*core, place])}
        wider = core + [place for place in row if place[0] in helpful]
        return row if self.asks(wider) else wider

    def smallest_refused(self, places: list[Place]) -> list[Place]:
        """A part of a refused row that is refused beside the toys' other values, while no part of it is."""
        core = list(places)
        for place in reversed(places):
            if not self.asks(rest := [other for other in core if other != place]):
                core = rest
        return core


@cache
def pair_cover(kind: str) -> PairCover:
    """The cover of a kind of model; what a decoder's config refuses the others are not asked again."""
    if kind == "decoder":
        return PairCover(kind)
    same = {axis for axis, values in axes("decoder").items() if axes(kind).get(axis) == values}
    known = [part for part in pair_cover("decoder").refused if {axis for axis, _ in part} <= same]
    return PairCover(kind, known, seed=1)


@cache
def cover(kind: str, times: int | None = None) -> list[Value]:
    """Configs, as overrides of the toys' fields, in which all pairs of values meet that are allowed to.

    With `times`, only as many configs as are needed for every value to occur that often.
    """
    chosen, found = [], Counter[Place]()
    for row in pair_cover(kind).rows:
        if times is None or any(found[place] < times for place in row.items()):
            chosen.append(without_defaults(kind, AROUND | (merged(kind, row.items()) or {})))
            found.update(row.items())
    return chosen


def mixture(
    kind: str,
    number: float,
    is_taken: Callable[[str, Value], bool] = is_allowed,
    among: dict[str, list[Value]] | None = None,
) -> Value:
    """A config with a value of every axis, or of others that are given, at random, out of those that are taken."""
    chosen, fields = random.Random(number), Value()
    for values in sorted((among or axes(kind)).values(), key=lambda _: chosen.random()):
        for value in chosen.sample(values, len(values)):
            agrees = all(fields.get(name, part) == part for name, part in value.items())
            if agrees and is_taken(kind, fields | value):
                fields |= value
                break
    return fields


@cache
def single_values(kind: str) -> list[Value]:
    """Every value of every axis that is allowed by itself, beside the toys' other ones."""
    found: list[Value] = []
    for value in itertools.chain(*axes(kind).values()):
        fields = value if is_allowed(kind, value) else AROUND | value
        if (short := without_defaults(kind, fields)) not in found and is_allowed(kind, fields):
            found.append(short)
    return found


def packed(kind: str, is_taken: Callable[[str, Value], bool] = is_allowed) -> list[Value]:
    """Few configs in which every value stands once, those left out that are not taken for themselves."""
    rows: list[Value] = []
    for value in single_values(kind):
        if not is_taken(kind, value):
            continue
        for row in rows:
            if all(row.get(name, part) == part for name, part in value.items()) and is_taken(kind, row | value):
                row.update(value)
                break
        else:
            rows.append(dict(value))
    return rows


def without_defaults(kind: str, fields: Value) -> Value:
    """The fields that differ from those of the plain toy, by which a test is easier to name."""
    plain = {field.name: field.default for field in dataclasses.fields(ALL_CONFIGS[kind])} | SMALL | OF_KIND[kind]
    return {name: value for name, value in fields.items() if name not in plain or plain[name] != value}
