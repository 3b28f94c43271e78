"""Fields derived from others: their defaults, and their values after an override."""

from collections.abc import Callable
from typing import Any

from .block import BlockFields
from .names import LAYER_TYPES, ROPE_NAMES, ROPE_PARTS
from .options import NORM_CHOICES, PLACEMENT_CHOICES

Fields = dict[str, Any]


# Values of the fields that are left at `None`
DERIVED: dict[str, Callable[[Any], Any]] = {
    "num_key_value_heads": lambda config: config.num_attention_heads,
    # left at `None` if the heads do not divide the model's width
    "head_dim": lambda config: (
        None if config.hidden_size % config.num_attention_heads else config.hidden_size // config.num_attention_heads
    ),
    "intermediate_size": lambda config: 4 * config.hidden_size,
    "norm_bias": lambda config: NORM_CHOICES[config.norm].has_bias,
    # the parametrization's, the one that the placement was published with, or the model type's
    "initialization": lambda config: (
        "mup"
        if config.parametrization == "mup"
        else PLACEMENT_CHOICES[config.norm_placement].initialization or config.default_initialization
    ),
    "attention_scale": lambda config: (
        8 / config.head_dim if config.parametrization == "mup" and config.head_dim else None
    ),
    "logit_scale": lambda config: config.base_width / config.hidden_size if config.parametrization == "mup" else None,
}


def without_stale_parts(saved: BlockFields, fields: Fields, overrides: Fields) -> tuple[Fields, Fields]:
    """Return the saved fields that still hold, and the overrides.

    Rotary parameters and layer types are dropped together with the position scheme and the window that they belong to.
    """
    stale = set()
    patterns = {name: shortest_pattern(getattr(saved, name)) for name in LAYER_TYPES if hasattr(saved, name)}
    values = fields | patterns
    if overrides.get("sliding_window", saved.sliding_window) is None:
        stale |= {*LAYER_TYPES}
    if "layer_types" in overrides and patterns.get("layer_types") == patterns.get("encoder_layer_types"):
        stale.add("encoder_layer_types")
    parts = {name: overrides[name] for name in ROPE_PARTS if name in overrides}
    if overrides.get("position_embedding_type", saved.position_embedding_type) != "rotary":
        stale |= {*ROPE_NAMES}
    elif parts and (rotary := getattr(saved, "rope_parameters", None)):
        if any(isinstance(value, dict) for value in rotary.values()):
            raise ValueError(f"{parts} cannot override rope_parameters={rotary}: each layer type has its own")
        stale |= {"rope_scaling", *ROPE_PARTS}
        values["rope_parameters"] = {name: value for name, value in rotary.items() if name not in parts}
    return {name: value for name, value in values.items() if name not in stale}, overrides


def shortest_pattern(layers: list[str]) -> list[str]:
    """Return the shortest list whose repetition, maybe cut off, is a list of layers.

    >>> shortest_pattern(["full", "sliding", "full"])
    ['full', 'sliding']
    """
    lengths = range(1, len(layers) + 1)
    return layers[: next((size for size in lengths if layers[size:] == layers[:-size]), 0)]
