"""Checks that every faster computation makes first: are layers and models unmodified, and is execution eager?"""

from typing import Any

import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn.modules.module import _has_any_global_hook
from transformers.pytorch_utils import Conv1D
from transformers.utils import output_capturing

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
HARMLESS = (output_capturing.__name__, "accelerate.utils.operations")
"""Modules whose hooks and forwards only record what the caller asks for, or convert what autocast returned."""
MARK = "_vanillaformer_faster"
"""Attribute that `speed_up` sets on every module of a model; copies have it, too."""
FORWARDS = (nn.Linear.__module__, f"{__package__}.linear")
"""Where the `forward` of `nn.Linear` may be defined: by torch or by this folder."""


def is_marked(module: nn.Module) -> bool:
    """Return whether `speed_up` was applied to a module, or to the one that it was copied from."""
    return MARK in vars(module)


FOUND_TORCHS = getattr(nn.Linear.forward, "__globals__", {}).get("__name__") in FORWARDS
"""True if the `forward` that `linear.py` found on import, and calls, is torch's and not another program's."""


def is_computed_now() -> bool:
    """Return whether execution is eager, at most with gradients: not compiled, traced or under `torch.func`."""
    recorded = torch.compiler.is_compiling() or torch.jit.is_tracing()
    return not (recorded or torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0)


def is_plain(layer: nn.Module, x: Any) -> bool:
    """Return whether a layer is an unmodified linear layer, run eagerly by torch's own code, on the device of `x`.

    Adapters, quantized, sharded and offloaded weights, and programs that replace torch's functions, need `forward`.
    """
    return (
        is_computed_now()
        and type(layer) in (nn.Linear, Conv1D)
        and type(x) is torch.Tensor
        and type(weight := layer.weight) in (nn.Parameter, torch.Tensor)
        and weight.device == x.device
        and FOUND_TORCHS
        and getattr(nn.Linear.forward, "__globals__", {}).get("__name__") in FORWARDS
        and nn.functional.linear is torch._C._nn.linear
    )


def is_unchanged(model: nn.Module) -> bool:
    """Return whether no module has hooks or a `forward` of its instance, which may count on all rows and calls."""
    if _has_any_global_hook():
        return False
    for module in model.modules():
        hooks = [hook for name in HOOKS for hook in getattr(module, name).values()]
        for function in (*hooks, vars(module).get("forward")):
            if function is not None and getattr(function, "__module__", None) not in HARMLESS:
                return False
    return True
