"""Linear layers in int8 on a CPU: a quarter of the weights' bytes, multiplied by integer instructions.

Weights are rounded once, with a scale for each output, and inputs at each call, with a scale for each row, so that a
text's result does not depend on the rest of its batch: `y_e = s_e r Σ_d q_ed p_d + b_e` with integers q and p of at
most 127 steps to each side, as in LLM.int8() (Dettmers et al. 2022) without its outliers. A product differs by less
than 2 % from that in float32.
Shape letters: D inputs, E outputs, M rows.
"""

from functools import lru_cache
from typing import Any, cast

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from .plain import HOOKS

TINY = 1e-30  # in place of the largest value of a row of zeros
MIN_WEIGHTS = 2**16  # per layer: smaller ones take less time than rounding the input


class NoWeight:
    """Placeholder for the weight of a layer in int8: T5 asks for its type, Mamba and LoHa would compute with it."""

    @classmethod
    def __torch_function__(cls, *_: Any) -> Any:
        raise ValueError("this model reads the weights of linear layers, which layers in int8 do not have")

    def __getattr__(self, name: str) -> Any:
        return self.__torch_function__()

    __getitem__ = __getattr__


class Int8Linear(nn.Module):
    """A linear layer with rounded weights, (..., D) → (..., E), for inference."""

    weight = NoWeight()

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None):
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.bias = bias
        self.steps = input_steps()
        self.scales = weight.abs().amax(dim=1).clamp(min=TINY) / 127
        self.zeros = torch.zeros(self.out_features, dtype=torch.int32)
        rounded = (weight / self.scales[:, None]).round().to(torch.int8).contiguous()
        self.packed = torch.ops.onednn.qlinear_prepack(rounded, None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.requires_grad and torch.is_grad_enabled():  # they would only flow through the scales
            raise ValueError("layers in int8 have no gradients: call the model under torch.no_grad()")
        if not x.is_cpu:
            raise ValueError(f"layers in int8 are for the CPU, but the input is on {x.device.type}")
        rows = x.reshape(-1, self.in_features).float()  # (M, D)
        factors = self.steps / rows.abs().amax(dim=1, keepdim=True).clamp_min_(TINY)
        rounded = (
            (rows * factors).add_(self.steps + 1).round_().to(torch.uint8)
        )  # oneDNN's fast kernels take unsigned inputs
        out = product(rounded, self.steps + 1, self.packed, self.scales, self.zeros).div_(factors)
        out = out if self.bias is None else out.add_(self.bias)
        return out.view(*x.shape[:-1], self.out_features).to(x.dtype)

    def __deepcopy__(self, _: Any = None) -> "Int8Linear":
        return self  # it never changes, and torch cannot copy packed weights

    def _save_to_state_dict(self, *_: Any, **__: Any) -> Any:
        raise ValueError("layers in int8 are for inference and are not saved: save the model before to_int8()")

    __copy__, __reduce_ex__ = __deepcopy__, _save_to_state_dict  # `torch.save` calls the latter


def product(x: torch.Tensor, zero: int, *weights: torch.Tensor) -> torch.Tensor:
    """Return `s_e Σ_d (x_d - zero) q_ed` for rows (M, D) in uint8 and packed weights with their scales and zeros."""
    plain: Any = (None, 1.0, 0, torch.float32, "none", [], "")  # no operation after the product
    return torch.ops.onednn.qlinear_pointwise.default(x, 1.0, zero, *weights, *plain)


@lru_cache
def input_steps() -> int:
    """Return the largest integer for inputs: smaller without VNNI, where two products are added in 16 bits."""
    weight, x = torch.full((64, 64), 127, dtype=torch.int8), torch.full((1, 64), 255, dtype=torch.uint8)
    packed = torch.ops.onednn.qlinear_prepack(weight, None)
    sums = product(x, 0, packed, torch.ones(64), torch.zeros(64, dtype=torch.int32))
    return 127 if bool((sums == 64 * 127 * 255).all()) else 63


def to_int8(model: nn.Module) -> nn.Module:
    """Replace the linear layers of a float32 model on a CPU by layers in int8, for inference, and return the model.

    Embeddings keep their weights, even if tied to an output layer; small layers, layers with hooks, layers of classes
    other than torch's and transformers' own, and adapters are not replaced.
    """
    if not torch.backends.mkldnn.is_available():
        raise ValueError("int8 needs oneDNN, which this build of torch does not have")
    if type(model) in (nn.Linear, Conv1D):
        raise ValueError("to_int8 takes a model, and this is a single linear layer: put it into nn.Sequential")
    kept, made = adapters(model), dict[nn.Module, Int8Linear]()  # a layer may be shared
    for parent in list(model.modules()):
        for name, layer in cast("dict[str, Any]", parent._modules).items():
            is_linear = type(layer) in (nn.Linear, Conv1D) and layer.weight.numel() >= MIN_WEIGHTS
            if is_linear and layer not in kept and not any(getattr(layer, hooks) for hooks in HOOKS):
                made[layer] = made.get(layer) or rounded(layer)
                setattr(parent, name, made[layer])
    return model.eval().requires_grad_(False)


def adapters(model: nn.Module) -> set[nn.Module]:
    """Return the layers whose weights peft reads: those that it has added to the model, and those under DoRA."""
    found = set[nn.Module]()
    for wrapper in (module for module in model.modules() if hasattr(module, "base_layer")):
        reads_all = any(getattr(wrapper, "use_dora", {}).values())
        beside = [part for name, part in wrapper.named_children() if reads_all or name != "base_layer"]
        found |= {layer for part in beside for layer in part.modules()}
    return found


def rounded(layer: nn.Linear | Conv1D) -> Int8Linear:
    """Return an int8 copy of a float32 layer on a CPU."""
    weight, bias = layer.weight.detach(), layer.bias
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        found = f"{str(weight.dtype).removeprefix('torch.')} on {weight.device.type}"
        raise ValueError(f"int8 is for models in float32 on cpu, and this one is in {found}")
    return Int8Linear(weight.t() if type(layer) is Conv1D else weight, None if bias is None else bias.detach())
