"""Ablation: how much worse the loss on held-out rows is without a head, a sublayer or a layer.

A head is named by its attention (`encoder` and `decoder` for the self-attention of a stack, `cross` for that of the
decoder to the encoder), its layer and its number. Shape letters: B batch, T length, H heads, K head width, L layers.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import nn

from vanillaformer.console.progress import stage
from vanillaformer.modeling.heads import IGNORE_INDEX
from vanillaformer.modeling.parts.attention import Attention

from .examples import Example
from .losses import Batch, held_out_loss
from .pictures import Drawing, NotApplicable, heat_map, number
from .recording import stacks

Replacement = Literal["zero", "mean"]
"""Replacement of an ablated head's output: 0, or its mean over all tokens of the rows."""
SUBLAYERS = ("self_attn", "cross_attn", "mlp")
PARTS = (*SUBLAYERS, "layer")
"""Parts of a layer that can be ablated: the columns of `sublayer_ablation`."""
NAMES = {"encoder": "the encoder", "decoder": "the decoder", "cross": "cross-attention"}
Advance = Callable[[], Any]
"""Called after each pass over the rows."""


def attention_layers(model: Any) -> dict[str, list[Attention]]:
    """Return the attention of each layer by kind: `encoder`, `decoder` and `cross`, those that a model has.

    Raises:
        ValueError: The model has no attention heads, or is not one of this package.
    """
    found: dict[str, list[Attention]] = {}
    for name, stack in stacks(model).items():
        layers: Any = stack.layers
        found[name] = [layer.self_attn for layer in layers]
        if stack.has_cross_attention:
            found["cross"] = [layer.cross_attn for layer in layers]
    if not found:
        raise ValueError(f"{type(model).__name__} has no attention heads")
    return found


def count_passes(model: Any) -> int:
    """Return how often `head_ablation` and `sublayer_ablation` run all rows, together and with the full model."""
    attentions = [attention for layers in attention_layers(model).values() for attention in layers]
    heads = sum(attention.config.num_attention_heads for attention in attentions)
    layers = sum(len(list(parts_of(layer))) for stack in stacks(model).values() for layer in stack.layers)
    return heads + layers + 2


def head_ablation(
    model: Any, batches: Sequence[Batch], replacement: Replacement = "zero", advance: Advance = lambda: None
) -> dict[str, np.ndarray]:
    """Return by how much the loss grows without each head (Michel et al. 2019, arXiv 1905.10650).

    The head's output is replaced before the output projection, whose bias belongs to no head and stays: without all
    heads of a layer (by zeros), attention gives that bias.

    Args:
        model: The model, in evaluation mode.
        batches: Held-out rows.
        replacement: Replacement of the head's output.
        advance: Called after each pass over the rows.

    Returns:
        By kind of attention the difference to the loss of the whole model, (L, H), nan where a layer has no such head.

    Raises:
        ValueError: The model has no heads, or the rows no targets.
    """
    if replacement not in get_args(Replacement):
        raise ValueError(f"replacement must be one of {', '.join(get_args(Replacement))}, got {replacement!r}")
    attentions = attention_layers(model)
    loss = held_out_loss(model, batches)
    means = mean_outputs(model, batches) if replacement == "mean" else {}
    advance()
    differences = {}
    for kind, layers in attentions.items():
        counts = [attention.config.num_attention_heads for attention in layers]
        differences[kind] = np.full((len(layers), max(counts)), np.nan)
        for layer, attention in enumerate(layers):
            for head in range(counts[layer]):
                value = means[attention][head] if means else 0.0
                with replaced_heads(attention, [head], value):
                    differences[kind][layer, head] = held_out_loss(model, batches) - loss
                advance()
    return differences


def sublayer_ablation(model: Any, batches: Sequence[Batch], advance: Advance = lambda: None) -> dict[str, np.ndarray]:
    """Return by how much the loss grows without each sublayer, and without each whole layer.

    Without a sublayer its residual connection adds 0, or without a residual connection is 0: nothing of it remains,
    neither biases nor what a norm inside the connection makes of 0. Without a layer its input is its output.

    Returns:
        By stack the difference to the loss of the whole model, (L, 4), the columns being `PARTS`; nan where a layer
        has no such sublayer.

    Raises:
        ValueError: The model has no layers of attention, or the rows no targets.
    """
    attention_layers(model)
    loss = held_out_loss(model, batches)
    advance()
    differences = {}
    for name, stack in stacks(model).items():
        differences[name] = np.full((len(stack.layers), len(PARTS)), np.nan)
        for index, layer in enumerate(stack.layers):
            for part in parts_of(layer):
                with without_part(layer, part):
                    differences[name][index, PARTS.index(part)] = held_out_loss(model, batches) - loss
                advance()
    return differences


