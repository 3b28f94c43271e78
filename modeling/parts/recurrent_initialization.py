"""Initialization of recurrent models; `RECURRENT_INITIALIZATIONS` is the list of choices."""

from collections.abc import Callable

import torch
from torch import nn
from transformers import initialization as init

from .recurrence import LSTM


def uniform(module: nn.Module) -> None:
    """Draw weights as `torch.nn` does: maps from U(±1/√fan in), cells from U(±1/√D), embeddings from N(0, 1)."""
    if isinstance(module, nn.Embedding):
        init.normal_(module.weight)
    elif isinstance(module, nn.Linear | nn.RNNBase):
        bound = (module.in_features if isinstance(module, nn.Linear) else module.hidden_size) ** -0.5
        for parameter in module.parameters(recurse=False):
            init.uniform_(parameter, -bound, bound)


def orthogonal(module: nn.Module) -> None:
    """Draw orthogonal recurrent matrices (Saxe et al. 2014) and all others from U(±√(6 / (fan in + fan out))).

    Biases start at 0, those of an LSTM's forget gate at 1 (Jozefowicz et al. 2015), embeddings are N(0, 1/D).
    """
    if isinstance(module, nn.Embedding):
        init.normal_(module.weight, std=module.embedding_dim**-0.5)
    elif isinstance(module, nn.Linear):
        init.xavier_uniform_(module.weight)
        if module.bias is not None:
            init.zeros_(module.bias)
    elif isinstance(module, nn.RNNBase):
        width = module.hidden_size
        for name, parameter in module.named_parameters(recurse=False):  # each gate by itself
            if name.startswith("weight_ih"):
                bound = (6 / (parameter.shape[1] + width)) ** 0.5
                init.uniform_(parameter, -bound, bound)
            elif name.startswith("weight_hh") and not parameter.is_meta:
                gates = [nn.init.orthogonal_(torch.empty(width, width)) for _ in range(len(parameter) // width)]
                init.copy_(parameter, torch.cat(gates))
            elif name.startswith("bias"):
                bias = torch.zeros(len(parameter))
                bias[width : 2 * width] = float(isinstance(module, LSTM) and name.startswith("bias_ih"))
                init.copy_(parameter, bias)


RECURRENT_INITIALIZATIONS: dict[str, Callable[[nn.Module], None]] = {"orthogonal": orthogonal, "uniform": uniform}
