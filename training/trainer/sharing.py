"""Weights that the first process reads and sends to the others, which need no memory for all of them."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from torch import nn


def by_first(action: Callable[[], Any]) -> Any:
    """Return the result of an action on the first process; if it fails there, raise an error on all."""
    outcome: list[Any] = [None, None]
    error = None
    if PartialState().is_main_process:
        try:
            outcome[0] = action()
        except Exception as caught:
            error, outcome[1] = caught, str(caught)
    broadcast_object_list(outcome)
    if error is not None:
        raise error
    if outcome[1] is not None:
        raise ValueError(outcome[1])
    return outcome[0]


def with_empty_weights(model: nn.Module, device: str | torch.device) -> Any:
    """Return a copy of a model, with its ties and buffers, whose parameters are uninitialized."""
    empty = {
        id(weight): nn.Parameter(torch.empty_like(weight, device=device), weight.requires_grad)
        for weight in model.parameters()
    }
    return copy.deepcopy(model, empty)  # type: ignore[arg-type]


def built_by_first(build: Callable[[], Any]) -> Any:
    """Return the result of `build`; on processes other than the first, its parameters are on the meta device."""
    if PartialState().num_processes == 1:
        return build()
    built = []

    def build_and_describe() -> Any:
        built.append(build())
        return with_empty_weights(built[0], "meta")

    others = by_first(build_and_describe)
    return built[0] if built else others
