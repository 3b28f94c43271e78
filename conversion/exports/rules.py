"""The models that an export refuses: rules on single fields of a config."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import vanillaformer.modeling as modeling
from vanillaformer.configuration import layer_types

GENERATORS: tuple[type, ...] = (
    modeling.VanillaEncoderDecoderForConditionalGeneration,
    modeling.VanillaDecoderForCausalLM,
)
CLASSIFIERS: tuple[type, ...] = (
    modeling.VanillaDecoderForSequenceClassification,
    modeling.VanillaEncoderForMaskedLM,
    modeling.VanillaEncoderForPreTraining,
    modeling.VanillaEncoderForSequenceClassification,
    modeling.VanillaEncoderForTokenClassification,
)
IMAGE_CLASSIFIERS: tuple[type, ...] = (modeling.VanillaImageEncoderForImageClassification,)


class Rule(NamedTuple):
    """A field with values that an engine or format cannot express."""

    field: str  # the field of our config
    forbids: Callable[[Any], bool]  # whether a config has such a value
    instead: str  # what the engine has instead, as the end of a sentence


def only(field: str, values: tuple[str, ...], subject: str) -> Rule:
    """Return the rule that a field has one of some values; `subject` is such as "the engine has"."""
    return Rule(
        field, lambda config: getattr(config, field) not in values, f"{subject} {', '.join(map(repr, values))}"
    )


WRITES_STEP_BY_STEP = Rule(
    "decoding", lambda config: config.decoding != "autoregressive", "engines write one token after the other"
)


def violations(rules: Iterable[Rule], config: Any) -> list[str]:
    """Return the fields that rules forbid, each with its value and what there is instead."""
    return [
        f"{rule.field}={getattr(config, rule.field)!r}, but {rule.instead}" for rule in rules if rule.forbids(config)
    ]


# Of the exports that translate
SOFTMAX_ONLY = Rule(
    "output_distribution",
    lambda config: getattr(config, "output_distribution", "softmax") != "softmax",
    "the decoder of an export does not read the source's tokens",
)


def rope_entries(config: Any) -> list[dict[str, Any]]:
    """Return the rotary parameters of each type of layer that has any."""
    types = {*layer_types(config), *layer_types(getattr(config, "encoder_side", config))}
    return [entry for layer_type in types if (entry := config.rope_of(layer_type))]


def scales_by_length(config: Any) -> bool:
    """Return whether the angles of rotary positions depend on the length of the input."""
    return any(entry.get("rope_type") in ("dynamic", "longrope") for entry in rope_entries(config))
