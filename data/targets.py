"""The targets of a batch, over which its loss is averaged."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from vanillaformer.modeling.heads import IGNORE_INDEX

PATCHES = "bool_masked_pos"
TARGETS = ("labels", PATCHES)
"""Entries with targets: tokens (B, T), the class of each row (B), or the hidden patches of each image (B, N)."""

PAIRS = "next_sentence_label"
"""The entry with the class of each pair of segments (B), beside the `labels` of tokens."""


def targets_name(inputs: Mapping[str, Any]) -> str | None:
    """Return the name of a batch's entry with the targets, or None."""
    return next((name for name in TARGETS if name in inputs), None)


def predicts_next(model: Any) -> bool:
    """Return whether a model, maybe with adapters, predicts the label of the next position, by its class name."""
    inner: Any = getattr(model, "get_base_model", lambda: model)()
    names = {each.__name__ for each in type(inner).__mro__}  # FSDP2 derives classes
    return not names.isdisjoint(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())


def targets_of(model: PreTrainedModel, labels: torch.Tensor) -> torch.Tensor:
    """Return the target of each position (B, T): its label, or that of the next position, with -100 at the end."""
    if not predicts_next(model):
        return labels
    return nn.functional.pad(labels, (0, 1), value=IGNORE_INDEX)[..., 1:]


def count_targets(model: Any, labels: torch.Tensor) -> torch.Tensor:
    """Return the number of targets over which a model averages its loss: hidden patches, rows or tokens."""
    if labels.dtype == torch.bool:
        return labels.sum()
    return ((targets_of(model, labels) if labels.ndim > 1 else labels) != IGNORE_INDEX).sum()
