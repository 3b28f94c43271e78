"""Norms against their formulas."""

from typing import get_args

import pytest
import torch
from torch import nn

from vanillaformer.configuration import options
from vanillaformer.modeling.norms import LayerNorm, RMSNorm, build_norm

from .toys import assert_close, sharpen, toy_config


def states() -> torch.Tensor:
    return 3 * torch.randn(2, 5, 24, dtype=torch.float64) + 1


def test_layer_norm_is_its_formula():
    norm, x = sharpen(LayerNorm(24, eps=0.1)).double(), states()
    centred = x - x.mean(-1, keepdim=True)
    expected = norm.weight * centred / (centred.pow(2).mean(-1, keepdim=True) + 0.1).sqrt() + norm.bias
    assert_close(norm(x), expected, "LayerNorm", 1e-12)


def test_rms_norm_is_its_formula():
    norm, x = sharpen(RMSNorm(24, eps=0.1)).double(), states()
    expected = norm.weight * x / (x.pow(2).mean(-1, keepdim=True) + 0.1).sqrt()
    assert_close(norm(x), expected, "RMSNorm", 1e-6)


def test_rms_norm_is_torchs_with_gradients():
    ours, theirs = sharpen(RMSNorm(24, eps=1e-3)), nn.RMSNorm(24, eps=1e-3)
    theirs.weight.data.copy_(ours.weight.data)
    inputs = [states().float().requires_grad_() for _ in range(1)] * 2
    gradients = []
    for norm, x in zip((ours, theirs), inputs):
        output = norm(x)
        gradients.append(torch.autograd.grad((output * output.cos()).sum(), [x, norm.weight]))
    for name, ours_gradient, theirs_gradient in zip(("input", "weight"), *gradients):
        assert_close(ours_gradient, theirs_gradient, f"gradient of the {name}")


def test_rms_norm_squares_in_float32():
    """Squares of numbers beyond 256 are infinite in float16."""
    x = torch.full((1, 24), 1000.0, dtype=torch.float16)
    output = RMSNorm(24, eps=1e-5).half()(x)
    assert output.dtype == torch.float16
    assert_close(output, torch.ones(1, 24), "RMSNorm of a constant", 1e-3)


@pytest.mark.parametrize("norm", get_args(options.Norm))
def test_a_norm_is_built_over_the_model_width_with_the_configs_epsilon(norm):
    built = build_norm(toy_config("decoder", norm=norm, norm_eps=0.3))
    assert built.eps == 0.3
    assert built.weight.shape == (24,)
    assert "eps=0.3" in repr(built)
