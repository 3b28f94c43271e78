"""Hooks through which a faster but equal computation may replace the plain one."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class Acceleration:
    """Hooks that change nothing; the package replaces them with those of its folder `acceleration/`."""

    def prepare(self, model: nn.Module) -> None:
        """Called when a model is made."""

    def packed_masks(self, stack: Any, position_ids: Any, attention_mask: Any, rows: int) -> dict[str, Any] | None:
        """Return a replacement for the masks of packed texts (rows, T) in `attend`, `None` for ordinary masks."""
        return None

    def attend(self, function: Callable[..., Any], *inputs: Any) -> Any:
        """Return the output of an attention function for query, key, value and mask."""
        return function(*inputs)

    def cross_attend(self, attention: nn.Module, hidden_states: torch.Tensor, **inputs: Any) -> Any:
        """Return the output of a cross-attention layer for states (B, T, D)."""
        return attention(hidden_states, **inputs)

    def loss(self, model: Any, states: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor | None:
        """Return a language model's loss for states (..., D) and targets (...), `None` to use the logits."""
        return None


acceleration = Acceleration()
