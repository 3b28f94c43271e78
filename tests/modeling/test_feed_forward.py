"""The feed-forward layer against its formula."""

from typing import get_args

import pytest
import torch
from torch import nn
from transformers.activations import ACT2FN

from vanillaformer.configuration import options
from vanillaformer.modeling.parts.feed_forward import build_feed_forward

from .toys import sharpen, toy_config

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
