from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from vanillaformer.acceleration import gemv, speed_up
from vanillaformer.acceleration import linear as fast_linear

D, E = 40, 36


@pytest.fixture
def onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever oneDNN can compute it does."""
    monkeypatch.setattr(fast_linear, "WORK", {False: 0, True: 0})
    monkeypatch.setattr(fast_linear, "onednn_is_faster", lambda gradients: True)


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever can be computed from a copy of the weights is."""
    monkeypatch.setattr(gemv, "is_faster", lambda *_: True)
    monkeypatch.setattr(gemv, "MIN_BYTES", 0)
    monkeypatch.setattr(gemv, "MIN_WEIGHTS", 0)


@pytest.fixture
def fast(onednn: None, copies: None) -> None:
    """Whatever can be computed faster is."""


class Made(TorchDispatchMode):
    """Notes the dtypes and the sizes of the tensors that are computed."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors: set[tuple[torch.dtype, int]] = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        values = result if isinstance(result, (tuple, list)) else (result,)
        self.tensors |= {(each.dtype, each.numel()) for each in values if isinstance(each, torch.Tensor)}
        return result


def fast_layer(**options: Any) -> nn.Linear:
    return speed_up(nn.Linear(D, E, **options))


class Quantized(torch.Tensor):
    pass


def quantized_layer() -> nn.Linear:
    layer = fast_layer()
    del layer.weight
    layer.weight = nn.Buffer(torch.randn(E, D)).as_subclass(Quantized)
    return layer
