"""Whether layers and models are as they were made, so that a faster computation may stand in for theirs."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn.modules.module import _has_any_global_hook
from transformers.utils import output_capturing

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
HARMLESS = (output_capturing.__name__, "accelerate.utils.operations")
"""Modules whose hooks and forwards do nothing but record what the caller asks for, and autocast."""
STAND_INS: set[Callable[..., Any]] = set()
"""Functions that compute what a layer computes."""


def is_computed_now() -> bool:
    """Tell whether numbers are computed, and derived backward at most: not recorded by a compiler or `torch.func`."""
    recorded = torch.compiler.is_compiling() or torch.jit.is_tracing()
    return not (recorded or torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0)


def is_plain(layer: nn.Module, x: Any) -> bool:
    """Tell whether a layer multiplies `x` by torch's own code, now, with weights that are here.

    Adapters, quantized, sharded and offloaded weights, and programs that replace torch's functions, need the layer.
    """
    return (
        is_computed_now()
        and type(layer) is nn.Linear
        and type(x) is torch.Tensor
        and type(weight := layer.weight) in (nn.Parameter, torch.Tensor)
        and weight.device == x.device
        and getattr(nn.Linear.forward, "__globals__", None) is vars(nn.modules.linear)
        and nn.functional.linear is torch._C._nn.linear
    )


def is_unchanged(model: nn.Module) -> bool:
    """Tell whether no module of a model has hooks or a `forward` of its own, which may count on rows and calls."""
    functions = [
        function
        for module in model.modules()
        for function in (*(hook for name in HOOKS for hook in getattr(module, name).values()), own_forward(module))
    ]
    harmless = (function is None or getattr(function, "__module__", None) in HARMLESS for function in functions)
    return not _has_any_global_hook() and all(harmless)


def own_forward(module: nn.Module) -> Any:
    """Return the `forward` that a module has in place of its class's, `None` for one that computes the same."""
    forward = vars(module).get("forward")
    return None if getattr(forward, "func", None) in STAND_INS else forward


def stand_in(layer: nn.Linear, function: Callable[..., torch.Tensor]) -> None:
    """Let `function(layer, *inputs)` compute a layer that stays an `nn.Linear`, the class that tools look for.

    Attributes of an instance are copied with it, and would compute with the weights of the first one: copies, among
    them the replicas of `nn.DataParallel`, have the `forward` of their class.
    """
    STAND_INS.add(function)
    own: dict[str, Callable[..., Any]] = {
        "forward": function,
        "__getstate__": state_of_copy,
        "_replicate_for_data_parallel": replica,
    }
    vars(layer).update({name: partial(method, layer) for name, method in own.items()})


def state_of_copy(layer: nn.Linear) -> dict[str, Any]:
    dropped = {"__getstate__", "_replicate_for_data_parallel"} | ({"forward"} if own_forward(layer) is None else set())
    return {name: value for name, value in vars(layer).items() if name not in dropped}


def replica(layer: nn.Linear) -> nn.Module:
    made = nn.Module._replicate_for_data_parallel(layer)
    made.__dict__ = state_of_copy(made)  # type: ignore[arg-type]  # of the same class
    return made
