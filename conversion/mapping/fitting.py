"""The nearest config that a native architecture can hold, and the remaining differences, in both directions.

Some changes of our model do not change its function: missing biases are zeros, missing norm weights and layer scales
ones, the first position may have another row of a learned table, since nothing reads the rows before it, and the
model's dimensions may be in another order (`dimensions.py`). `weights.convert_weights` makes such changes in a model.
"""

import copy
import dataclasses
from typing import Any, NamedTuple

from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedConfig

from vanillaformer.configuration import BlockConfig
from vanillaformer.configuration.fields import PROJECTIONS
from vanillaformer.console.reporting import one_line

from .architecture import Architecture
from .canonical import NATIVE_NEUTRAL_FIELDS, canonical_form, canonical_native_value, differences, equal
from .dimensions import COLUMNS
from .fields import Values

SWITCHES = ("mlp_bias", "norm_bias", "norm_weight", "lm_head_bias", "head_bias")
# From what changes a model least to what changes it most
ADJUSTABLE = ((*SWITCHES, "attention_bias", "layer_scale_init_value"), ("position_offset",), ("sinusoidal_layout",))
ADJUSTABLE_FIELDS = tuple(name for names in ADJUSTABLE for name in names)
# Ties of embedding tables are read from the weights
TIES = ("tie_word_embeddings", "share_encoder_decoder_embeddings")

Differences = dict[str, tuple[Any, Any]]


class Fit(NamedTuple):
    """How a native architecture can hold one of our models."""

    config: BlockConfig  # the nearest config to the architecture that computes the same
    # The fields that the architecture cannot express even so, each with both values, or other reasons
    mismatches: list[str]
    cost: int = 0  # of the changes: 0 nothing, 1 zeros and ones were added, 2 rows shifted, 3 dimensions reordered


def fit(architecture: Architecture, config: BlockConfig, head: str) -> Fit:
    """Return how an architecture can hold a model with this config and head."""
    if not isinstance(config, architecture.config_class):
        return Fit(
            config, [f"{architecture.name} is a {architecture.config_class.model_type}, not a {config.model_type}"]
        )
    if head not in architecture.heads:
        return Fit(config, [f"{architecture.name} has no head {head!r}"])
    fitted = config
    try:
        found = mismatches(architecture, fitted, head)
        for _ in ADJUSTABLE_FIELDS:  # one adjustment may make another possible
            if not (adjustments := adjustments_towards(fitted, found, head)):
                break
            fitted = with_fields(fitted, **adjustments)
            found = mismatches(architecture, fitted, head)
    except Exception as error:  # checks of native configs raise any error
        return Fit(config, [f"{architecture.name}: {one_line(error)}"])
    reasons = [f"{name}={ours!r}, where {architecture.name} has {native!r}" for name, (ours, native) in found.items()]
    changed = {*changed_fields(config, fitted)}
    cost = max((cost for cost, names in enumerate(ADJUSTABLE, 1) if changed & {*names}), default=0)
    return Fit(fitted, reasons + equal_tokens(architecture, config), cost)


def mismatches(architecture: Architecture, config: BlockConfig, head: str) -> Differences:
    """Return the fields of our config that a round trip by the native one changes, with both values."""
    back = architecture.to_our_config(architecture.to_native_config(config, head), head)
    found = differences(canonical_form(config, head), canonical_form(back, head))
    unconstrained = {*architecture.unconstrained, *architecture.heads[head].unconstrained}
    return {name: values for name, values in found.items() if name not in unconstrained}


def equal_tokens(architecture: Architecture, config: BlockConfig) -> list[str]:
    """Return the special tokens that are the same token, but must differ in the native architecture."""
    return [
        f"{one}={getattr(config, one)!r} is {other}, which {architecture.name} treats differently from other tokens"
        for one, other in architecture.distinct_tokens
        if getattr(config, one) is not None and getattr(config, one) == getattr(config, other)
    ]


def adjustments_towards(config: BlockConfig, differences: Differences, head: str) -> dict[str, Any]:
    """Return new values of our fields that bring a config nearer to a native one without changing the function.

    The order of the dimensions can change only if there is a head: a bare stack returns its states.
    """
    adjustments: dict[str, Any] = {name: True for name in SWITCHES if differences.get(name) == (False, True)}
    if "attention_bias" in differences:
        ours, native = differences["attention_bias"]
        both = [name for name in PROJECTIONS if name in ours or name in native]
        if both != ours:
            adjustments["attention_bias"] = both
    if config.layer_scale_init_value is None and "layer_scale_init_value" in differences:
        adjustments["layer_scale_init_value"] = differences["layer_scale_init_value"][1]
    if "position_offset" in differences and config.position_embedding_type == "learned":
        adjustments["position_offset"] = differences["position_offset"][1]
    if "sinusoidal_layout" in differences and head != "base":
        layouts = differences["sinusoidal_layout"]
        if all(layout in COLUMNS for layout in layouts):
            adjustments["sinusoidal_layout"] = layouts[1]
    return adjustments


def with_fields(config: BlockConfig, **fields: Any) -> BlockConfig:
    changed = copy.deepcopy(config)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def changed_fields(config: BlockConfig, fitted: BlockConfig) -> list[str]:
    """Return the fields in which a config was changed to fit."""
    return [name for name in ADJUSTABLE_FIELDS if getattr(config, name, None) != getattr(fitted, name, None)]


def our_config(architecture: Architecture, config: PreTrainedConfig, head: str, known: Values) -> BlockConfig:
    """Return our config for a native one, with the fields that are `known` from the weights."""
    try:
        ours = architecture.to_our_config(config, head, known)
        reasons = [*native_mismatches(architecture, config, ours, head), *equal_tokens(architecture, ours)]
    except StrictDataclassError as error:
        reasons = [one_line(error)]
    if reasons:
        raise ValueError(f"this {architecture.name} model has no counterpart here: {'; '.join(reasons)}")
    return ours


def native_mismatches(architecture: Architecture, config: PreTrainedConfig, ours: BlockConfig, head: str) -> list[str]:
    """Return the fields of a native config that a round trip by ours changes, with both values."""
    back = architecture.to_native_config(ours, head)
    ignored = {entry.name for entry in dataclasses.fields(PreTrainedConfig)} | NATIVE_NEUTRAL_FIELDS
    ignored |= {*architecture.heads[head].ignored, *TIES}
    names = [entry.name for entry in dataclasses.fields(config) if entry.name not in ignored]
    pairs = {name: (canonical_native_value(config, name), canonical_native_value(back, name)) for name in names}
    return [
        f"{name}={native!r}, which here can only be {again!r}"
        for name, (native, again) in pairs.items()
        if not equal(native, again)
    ]
