"""The correspondence of native fields to ours, as tables that are read in both directions."""

from collections.abc import Callable
from typing import Any, NamedTuple

from transformers import PreTrainedConfig

from vanillaformer.configuration import BlockConfig, layer_types

Values = dict[str, Any]


class Field(NamedTuple):
    """One or more fields: `to_ours` returns ours for a native config, `to_native` native ones for our config.

    The values may be objects of a config: they are copied into the new one.
    """

    to_ours: Callable[[PreTrainedConfig], Values] = lambda config: {}
    to_native: Callable[[BlockConfig], Values] = lambda config: {}


def renamed(**names: str | tuple[str, ...]) -> Field:
    """Fields of the same value: our name = the native one, or several, the first of which is read."""
    targets = {ours: (native,) if isinstance(native, str) else native for ours, native in names.items()}
    return Field(
        to_ours=lambda config: {ours: getattr(config, native[0]) for ours, native in targets.items()},
        to_native=lambda config: {name: getattr(config, ours) for ours, native in targets.items() for name in native},
    )


def same(*names: str) -> Field:
    """Fields of the same name and value."""
    return renamed(**{name: name for name in names})


def constant(**values: Any) -> Field:
    """Our fields that have one value in every model of the architecture."""
    return Field(to_ours=lambda config: values)


def mapped(name: str, to_ours: Callable[[Any], Any], to_native: Callable[[Any], Any], native: str = "") -> Field:
    """A field whose values determine each other, with the same name unless the `native` one is given."""
    return Field(
        to_ours=lambda config: {name: to_ours(getattr(config, native or name))},
        to_native=lambda config: {native or name: to_native(getattr(config, name))},
    )


def switch(native: str, ours: str, on: Any, off: Any) -> Field:
    """Our field with one of two values, by a native field that is true or false."""
    return mapped(ours, lambda is_on: on if is_on else off, lambda value: value == on, native)


def filled(ours: str, to_native: Callable[[Any], Any], native: str = "") -> Field:
    """A field of the same value that may be unset in ours: the native value is computed from our whole config."""
    native = native or ours
    return Field(lambda config: {ours: getattr(config, native)}, lambda config: {native: to_native(config)})


def at_least_one(name: str) -> Field:
    """A number of the same name and value that is at least 1 in the native model."""
    return mapped(name, lambda number: number, lambda number: max(1, number))


def optional(*names: str) -> Field:
    """Attributes that either config may lack, such as the ids of special tokens."""

    def read(config: PreTrainedConfig) -> Values:
        return {name: getattr(config, name, None) for name in names}

    return Field(to_ours=read, to_native=read)


# Every architecture has these; the labels only matter to classifiers
TEXT = optional("pad_token_id", "bos_token_id", "eos_token_id")
LABELS = optional("id2label", "label2id", "problem_type")


# The native code reads an attribute `head_dim` that its config does not declare
HEAD_DIM = Field(
    to_ours=lambda config: {
        "head_dim": getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    },
    to_native=lambda config: (
        {} if config.head_dim * config.num_attention_heads == config.hidden_size else {"head_dim": config.head_dim}
    ),
)
# The width of a head follows from other fields: ours must equal it
DERIVED_HEAD_DIM = Field(lambda config: {"head_dim": config.hidden_size // config.num_attention_heads})
# As many key and value heads as query heads
ALL_KEY_VALUE_HEADS = Field(lambda config: {"num_key_value_heads": config.num_attention_heads})
PLAIN_HEADS: tuple[Field, ...] = (ALL_KEY_VALUE_HEADS, DERIVED_HEAD_DIM)


def rotary(partial: bool = False) -> Field:
    """Rotary positions whose parameters all layers share; `partial` if native code reads `partial_rotary_factor`."""

    def to_ours(config: PreTrainedConfig) -> Values:
        parameters = dict(config.rope_parameters)
        if not partial:
            parameters.pop("partial_rotary_factor", None)
        return {"position_embedding_type": "rotary", "rope_parameters": parameters}

    def to_native(config: BlockConfig) -> Values:
        parameters = dict(first_rope(config) or {})
        factor = parameters.pop("partial_rotary_factor", 1.0)
        return {"rope_parameters": parameters | ({"partial_rotary_factor": factor} if partial else {})}

    return Field(to_ours, to_native)


def first_rope(config: BlockConfig) -> Values | None:
    """Return the rotary parameters of the first layer that has any, or None if positions are not rotary."""
    if config.position_embedding_type != "rotary":
        return None
    return next(filter(None, map(config.rope_of, layer_types(config))), None)


# A sliding window in every layer, or in none
WINDOW_OF_ALL_LAYERS = filled(
    "sliding_window", lambda config: config.sliding_window if "sliding_attention" in layer_types(config) else None
)
# A sliding window in the layers that `layer_types` names
WINDOW_BY_LAYER = Field(
    to_ours=lambda config: (
        {}
        if config.sliding_window is None
        else {"sliding_window": config.sliding_window, "layer_types": config.layer_types}
    ),
    to_native=lambda config: {"sliding_window": config.sliding_window, "layer_types": layer_types(config)},
)


def attention_biases(native: str, *projections: str) -> Field:
    """Biases in the `projections` of attention, or in none, by a native switch."""
    return Field(
        to_ours=lambda config: {"attention_bias": list(projections) if getattr(config, native) else False},
        to_native=lambda config: {native: any(config.has_attention_bias(name) for name in projections)},
    )


def all_biases(native: str) -> Field:
    """Biases in all linear layers of the blocks, or in none, by a native switch."""
    return Field(
        to_ours=lambda config: dict.fromkeys(("attention_bias", "mlp_bias"), getattr(config, native)),
        to_native=lambda config: {native: config.mlp_bias or bool(config.attention_bias)},
    )
