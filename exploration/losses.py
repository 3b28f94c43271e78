"""The loss on held-out rows: in total, by position, and how much it grows without a part of the model.

Rows are batches: the keyword arguments of the model's `forward`, targets included (`labels` or `bool_masked_pos`). A
head is named by its attention (`encoder` and `decoder` for the self-attention of a stack, `cross` for that of the
decoder to the encoder), its layer and its index.

Shape letters: B batch, T length, V vocabulary, H heads, K head width, L layers.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import nn

from vanillaformer.configuration.options import DECODING_CHOICES
from vanillaformer.console.reporting import stage
from vanillaformer.data.targets import count_targets, targets_name
from vanillaformer.modeling.heads import IGNORE_INDEX
from vanillaformer.modeling.parts.attention import Attention

from .examples import Example
from .pictures import Drawing, NotApplicable, counted, curves, heat_map, needed
from .recording import SUBLAYERS, head_hook, logits_of, stacks

Batch = Mapping[str, torch.Tensor]
Replacement = Literal["zero", "mean"]  # of an ablated head's output: 0, or its mean over all tokens of the rows
PARTS = (*SUBLAYERS, "layer")  # parts that can be ablated: the columns of `sublayer_ablation`
NO_ROWS = "it needs held-out rows (--rows)"
NAMES = {"encoder": "the encoder", "decoder": "the decoder", "cross": "cross-attention"}
Advance = Callable[[], Any]  # called after each pass over the rows


# -------------------------------------------------------------------------------------------------------- the loss
@torch.no_grad()
def held_out_loss(model: Any, batches: Iterable[Batch]) -> float:
    """Return the mean loss over all targets of the rows, `Σ CE / N`, as evaluation after training counts it."""
    total, targets = 0.0, 0
    for batch in batches:
        name = targets_name(batch)
        count = 0 if name is None else int(count_targets(model, batch[name]))
        if count:  # the mean over no targets is NaN
            total += model(**batch).loss.item() * count
            targets += count
    if not targets:
        raise ValueError("the rows have no targets: there is no loss")
    return total / targets


@torch.no_grad()
def loss_by_position(model: Any, batches: Sequence[Batch]) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean loss at each position and the number of targets there, both (T) with T the longest row.

    A position is that of the predicted token: in a causal language model, position 0 has no target. The means
    weighted by the numbers are the model's loss; where the number is 0, the mean is nan. `NotApplicable` if the model
    does not predict tokens one by one.
    """
    decoding = getattr(model.config, "decoding", "autoregressive")
    if not hasattr(model, "lm_head") or DECODING_CHOICES[decoding].is_parallel:
        name = type(model).__name__
        raise NotApplicable(f"{name} (decoding={decoding!r}) has no loss of each token by its position")
    shift = int(model.predicts_next_token)
    longest = max(batch["labels"].shape[1] for batch in batches)
    total, count = np.zeros(longest), np.zeros(longest, dtype=int)
    for batch in batches:
        logits = logits_of(model(**batch))
        targets = model.targets(batch["labels"])  # (B, T)
        losses = nn.functional.cross_entropy(logits.double().mT, targets, reduction="none", ignore_index=IGNORE_INDEX)
        for found, values in ((total, losses), (count, targets != IGNORE_INDEX)):
            sums = values.sum(dim=0).cpu().numpy()
            found[shift : len(sums)] += sums[: len(sums) - shift]
    with np.errstate(invalid="ignore"):
        return total / count, count


def position_losses(example: Example) -> list[Drawing]:
    """Draw the loss over the positions."""
    means, counts = loss_by_position(example.model, needed(example.rows, NO_ROWS))
    found = np.flatnonzero(counts)
    total = np.nansum(means * counts) / counts.sum()
    caption = f"Mean over all {counts.sum():,} tokens: {total:.4f}, a perplexity of {np.exp(total):.1f}."
    figure = curves({"loss": means[found]}, found, "Loss by position", axes=("mean loss of a token", "position"))
    rows = [(position, means[position], counts[position]) for position in found]
    return [Drawing("loss_by_position", caption, figure, ("position", "loss", "tokens"), rows)]


# -------------------------------------------------------------------------------------------------------- ablation
def attention_layers(model: Any) -> dict[str, list[Attention]]:
    """Return the attention of each layer by kind: `encoder`, `decoder` and `cross`, those that a model has."""
    found: dict[str, list[Any]] = {}
    for name, stack in stacks(model).items():
        found[name] = [layer.self_attn for layer in stack.layers]
        if stack.has_cross_attention:
            found["cross"] = [layer.cross_attn for layer in stack.layers]
    if not found:
        raise ValueError(f"{type(model).__name__} has no attention heads")
    return found


