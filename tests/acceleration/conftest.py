from typing import Any

import pytest
import torch
from torch import nn

from vanillaformer.acceleration import gemv, speed_up
from vanillaformer.acceleration import linear as fast_linear

D, E = 40, 36


@pytest.fixture
def onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever oneDNN can compute it does."""
    monkeypatch.setattr(fast_linear, "WORK", {False: 0, True: 0})
    monkeypatch.setattr(fast_linear, "onednn_is_faster", lambda: True)


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever can be computed from a copy of the weights is."""
    monkeypatch.setattr(gemv, "is_faster", lambda *_: True)
    monkeypatch.setattr(gemv, "MIN_BYTES", 0)
    monkeypatch.setattr(gemv, "MIN_WEIGHTS", 0)


@pytest.fixture
def fast(onednn: None, copies: None) -> None:
    """Whatever can be computed faster is."""


def fast_layer(**options: Any) -> nn.Linear:
    return speed_up(nn.Linear(D, E, **options))


class Quantized(torch.Tensor):
    pass


def quantized_layer() -> nn.Linear:
    layer = fast_layer()
    del layer.weight
    layer.weight = nn.Buffer(torch.randn(E, D)).as_subclass(Quantized)
    return layer
