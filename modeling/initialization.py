"""How fresh weights are drawn; `INITIALIZATIONS` is the list of choices."""

import torch
from torch import nn
from transformers import initialization as init

from vanillaformer.configuration import BlockConfig


def normal(module: nn.Module, config: BlockConfig) -> None:
    """Linear maps and embeddings from N(0, range²)."""
    if isinstance(module, nn.Linear | nn.Embedding):
        init.normal_(module.weight, mean=0.0, std=config.initializer_range)


def gpt2(module: nn.Module, config: BlockConfig) -> None:
    """As `normal`, but the maps that end in a residual sum from N(0, range² / N), N being the sums in the stack."""
    normal(module, config)
    # A stack comes after its parts, so this overrides what they drew.
    if isinstance(module, nn.ModuleList) and hasattr(module[0], "sublayers"):
        std = config.initializer_range / (module[0].sublayers * len(module)) ** 0.5
        for name, parameter in module.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                init.normal_(parameter, mean=0.0, std=std)


def xavier(module: nn.Module, config: BlockConfig) -> None:
    """Linear maps uniform in ±√(6 / (fan in + fan out)), embeddings from N(0, 1/D)."""
    if isinstance(module, nn.Linear):
        init.xavier_uniform_(module.weight)
    elif isinstance(module, nn.Embedding):
        init.normal_(module.weight, mean=0.0, std=config.hidden_size**-0.5)


INITIALIZATIONS = {"normal": normal, "gpt2": gpt2, "xavier": xavier}


@torch.no_grad()
def initialize(module: nn.Module, config: BlockConfig) -> None:
    """Draw one module's weights as `config.initialization` says; transformers calls this for each, inner ones first.

    | name   | linear maps               | residual maps        | embeddings   | paper                             |
    | ------ | ------------------------- | -------------------- | ------------ | --------------------------------- |
    | normal | N(0, range²)              | as linear maps       | N(0, range²) | BERT, Devlin et al. 2019          |
    | gpt2   | N(0, range²)              | N(0, range² / depth) | N(0, range²) | GPT-2, Radford et al. 2019        |
    | xavier | U(±√(6/(in + out)))       | as linear maps       | N(0, 1/D)    | Glorot and Bengio 2010; the original |

    Biases start at 0, norms at the identity. `transformers.initialization` leaves alone what a checkpoint has filled.
    """
    INITIALIZATIONS[config.initialization](module, config)
    if isinstance(module, nn.Linear) and module.bias is not None:
        init.zeros_(module.bias)
