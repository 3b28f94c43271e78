"""Recorded toys: sharp models in float64, as those that `tests/modeling` compares."""

from typing import Any

from modeling.toys import inputs_of, toy

from vanillaformer.exploration.examples import Example
from vanillaformer.exploration.recording import Recording, record, stacks

KINDS = ("encoder_decoder", "decoder", "encoder", "image_encoder")


def doubled(inputs: dict[str, Any]) -> dict[str, Any]:
    return {name: value.double() if value.is_floating_point() else value for name, value in inputs.items()}


def recorded(kind: str, batch: int = 1, **fields: Any) -> Recording:
    inputs = {name: value for name, value in inputs_of(kind, batch).items() if name != "attention_mask"}
    return record(toy(kind, **fields).double(), doubled(inputs))


def example_of(recording: Recording, targets: Any = None) -> Example:
    """An example whose tokens are named by their numbers."""
    lengths = {name: recording.hidden_states[name][0].shape[1] for name in stacks(recording.model)}
    tokens = {name: [*map(str, range(length))] for name, length in lengths.items()}
    return Example(recording, tokens, "a text", "an output", targets)
