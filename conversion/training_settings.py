"""Settings of training that a conversion does not carry over: rates of dropout and of dropped layers.

They do not change what a model computes, but fine-tuning depends on them.
"""

import dataclasses
from typing import Any

from transformers import PreTrainedConfig

from vanillaformer.configuration import BlockConfig

from .mapping.architecture import Architecture
from .mapping.canonical import NATIVE_NEUTRAL_FIELDS, equal

OURS = ("dropout", "attention_dropout", "activation_dropout", "layer_drop", "drop_path_rate")
OF_CLASSIFIERS = ("classifier_dropout",)


def lost_to_native(architecture: Architecture, ours: BlockConfig, native: PreTrainedConfig, head: str) -> list[str]:
    """Return the rates of our config that are lost in the native one, each with its new value."""
    back = architecture.to_our_config(native, head)
    return changed(ours, back, OURS + (OF_CLASSIFIERS if head in ("sequence", "token") else ()))


def lost_from_native(architecture: Architecture, native: PreTrainedConfig, ours: BlockConfig, head: str) -> list[str]:
    """Return the rates of a native config that are lost in ours, each with its new value."""
    names = sorted(field.name for field in dataclasses.fields(native) if field.name in NATIVE_NEUTRAL_FIELDS)
    names = [name for name in names if "drop" in name and "summary" not in name]
    return changed(native, architecture.to_native_config(ours, head), names)


def changed(before: Any, after: Any, names: Any) -> list[str]:
    pairs = {name: (getattr(before, name, None) or 0.0, getattr(after, name, None) or 0.0) for name in names}
    return [f"{name}={one} (now {other})" for name, (one, other) in pairs.items() if not equal(one, other)]
