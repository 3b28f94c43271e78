"""Norms and the feed-forward layer against their formulas."""

from typing import get_args

import pytest
import torch
from torch import nn
from transformers.activations import ACT2FN
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from vanillaformer.configuration import options
from vanillaformer.modeling.parts.feed_forward import build_feed_forward
from vanillaformer.modeling.parts.norms import build_norm

from .toys import assert_close, sharpen, toy_config

ACTIVATIONS = {
    "relu": nn.functional.relu, "gelu": nn.functional.gelu,
    "gelu_new": lambda x: nn.functional.gelu(x, approximate="tanh"),
    "gelu_pytorch_tanh": lambda x: nn.functional.gelu(x, approximate="tanh"),
    "silu": nn.functional.silu, "relu2": lambda x: nn.functional.relu(x) ** 2, "linear": lambda x: x,
    "sigmoid": torch.sigmoid,
}  # fmt: skip


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("act", sorted(ACT2FN))
@pytest.mark.parametrize("name", get_args(options.FeedForward))
def test_a_feed_forward_layer_is_its_formula(name, act, bias):
    mlp = sharpen(build_feed_forward(toy_config("decoder", feed_forward=name, hidden_act=act, mlp_bias=bias)))
    x = torch.randn(2, 5, 24)
    phi = ACTIVATIONS.get(act, mlp.act_fn)  # other activations are those of transformers
    inner = {"plain": lambda: phi(mlp.up_proj(x)), "gated": lambda: phi(mlp.gate_proj(x)) * mlp.up_proj(x)}[name]()
    assert torch.allclose(mlp(x), mlp.down_proj(inner), rtol=1e-5, atol=1e-6)
    assert torch.isfinite(mlp(x)).all()
    assert mlp.up_proj.weight.shape == (40, 24)
    for linear in (module for module in mlp.modules() if isinstance(module, nn.Linear)):
        assert (linear.bias is not None) is bias


@pytest.mark.parametrize("name", get_args(options.FeedForward))
def test_activation_dropout_falls_between_the_two_maps(name):
    mlp = build_feed_forward(toy_config("decoder", feed_forward=name, activation_dropout=0.5)).train()
    seen = []
    mlp.down_proj.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    mlp(torch.randn(64, 24))
    assert 0.4 < seen[0].eq(0).float().mean() < 0.6


def divided_by_root_mean_square(x: torch.Tensor, eps: float) -> torch.Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt()


# What each norm computes of its input and epsilon, without weight and bias
FORMULAS = {
    "layer_norm": lambda x, eps: divided_by_root_mean_square(x - x.mean(-1, keepdim=True), eps),
    "rms_norm": divided_by_root_mean_square,
}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("weight", ["weight", "1 + weight", "none"])
@pytest.mark.parametrize("norm", get_args(options.Norm))
def test_a_norm_is_its_formula_with_weight_and_bias_or_without(norm, weight, bias):
    fields = {"norm_weight": weight != "none", "norm_unit_offset": weight == "1 + weight", "norm_bias": bias}
    built = sharpen(build_norm(toy_config("decoder", norm=norm, norm_eps=0.1, **fields))).double()
    x = 3 * torch.randn(2, 5, 24, dtype=torch.float64) + 1
    assert (built.weight is not None, built.bias is not None) == (weight != "none", bias)
    factor = 1.0 if weight == "none" else built.weight + float(weight == "1 + weight")
    expected = factor * FORMULAS[norm](x, 0.1) + (built.bias if bias else 0.0)
    tolerance = 1e-12 if norm == "layer_norm" else 1e-6  # RMSNorm squares in float32
    assert_close(built(x), expected, "norm", tolerance)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("theirs", "unit_offset"), [(LlamaRMSNorm, False), (Gemma2RMSNorm, True)])
def test_half_precision_rounds_where_transformers_does(theirs, unit_offset, dtype):
    """Also where squares, of numbers beyond 256, are infinite in float16."""
    ours = build_norm(toy_config("decoder", norm="rms_norm", norm_eps=1e-3, norm_unit_offset=unit_offset))
    reference = theirs(24, eps=1e-3)
    with torch.no_grad():
        ours.weight.copy_(torch.randn(24))
        reference.weight.copy_(ours.weight)
    x = torch.tensor([[7.0], [1000.0]]) * torch.randn(2, 24)
    found = ours.to(dtype)(x.to(dtype))
    assert torch.equal(found, reference.to(dtype)(x.to(dtype)))
    assert torch.isfinite(found).all()
    assert found.any(1).all()
