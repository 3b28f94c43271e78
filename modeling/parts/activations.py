"""Activation functions: transformers', each by its fused kernel."""

from torch import nn
from transformers.activations import ACT2FN

from vanillaformer.configuration import ACTIVATION_ALIASES


def build_activation(name: str) -> nn.Module:
    """Return the activation of this name in `ACT2FN`, as one kernel: `gelu_new` is written out in operations there."""
    return ACT2FN[ACTIVATION_ALIASES.get(name, name)]
