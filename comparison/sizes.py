"""How much a run computes: tokens and floating-point operations of a step, and the steps that a budget pays for."""

import copy
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from vanillaformer.modeling.counts import count_flops, count_parameters

from .plan import Plan

TRAINING_PASSES = 3
"""A step computes as much as three forward passes: the backward pass twice as much as the forward pass."""
MULTIPLE = 8
"""Widths of feed-forward layers are multiples of it."""


@dataclass(frozen=True)
class Size:
    """What a variant's step reads and computes, and what its model has.

    Attributes:
        parameters: Parameters of the model.
        tokens: Tokens of a step, padding not counted: of source and target, or patches of images.
        flops: Floating-point operations of a step, matrix products alone.
        config: The model's config as a dictionary.
    """

    parameters: int
    tokens: float
    flops: float
    config: dict[str, Any]


def size_of(folder: Path, **fields: Any) -> Size:
    """Return the size of a run from its folder, or that of the same run with other fields of its config."""
    record = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    details = record["details"]
    config: Any = AutoConfig.from_pretrained(folder)
    config.update(fields)
    source, target = row_lengths(details["data"]["train"], config)
    rows = details["rows"]["train"] * details["training"]["epochs"] / details["steps"]
    flops = flops_of_row(config, source, target, head="classif" not in details["training"]["model_class"].lower())
    return Size(
        parameters=sum(count_parameters(config).values()) if fields else details["training"]["parameters"],
        tokens=rows * (source + target),
        flops=rows * flops * TRAINING_PASSES,
        config=config.to_diff_dict(),
    )


def row_lengths(stats: dict[str, Any], config: Any) -> tuple[float, float]:
    """Return the mean tokens of a training row's source and target; of images the patches, and none."""
    if "source mean length" in stats:
        return stats["source mean length"], stats["target mean length"]
    return stats.get("mean length") or math.prod(config.grid), 0.0


def flops_of_row(config: Any, source: float, target: float, *, head: bool = True) -> float:
    """Return the floating-point operations of a forward pass over a row of mean length."""
    lengths = (target, source) if config.is_encoder_decoder else (source, source)
    rounded = [max(1, round(length)) for length in lengths]
    parts = count_flops(config, 1, *rounded)
    return sum(parts.values()) - (0 if head else parts.get("head", 0))


def matched_size(config: Any, measure: Callable[[Any], float], target: float) -> int:
    """Return the `intermediate_size` with which a measure, which grows linearly with it, comes nearest to a target.

    Raises:
        ValueError: Without a feed-forward layer it would have more already.
    """
    size = config.intermediate_size

    def at(width: int) -> float:
        changed = copy.deepcopy(config)
        changed.intermediate_size = width
        return measure(changed)

    slope = (at(size + MULTIPLE) - at(size)) / MULTIPLE
    found = size + (target - at(size)) / slope
    if found < MULTIPLE:
        raise ValueError(f"no intermediate_size of at least {MULTIPLE} makes it as small as the baseline")
    return MULTIPLE * round(found / MULTIPLE)


def equal_measure(plan: Plan, folder: Path) -> Callable[[Any], float]:
    """Return what has to be equal in all variants, as a function of a config."""
    if plan.equal == "parameters":
        return lambda config: sum(count_parameters(config).values())
    stats = json.loads((folder / "run.json").read_text(encoding="utf-8"))["details"]["data"]["train"]
    return lambda config: flops_of_row(config, *row_lengths(stats, config))
