"""Settings of training that a conversion does not carry over: rates of dropout and of dropped layers.

They do not change what a model computes, but fine-tuning depends on them.
"""

import dataclasses
from typing import Any

from transformers import PreTrainedModel

from .convert import architecture_of
from .mapping.canonical import NATIVE_NEUTRAL_FIELDS, equal

OURS = ("dropout", "attention_dropout", "activation_dropout", "layer_drop", "drop_path_rate")
OF_CLASSIFIERS = ("classifier_dropout",)


def lost_settings(ours: Any, native: PreTrainedModel, back: bool = False) -> list[str]:
    """Return the rates that a conversion to native, or `back`, has lost, each with its new value."""
    architecture = architecture_of(native.config)
    head = architecture.head_of(type(native).__name__)
    if back:
        fields = {field.name for field in dataclasses.fields(native.config)}
        before, after = native.config, architecture.to_native_config(ours.config, head)
        names = sorted(name for name in fields & NATIVE_NEUTRAL_FIELDS if "drop" in name and "summary" not in name)
    else:
        before, after = ours.config, architecture.to_our_config(native.config, head)
        names = [*OURS, *(OF_CLASSIFIERS if head in ("sequence", "token") else ())]
    pairs = {name: (getattr(before, name, None) or 0.0, getattr(after, name, None) or 0.0) for name in names}
    return [f"{name}={one} (now {other})" for name, (one, other) in pairs.items() if not equal(one, other)]
