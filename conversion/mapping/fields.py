"""Which fields of a native config are which of ours, as tables that are read in both directions."""

import copy
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from transformers import PreTrainedConfig

from vanillaformer.configuration import BlockConfig, layer_types

Values = dict[str, Any]


class Field(NamedTuple):
    """One or more fields: `take` makes ours of a native config, `give` native ones of our config."""

    take: Callable[[PreTrainedConfig], Values]
    give: Callable[[BlockConfig], Values]


def renamed(**names: str | tuple[str, ...]) -> Field:
    """Fields of the same value: our name = the native one, or several, the first of which is read."""
    targets = {ours: (native,) if isinstance(native, str) else native for ours, native in names.items()}
    return Field(
        take=lambda config: {ours: getattr(config, native[0]) for ours, native in targets.items()},
        give=lambda config: {name: getattr(config, ours) for ours, native in targets.items() for name in native},
    )


def same(*names: str) -> Field:
    """Fields of the same name and value."""
    return renamed(**{name: name for name in names})


def constant(**values: Any) -> Field:
    """Fields of ours that have one value in every model of the architecture."""
    return Field(take=lambda config: copy.deepcopy(values), give=lambda config: {})


def native_constant(**values: Any) -> Field:
    """Fields of theirs that have one value in every model that is converted."""
    return Field(take=lambda config: {}, give=lambda config: copy.deepcopy(values))


def optional(*names: str) -> Field:
    """Attributes that either config may have or not, such as the ids of special tokens."""

    def read(config: PreTrainedConfig) -> Values:
        return {name: copy.copy(getattr(config, name, None)) for name in names}

    return Field(take=read, give=read)


def taken(fields: Iterable[Field], config: PreTrainedConfig) -> Values:
    """Return our fields of a native config."""
    return {name: value for field in fields for name, value in field.take(config).items()}


def given(fields: Iterable[Field], config: BlockConfig) -> Values:
    """Return the native fields of our config."""
    return {name: value for field in fields for name, value in field.give(config).items()}


# What every architecture has; a language model's labels are of no interest to it, a classifier's are.
TEXT = optional("pad_token_id", "bos_token_id", "eos_token_id")
LABELS = optional("id2label", "label2id", "problem_type")


def head_width(config: PreTrainedConfig) -> int:
    """Return the width of a head, which some native configs leave at the model's width by the number of heads."""
    width = getattr(config, "head_dim", None)
    return width or config.hidden_size // config.num_attention_heads


def _extra_head_width(config: BlockConfig) -> Values:
    usual = config.head_dim * config.num_attention_heads == config.hidden_size
    return {} if usual else {"head_dim": config.head_dim}


# The native code reads an attribute `head_dim` that its config does not declare
HEAD_DIM = Field(take=lambda config: {"head_dim": head_width(config)}, give=_extra_head_width)
# The width of a head follows from the others: ours must be that one
DERIVED_HEAD_DIM = Field(
    take=lambda config: {"head_dim": config.hidden_size // config.num_attention_heads}, give=lambda config: {}
)
# As many key and value heads as query heads
ALL_KEY_VALUE_HEADS = Field(
    take=lambda config: {"num_key_value_heads": config.num_attention_heads}, give=lambda config: {}
)


def rotary(partial: bool = False) -> Field:
    """Rotary positions whose parameters all layers share.

    Args:
        partial: Whether the native code turns a part of a head where `partial_rotary_factor` says so.
    """

    def take(config: PreTrainedConfig) -> Values:
        parameters = copy.deepcopy(config.rope_parameters)
        if not partial:
            parameters.pop("partial_rotary_factor", None)
        return {"position_embedding_type": "rotary", "rope_parameters": parameters}

    def give(config: BlockConfig) -> Values:
        parameters = copy.deepcopy(first_rope(config)) or {}
        parameters.pop("partial_rotary_factor", None)
        if partial:
            parameters["partial_rotary_factor"] = (first_rope(config) or {}).get("partial_rotary_factor", 1.0)
        return {"rope_parameters": parameters}

    return Field(take, give)


def first_rope(config: BlockConfig) -> Values | None:
    """Return the rotary parameters of the first layer that has any, `None` if positions are not rotary."""
    if config.position_embedding_type != "rotary":
        return None
    return next(filter(None, map(config.rope_of, layer_types(config))), None)


def window_of_all_layers() -> Field:
    """A sliding window in every layer, or in none."""

    def give(config: BlockConfig) -> Values:
        windowed = "sliding_attention" in layer_types(config)
        return {"sliding_window": config.sliding_window if windowed else None}

    return Field(take=lambda config: {"sliding_window": config.sliding_window}, give=give)


def window_by_layer() -> Field:
    """A sliding window in the layers that `layer_types` names."""

    def take(config: PreTrainedConfig) -> Values:
        if config.sliding_window is None:
            return {}
        return {"sliding_window": config.sliding_window, "layer_types": list(config.layer_types)}

    def give(config: BlockConfig) -> Values:
        return {"sliding_window": config.sliding_window, "layer_types": list(layer_types(config))}

    return Field(take, give)


def attention_biases(native: str, *projections: str) -> Field:
    """Biases in the `projections` of attention, or in none, as the native field says."""
    return Field(
        take=lambda config: {"attention_bias": list(projections) if getattr(config, native) else False},
        give=lambda config: {native: any(config.has_attention_bias(name) for name in projections)},
    )
