"""How weights lie in memory while a model generates on a CPU."""

import torch
from torch import nn


def store_by_inputs(model: nn.Module) -> None:
    """Store the weights of float32 layers input by input; their values and shapes stay as they are.

    A product with one or a few rows takes as long as reading the weights, and memory is read fastest in long runs.
    Outputs differ in rounding. For training, and to save the model, load it anew.
    """
    for layer in model.modules():
        if type(layer) is not nn.Linear or type(layer.weight) is not nn.Parameter:
            continue
        if layer.weight.dtype == torch.float32:
            layer.weight.data = layer.weight.data.t().contiguous().t()
