"""Cross-entropy of an output layer whose logits are never all in memory at once.

Shape letters: N positions, D model width, V vocabulary.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from vanillaformer.modeling.parts.dropout import identity

from .linear import linear_forward, onednn_backward, takes_onednn
from .plain import is_plain, is_unchanged

LOGITS = {"cpu": 2**21, "cuda": 2**27}
"""Logits per chunk: few enough for a CPU's caches, enough to keep a GPU busy."""
BYTES = 2**11  # least bytes of a chunk's logits per token of the vocabulary: fewer would read weights too often
BLOCK = {"cpu": 2**20, "cuda": 2**25}
"""Logits of a chunk that are normalized at once, in float32: they stay in a CPU's cache."""
WORDS = {"cpu": 2**10}  # tokens of the vocabulary whose gradients are added at once, for the same reason

Transform = Callable[[torch.Tensor], torch.Tensor]


def loss_without_logits(
    model: Any,
    states: torch.Tensor,
    targets: torch.Tensor,
    label_smoothing: float,
    num_items_in_batch: torch.Tensor | int | None = None,
    **_: Any,
) -> torch.Tensor | None:
    """Return the loss of a language model's states (..., D) with targets (...), `None` if its head was modified."""
    if not is_plain(model.lm_head, states) or not is_unchanged(model.lm_head):
        return None
    states, options = model.transform_hidden_states(states), {"ignore_index": -100, "label_smoothing": label_smoothing}
    items = (targets != options["ignore_index"]).sum() if num_items_in_batch is None else num_items_in_batch
    arguments: Any = states.flatten(0, -2), model.lm_head, targets.flatten(), model.logits_transform, options
    total = chunked_cross_entropy(*arguments)
    return total / torch.as_tensor(items, device=total.device)


def chunked_cross_entropy(
    states: torch.Tensor,
    layer: nn.Linear,
    targets: torch.Tensor,
    transform: Transform,
    options: dict[str, Any],
    positions: int | None = None,
) -> torch.Tensor:
    """Return `Σ_n CE(f(W h_n + b), y_n)`, which can be differentiated once.

    The states h are (N, D), the targets y (N); f is the elementwise transform, and the layer is plain and unchanged
    (`plain.py`). The gradients of h, W and b are computed with the loss, chunk by chunk, in as many operations as
    without chunks; memory grows with N · D + V · D, not with N · V. The default number of positions per chunk depends
    on the vocabulary.
    """
    weight: torch.Tensor = layer.weight
    bias: torch.Tensor | None = layer.bias
    device, dtype = states.device.type, weight.dtype
    if not torch.is_grad_enabled():
        states, weight, bias = states.detach(), weight.detach(), None if bias is None else bias.detach()
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
    targets, positions = targets.to(states.device), positions or chunk_size(len(weight), device, dtype)
    with torch.autocast(device, enabled=False):
        return ChunkedCrossEntropy.apply(states, weight, bias, targets, transform, options, dtype, positions)


def chunk_size(vocabulary: int, device: str, dtype: torch.dtype) -> int:
    return max(BYTES // dtype.itemsize, LOGITS.get(device, 2**26) // vocabulary)


class ChunkedCrossEntropy(torch.autograd.Function):
    """See `chunked_cross_entropy`. Products are computed in `dtype`, their sums over chunks in float32 or more."""

    @staticmethod
    def forward(
        ctx: Any,
        states: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        transform: Transform,
        options: dict[str, Any],
        dtype: torch.dtype,
        positions: int,
    ) -> torch.Tensor:
        needed, exact = ctx.needs_input_grad[:3], torch.promote_types(dtype, torch.float32)
        rows: Any
        matrix: Any
        rows, matrix, offsets = (None if value is None else value.to(dtype) for value in (states, weight, bias))
        total = torch.zeros((), dtype=exact, device=states.device)
        sums = [  # in float32 or more: rounding errors of `dtype` would add up
            torch.zeros(value.shape, dtype=exact, device=states.device) if value is not None and wanted else None
            for value, wanted in zip((states, weight, bias), needed)
        ]
        for start in range(0, len(rows), positions):
            part = slice(start, start + positions)
            logits = linear_forward(rows[part], matrix, offsets)
            total += softmax_loss(logits, targets[part], transform, needed=any(needed), **options)
            if any(needed):
                by_states, *others = sums
                by_rows = None if by_states is None else by_states[part]
                add_gradients((by_rows, *others), logits, rows[part], matrix)
        ctx.save_for_backward(*sums)
        ctx.dtypes = states.dtype, weight.dtype, weight.dtype
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        pairs = zip(ctx.saved_tensors, ctx.dtypes)
        gradients = (None if saved is None else (saved * grad_output).to(dtype) for saved, dtype in pairs)
        return (*gradients, None, None, None, None, None)


def softmax_loss(
    logits: torch.Tensor,
    targets: torch.Tensor,
    transform: Transform = identity,
    *,
    needed: bool,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    """Return the sum of cross-entropies of f(logits) (n, V), in float32; if needed, overwrite logits by its gradient.

    With respect to f(logits) that is `p - (1 - ε) onehot(y) - ε / V`. The log of the sum of exponentials is the
    largest score minus the log of its probability: `softmax` takes half the time of `log_softmax` and `exp`.
    """
    exact, each = torch.promote_types(logits.dtype, torch.float32), label_smoothing / logits.shape[1]
    total = torch.zeros((), dtype=exact, device=logits.device)
    rows = max(1, BLOCK.get(logits.device.type, 2**25) // logits.shape[1])
    for block, goals in zip(logits.split(rows), targets.split(rows)):
        kept = goals != ignore_index
        index = goals.where(kept, 0)[:, None]
        inputs = block.to(exact).requires_grad_(needed and transform is not identity)
        with torch.set_grad_enabled(inputs.requires_grad):
            outputs = transform(inputs)
        scores = outputs.detach()
        probabilities = scores.softmax(dim=-1)
        normalizer = scores.amax(dim=1) - probabilities.amax(dim=1).log()
        losses = normalizer - (1 - label_smoothing) * scores.gather(1, index)[:, 0]
        if label_smoothing:
            losses -= label_smoothing * scores.mean(dim=1)
        total += losses.where(kept, 0).sum()
        if not needed:
            continue
        gradient = probabilities.sub_(each) if label_smoothing else probabilities
        gradient.scatter_add_(1, index, gradient.new_full((1, 1), label_smoothing - 1).expand_as(index))
        if block.device.type != "cpu" or not kept.all():  # checking would wait for a GPU
            gradient *= kept[:, None]
        block.copy_(gradient if outputs is inputs else torch.autograd.grad(outputs, inputs, gradient)[0])
    return total


def add_gradients(
    sums: Sequence[torch.Tensor | None], grad_output: torch.Tensor, rows: torch.Tensor, weight: torch.Tensor
) -> None:
    """Add a chunk's gradients, given that of its logits (n, V), to those of states (n, D), weight (V, D) and bias."""
    by_rows, by_weight, by_bias = sums
    if takes_onednn(rows, weight):
        needed = tuple(value is not None for value in sums)
        for value, addend in zip(sums, onednn_backward(grad_output, rows, weight, needed)):
            if value is not None and addend is not None:
                value += addend
        return
    if by_rows is not None:
        by_rows += grad_output @ weight
    if by_weight is not None:  # for a few tokens of the vocabulary at a time, whose products stay in the caches
        words = WORDS.get(rows.device.type, len(weight))
        for part, value in zip(grad_output.split(words, dim=1), by_weight.split(words)):
            value += part.T @ rows
    if by_bias is not None:
        by_bias += grad_output.sum(dim=0)
