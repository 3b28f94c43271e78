"""What a model of ours may become without computing anything else, so that a native architecture can hold it.

Biases that it has not are zeros, norm weights ones, the first position's row of a learned table may be another, since
those before it nothing reads, and the model's dimensions may stand in another order (`dimensions.py`).
"""

import copy
from typing import Any

import torch
from transformers import PreTrainedModel

from vanillaformer.configuration import BlockConfig
from vanillaformer.configuration.fields import PROJECTIONS

from .dimensions import COLUMNS, reordered
from .tensors import tensors_of, write

SWITCHES = ("mlp_bias", "norm_bias", "norm_weight", "lm_head_bias", "head_bias")
# From what changes a model least to what changes it most
KINDS_OF_STEPS = ((*SWITCHES, "attention_bias"), ("position_offset",), ("sinusoidal_layout",))
FITTED = tuple(name for names in KINDS_OF_STEPS for name in names)

Differences = dict[str, tuple[Any, Any]]


def steps_towards(config: BlockConfig, differences: Differences, head: str) -> dict[str, Any]:
    """Return the fields of ours that can become more like the native ones, given how they differ, with new values.

    The order of the dimensions can be another only below a head, which does not give it out.
    """
    steps = {name: True for name in SWITCHES if differences.get(name) == (False, True)}
    if "attention_bias" in differences:
        ours, theirs = differences["attention_bias"]
        both = [name for name in PROJECTIONS if name in ours or name in theirs]
        if both != ours:
            steps["attention_bias"] = both
    if "position_offset" in differences and config.position_embedding_type == "learned":
        steps["position_offset"] = differences["position_offset"][1]
    if "sinusoidal_layout" in differences and head != "base":
        layouts = differences["sinusoidal_layout"]
        if all(layout in COLUMNS for layout in layouts):
            steps["sinusoidal_layout"] = layouts[1]
    return steps


def with_fields(config: BlockConfig, **fields: Any) -> BlockConfig:
    """Return a copy of a config with other values."""
    changed = copy.deepcopy(config)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def what_fits(config: BlockConfig, fitted: BlockConfig) -> list[str]:
    """Return the fields in which a config was changed to fit."""
    return [name for name in FITTED if getattr(config, name, None) != getattr(fitted, name, None)]


def effort(config: BlockConfig, fitted: BlockConfig) -> int:
    """Return how much was changed: 0 nothing, 1 zeros and ones were added, 2 rows shifted, 3 dimensions reordered."""
    changed = what_fits(config, fitted)
    return max((kind for kind, names in enumerate(KINDS_OF_STEPS, 1) if {*names} & {*changed}), default=0)


def refilled(model: PreTrainedModel, config: BlockConfig) -> PreTrainedModel:
    """Return our model with a config that was fitted: the same function, more tensors or reordered ones."""
    values = tensors_of(model)
    layouts = model.config.sinusoidal_layout, config.sinusoidal_layout
    if layouts[0] != layouts[1]:
        values = {name: reordered(name, tensor, *layouts) for name, tensor in values.items()}
    fitted = type(model)._from_config(config, dtype=model.dtype)
    filled = {}
    for name, tensor in tensors_of(fitted).items():
        if name.endswith("embed_positions.weight"):
            filled[name] = shifted(values[name], model.config.position_offset, config.position_offset)
        else:
            neutral = torch.ones_like if name.endswith("weight") else torch.zeros_like
            filled[name] = values[name] if name in values else neutral(tensor, device=model.device)
    write(fitted, filled)
    return fitted


def shifted(table: torch.Tensor, offset: int, new_offset: int) -> torch.Tensor:
    """Return a table of positions (offset + N, D) with as many unused rows of zeros in front as asked for."""
    return torch.cat((table.new_zeros(new_offset, table.shape[1]), table[offset:]))
