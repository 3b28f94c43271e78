"""DT-Fixup (Xu et al. 2021): the weights of layers without norms, scaled by the length of their inputs."""

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import Any

import torch

from .base import VanillaPreTrainedModel
from .parts.initialization import VALUE_MAPS
from .stack import Stack


@torch.no_grad()
def scale_by_inputs(model: VanillaPreTrainedModel, batches: Iterable[Mapping[str, torch.Tensor]]) -> dict[str, float]:
    """Multiply the value, output and feed-forward maps of each stack by `(4 N μ²)^-½ = N^-½ / 2μ`.

    N is the number of blocks, μ the largest norm of a vector in a stack's input, and 4 the number of a block's maps:
    two in each of two sublayers. (The authors have 4 μ² + 2 μ + 2 where attention also reads relations.)
    The paper has no decoders with cross-attention: their three sublayers make it 6 here.
    Call it once, on a new model, before training, with batches of the training data: the paper takes all of it.
    Returns the factor of each map by the parameter's name.
    """
    if model.config.initialization != "dt_fixup":
        raise ValueError(f"scaling needs initialization='dt_fixup', got {model.config.initialization!r}")
    longest = max(longest_input(model, batch) for batch in batches)
    factors: dict[str, float] = {}
    for stack_name, stack in model.named_modules():
        if isinstance(stack, Stack):
            first: Any = stack.layers[0]
            maps = 2 * first.sublayers * len(stack.layers)
            for name, parameter in stack.layers.named_parameters(f"{stack_name}.layers".lstrip(".")):
                if name.endswith(VALUE_MAPS):
                    factors[name] = maps**-0.5 / longest
                    parameter.mul_(factors[name])
    return factors


def longest_input(model: VanillaPreTrainedModel, batch: Mapping[str, torch.Tensor]) -> float:
    """Return the largest norm of a vector in the input of a stack's first block."""
    lengths: list[float] = []

    def record(module: Any, inputs: tuple[Any, ...]) -> None:
        lengths.append(inputs[0].norm(dim=-1).max().item())

    with ExitStack() as until_the_end:
        until_the_end.callback(model.train, model.training)
        model.eval()
        for stack in model.modules():
            if isinstance(stack, Stack):
                until_the_end.enter_context(stack.layers[0].register_forward_pre_hook(record))
        model(**batch)
    return max(lengths)
