"""Activation functions: transformers', each by its fused kernel."""

from torch import nn
from transformers.activations import ACT2FN

from vanillaformer.configuration import ACTIVATION_ALIASES


def build_activation(name: str) -> nn.Module:
    """Return the activation of this name in `ACT2FN`.

    Names of one function differ in rounding: GPT-2's `gelu_new` is written out in single operations there, whose
    results are kept for the backward pass, and is one kernel as `gelu_pytorch_tanh`.
    """
    return ACT2FN[ACTIVATION_ALIASES.get(name, name)]
