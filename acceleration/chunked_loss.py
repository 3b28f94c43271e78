"""The cross-entropy of an output layer whose logits are never all in memory at once.

Shape letters: N positions, D model width, V vocabulary.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from vanillaformer.modeling.parts.dropout import identity

from .linear import linear_backward, linear_forward, takes_onednn
from .plain import is_plain, is_unchanged

LOGITS = {"cpu": 2**21, "cuda": 2**27}
"""Logits in a chunk: few enough for a processor's caches, enough to keep a graphics card busy."""
POSITIONS = 256  # positions in a chunk at least: fewer would read the weights too often

Transform = Callable[[torch.Tensor], torch.Tensor]


def loss_without_logits(
    model: Any,
    states: torch.Tensor,
    targets: torch.Tensor,
    label_smoothing: float,
    num_items_in_batch: torch.Tensor | int | None = None,
    **_: Any,
) -> torch.Tensor | None:
    """Return the loss of a language model's states (..., D) with targets (...), `None` if its head is changed."""
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
    """Return `Σ_n CE(f(W h_n + b), y_n)`, of which the first derivatives can be taken.

    The states h are (N, D), the targets y (N); f is the transform, element by element, and the layer is plain and
    unchanged (`plain.py`). The gradients by h, W and b are computed with the loss, chunk by chunk, and with as many
    operations as without chunks; memory grows with N · D + V · D, not with N · V. By default a chunk has as many
    positions as suit the vocabulary.
    """
    weight: torch.Tensor = layer.weight
    bias: torch.Tensor | None = layer.bias
    device = states.device.type
    if not torch.is_grad_enabled():
        states, weight, bias = states.detach(), weight.detach(), None if bias is None else bias.detach()
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        states, weight = states.to(dtype), weight.to(dtype)
        bias = None if bias is None else bias.to(dtype)
    targets, positions = targets.to(states.device), positions or chunk_size(len(weight), device)
    with torch.autocast(device, enabled=False):
        return ChunkedCrossEntropy.apply(states, weight, bias, targets, transform, options, positions)


def chunk_size(vocabulary: int, device: str) -> int:
    return max(POSITIONS, LOGITS.get(device, 2**26) // vocabulary)


class ChunkedCrossEntropy(torch.autograd.Function):
    """See `chunked_cross_entropy`."""

    @staticmethod
    def forward(
        ctx: Any,
        states: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        transform: Transform,
        options: dict[str, Any],
        positions: int,
    ) -> torch.Tensor:
        needed, exact = any(ctx.needs_input_grad), torch.promote_types(weight.dtype, torch.float32)
        zeros = partial(torch.zeros, dtype=exact, device=states.device)  # sums, in which rounding would add up
        gradients = [
            zeros(value.shape) if wanted and value is not None else None
            for value, wanted in zip((states, weight, bias), ctx.needs_input_grad)
        ]
        total = zeros(())
        for start in range(0, len(states), positions):
            part = slice(start, start + positions)
            logits = linear_forward(states[part], weight, bias).requires_grad_(needed)
            with torch.enable_grad():
                outputs = logits if transform is identity else transform(logits.to(exact))
            loss, grad_output = softmax_loss(outputs.detach(), targets[part], needed=needed, **options)
            total += loss
            if grad_output is not None and outputs is not logits:
                (grad_output,) = torch.autograd.grad(outputs, logits, grad_output)
            if grad_output is not None:
                add_gradients(gradients, grad_output, states, weight, part)
        ctx.save_for_backward(*gradients)
        ctx.dtype = weight.dtype
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        gradients = (None if saved is None else (saved * grad_output).to(ctx.dtype) for saved in ctx.saved_tensors)
        return (*gradients, None, None, None, None)


def softmax_loss(
    logits: torch.Tensor,
    targets: torch.Tensor,
    *,
    needed: bool,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the sum of cross-entropies of logits (n, V), in float32 or more, and, if needed, the gradient by them.

    That is `p - (1 - ε) onehot(y) - ε / V`, in the logits' type: fewer passes over n · V numbers than by autograd.
    """
    kept = targets != ignore_index
    index = targets.where(kept, 0)[:, None]
    scores = logits.log_softmax(dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))
    chosen, each = scores.gather(1, index), label_smoothing / logits.shape[1]
    losses = (label_smoothing - 1) * chosen[:, 0]
    if label_smoothing:
        losses -= each * scores.sum(dim=1)
    loss = losses.where(kept, 0).sum()
    if not needed:
        return loss, None
    gradient = scores.exp_() if scores.dtype == logits.dtype else torch.exp(scores, out=torch.empty_like(logits))
    if label_smoothing:
        gradient -= each
    gradient.scatter_(1, index, (chosen.exp() - each - (1 - label_smoothing)).to(gradient.dtype))
    if logits.device.type != "cpu" or not kept.all():  # which a graphics card would have to be waited for
        gradient *= kept[:, None]
    return loss, gradient


def add_gradients(
    gradients: list[torch.Tensor | None],
    grad_output: torch.Tensor,
    states: torch.Tensor,
    weight: torch.Tensor,
    part: slice,
) -> None:
    """Add to the sums by states (N, D), weight (V, D) and bias, if needed, those by a chunk's logits (n, V)."""
    rows = states[part]
    by_states, by_weight, by_bias = gradients
    by_rows = None if by_states is None else by_states[part]
    if takes_onednn(rows, weight):
        totals = by_rows, by_weight, by_bias
        needed = tuple(total is not None for total in totals)
        for total, addend in zip(totals, linear_backward(grad_output, rows, weight, needed)):
            if total is not None and addend is not None:
                total += addend
        return
    if by_rows is not None:
        by_rows += grad_output @ weight
    if by_weight is not None and by_weight.dtype == grad_output.dtype:
        torch.addmm(by_weight, grad_output.T, rows, out=by_weight)
    elif by_weight is not None:
        by_weight += grad_output.T @ rows
    if by_bias is not None:
        by_bias += grad_output.sum(dim=0)
