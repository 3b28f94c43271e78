"""What the loss of a batch is the mean over."""

from collections.abc import Mapping
from typing import Any

import torch

from vanillaformer.modeling.heads import IGNORE_INDEX

TARGETS = ("labels", "bool_masked_pos")
"""What the loss needs: tokens (B, T), the class of each row (B), or the hidden patches of each image (B, N)."""


def targets_name(inputs: Mapping[str, Any]) -> str | None:
    """Return which entry of a batch has the targets, `None` if there is none."""
    return next((name for name in TARGETS if name in inputs), None)


def count_targets(model: Any, labels: torch.Tensor) -> torch.Tensor:
    """Return the number of targets that a model's loss is the mean over: hidden patches, rows or tokens."""
    if labels.dtype == torch.bool:
        return labels.sum()
    return ((model.targets(labels) if labels.ndim > 1 else labels) != IGNORE_INDEX).sum()