def parts_of(layer: nn.Module) -> Iterator[str]:
    """Yield the names of the parts of a layer that can be ablated."""
    yield from (part for part in SUBLAYERS if hasattr(layer, part))
    yield "layer"


@contextmanager
def replaced_heads(attention: Attention, heads: Sequence[int], value: torch.Tensor | float = 0.0) -> Iterator[None]:
    """Let heads of one attention give a number or a vector (K) in place of their output."""

    def replace(module: nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        by_head = args[0].unflatten(-1, (-1, attention.head_dim)).clone()  # (B, T, H, K)
        by_head[..., list(heads), :] = value
        return (by_head.flatten(-2),)

    handle = attention.o_proj.register_forward_pre_hook(replace)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def without_part(layer: Any, part: str) -> Iterator[None]:
    """Leave out a sublayer of a layer, or with `part="layer"` all of it."""
    if part == "layer":
        handle = layer.register_forward_hook(lambda module, args, output: args[0])
        try:
            yield
        finally:
            handle.remove()
        return
    residual = getattr(layer, f"{part}_residual")
    residual.branch = torch.zeros_like
    try:
        yield
    finally:
        del residual.branch


@torch.no_grad()
def mean_outputs(model: Any, batches: Sequence[Batch]) -> dict[Attention, torch.Tensor]:
    """Return the mean output of each head (H, K) over all tokens of the rows, padding left out."""
    sums: dict[Attention, torch.Tensor] = {}
    counts: Counter[Attention] = Counter()

    def add(attention: Attention, mask: torch.Tensor | None, module: nn.Module, args: tuple[torch.Tensor]) -> None:
        (outputs,) = args  # (B, T, H · K)
        # Frames of CTC have another length, and windows of patches no mask
        seen = outputs[mask.bool()] if mask is not None and mask.shape == outputs.shape[:2] else outputs.flatten(0, 1)
        sums[attention] = sums.get(attention, 0.0) + seen.double().sum(dim=0)
        counts[attention] += len(seen)

    for batch in batches:
        with ExitStack() as hooks:
            for kind, layers in attention_layers(model).items():
                for attention in layers:
                    hook = partial(add, attention, token_mask(model, batch, kind))
                    hooks.callback(attention.o_proj.register_forward_pre_hook(hook).remove)
            model(**batch)
    means = {attention: total / counts[attention] for attention, total in sums.items()}
    return {
        attention: mean.unflatten(0, (-1, attention.head_dim)).to(model.dtype) for attention, mean in means.items()
    }


def token_mask(model: Any, batch: Batch, kind: str) -> torch.Tensor | None:
    """Return where the queries (B, T) of a kind of attention are tokens and not padding; `None` if all are."""
    if kind == "encoder" or not model.config.is_encoder_decoder:
        return batch.get("attention_mask")
    return batch["labels"] != IGNORE_INDEX


def ablations(example: Example) -> list[Drawing]:
    """Draw by how much the loss grows without each head, and without each sublayer and layer."""
    model = example.model
    if not example.rows:
        raise NotApplicable("it needs held-out rows (--rows)")
    if not stacks(model):
        raise NotApplicable("a recurrent model has no heads")
    with stage("Ablation", count_passes(model), "passes") as advance:
        heads = head_ablation(model, example.rows, example.replacement, advance=lambda: advance(1))
        parts = sublayer_ablation(model, example.rows, advance=lambda: advance(1))
    how = f"its output replaced by {'0' if example.replacement == 'zero' else 'its mean'}"
    drawings = []
    for kind, values in heads.items():
        words = f"Without one head of {NAMES[kind]}, {how}."
        columns = [str(head) for head in range(values.shape[1])]
        drawings.append(drawing(f"ablation_{kind}", words, values, kind, columns, f"Heads of {NAMES[kind]}"))
    for stack, values in parts.items():
        used = ~np.isnan(values).all(axis=0)
        columns = [part for part, is_used in zip(PARTS, used) if is_used]
        words = f"Without one sublayer of the {stack}, or a whole layer."
        values = values[:, used]
        drawings.append(drawing(f"ablation_{stack}_layers", words, values, stack, columns, f"Layers of the {stack}"))
    return drawings


def drawing(name: str, caption: str, values: np.ndarray, kind: str, columns: list[str], title: str) -> Drawing:
    """Draw the change of the loss without each part."""
    rows = [f"{kind}.{layer}" for layer in range(len(values))]
    largest = np.nanmax(np.abs(values))
    digits = ".1f" if largest >= 10 else ".2f" if largest >= 0.1 else ".3f"
    figure = heat_map(
        values, rows, columns, title, what="change of the loss", signed=True, axes=("", ""), style=digits
    )
    table = [[f"{rows[row]}.{columns[column]}", number(value)] for (row, column), value in np.ndenumerate(values)]
    return Drawing(name, caption, figure, ("part", "change of the loss"), table)