def count_passes(model: Any) -> int:
    """Return how often `head_ablation` and `sublayer_ablation` run all rows, together and with the full model."""
    attentions = [attention for layers in attention_layers(model).values() for attention in layers]
    heads = sum(attention.config.num_attention_heads for attention in attentions)
    return heads + sum(len(parts_of(layer)) for stack in stacks(model).values() for layer in stack.layers) + 2


def head_ablation(
    model: Any, batches: Sequence[Batch], replacement: Replacement = "zero", advance: Advance = lambda: None
) -> dict[str, np.ndarray]:
    """Return how much the loss grows without each head, by kind of attention (L, H), nan where a layer lacks one.

    The head's output is replaced before the output projection, whose bias belongs to no head and stays: without all
    heads of a layer (by zeros), attention gives that bias (Michel et al. 2019, arXiv 1905.10650). `advance` is called
    after each pass over the held-out rows.
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
                with head_hook(attention, head, means[attention][head] if means else 0.0):
                    differences[kind][layer, head] = held_out_loss(model, batches) - loss
                advance()
    return differences


def sublayer_ablation(model: Any, batches: Sequence[Batch], advance: Advance = lambda: None) -> dict[str, np.ndarray]:
    """Return how much the loss grows without each of `PARTS`, by stack (L, 4), nan where a layer lacks a sublayer.

    Without a sublayer, its residual connection adds 0, or returns 0 if it has no sum: neither biases nor norms inside
    the connection add anything. Without a layer, its input is its output.
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


def parts_of(layer: nn.Module) -> list[str]:
    """Return the names of the parts of a layer that can be ablated."""
    return [part for part in PARTS if part == "layer" or hasattr(layer, part)]


@contextmanager
def without_part(layer: Any, part: str) -> Iterator[None]:
    """Skip a sublayer of a layer, or with `part="layer"` all of it, inside the `with` block."""
    with ExitStack() as exit_stack:
        if part == "layer":
            exit_stack.enter_context(layer.register_forward_hook(lambda module, args, output: args[0]))
        else:
            residual = getattr(layer, f"{part}_residual")
            residual.branch = torch.zeros_like
            exit_stack.callback(delattr, residual, "branch")
        yield


@torch.no_grad()
def mean_outputs(model: Any, batches: Sequence[Batch]) -> dict[Attention, torch.Tensor]:
    """Return the mean output of each head (H, K) over all tokens of the rows except padding."""
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
                source = kind == "encoder" or not model.config.is_encoder_decoder
                mask = batch.get("attention_mask") if source else batch["labels"] != IGNORE_INDEX  # of queries (B, T)
                for attention in layers:
                    hook = attention.o_proj.register_forward_pre_hook(partial(add, attention, mask))
                    hooks.enter_context(hook)
            model(**batch)
    return {
        attention: (total / counts[attention]).unflatten(0, (-1, attention.head_dim)).to(model.dtype)
        for attention, total in sums.items()
    }


def ablations(example: Example) -> list[Drawing]:
    """Draw how much the loss grows without each head, and without each sublayer and layer."""
    model, rows = example.model, needed(example.rows, NO_ROWS)
    needed(stacks(model), "a recurrent model has no heads")
    with stage("Ablation", count_passes(model), "passes") as advance:
        heads = head_ablation(model, rows, example.replacement, advance=lambda: advance(1))
        parts = sublayer_ablation(model, rows, advance=lambda: advance(1))
    how = f"its output replaced by {'0' if example.replacement == 'zero' else 'its mean'}"
    drawings = []
    for kind, values in heads.items():
        words, names = f"Without one head of {NAMES[kind]}, {how}.", counted(values.shape[1])
        drawings.append(ablation_drawing(f"ablation_{kind}", words, values, kind, names, f"Heads of {NAMES[kind]}"))
    for kind, values in parts.items():
        names = [part for part, column in zip(PARTS, values.T) if not np.isnan(column).all()]
        values = values[:, [PARTS.index(part) for part in names]]
        words, name = f"Without one sublayer of the {kind}, or a whole layer.", f"ablation_{kind}_layers"
        drawings.append(ablation_drawing(name, words, values, kind, names, f"Layers of the {kind}"))
    return drawings


def ablation_drawing(name: str, caption: str, values: np.ndarray, kind: str, parts: list[str], title: str) -> Drawing:
    """Draw the change of the loss without each part."""
    rows, unit = [f"{kind}.{layer}" for layer in range(len(values))], "change of the loss"
    largest = np.nanmax(np.abs(values))
    digits = ".1f" if largest >= 10 else ".2f" if largest >= 0.1 else ".3f"
    figure = heat_map(values, rows, parts, title, what=unit, signed=True, axes=("", ""), style=digits)
    table = [(f"{rows[row]}.{parts[column]}", value) for (row, column), value in np.ndenumerate(values)]
    return Drawing(name, caption, figure, ("part", unit), table)
