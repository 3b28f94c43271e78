"""How large a model is, and the width of the feed-forward layers that makes it as large as another one."""

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from vanillaformer.data.tasks import TASKS, TaskName
from vanillaformer.modeling.counts import build_on_meta, inputs_on_meta

MULTIPLE = 8
"""Widths of feed-forward layers are multiples of it."""


def flops_of_row(config: Any, task: TaskName, source: float, target: float) -> int:
    """Return the floating-point operations of a forward pass over a row of mean length, of the model for a task."""
    model = build_on_meta(config, TASKS[task].auto_class.from_config)
    lengths = (target, source) if config.is_encoder_decoder else (source, source)
    inputs = inputs_on_meta(config, 1, *(max(1, round(length)) for length in lengths))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(**inputs)
    return counter.get_total_flops()


def row_lengths(stats: dict[str, Any], config: Any) -> tuple[float, float]:
    """Return the mean tokens of a training row's source and target; of images the patches, and none."""
    if "source mean length" in stats:
        return stats["source mean length"], stats["target mean length"]
    return stats.get("mean length") or math.prod(config.grid), 0.0


def matched_size(config: Any, measure: Callable[[Any], float], target: float) -> int:
    """Return the `intermediate_size` with which a measure, which grows linearly with it, comes nearest to a target."""
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
