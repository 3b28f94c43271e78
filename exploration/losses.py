"""The loss on held-out rows, as a whole and by position.

Rows are batches: the keyword arguments of the model's `forward`, with what it is compared with (`labels` or
`bool_masked_pos`). Shape letters: B batch, T length, V vocabulary.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from vanillaformer.configuration.options import DECODING_CHOICES
from vanillaformer.data.targets import count_targets, targets_name
from vanillaformer.modeling.heads import IGNORE_INDEX

from .examples import Example
from .pictures import Drawing, NotApplicable, curves, number
from .recording import logits_of

Batch = Mapping[str, torch.Tensor]


@torch.no_grad()
def held_out_loss(model: Any, batches: Iterable[Batch]) -> float:
    """Return the mean loss over all targets of the rows, `Σ CE / N`, as evaluation after training counts it.

    Raises:
        ValueError: The rows have no targets.
    """
    total, targets = 0.0, 0
    for batch in batches:
        name = targets_name(batch)
        count = 0 if name is None else int(count_targets(model, batch[name]))
        if count:  # the mean over none is not a number
            total += model(**batch).loss.item() * count
            targets += count
    if not targets:
        raise ValueError("the rows have no targets: there is no loss")
    return total / targets


@torch.no_grad()
def loss_by_position(model: Any, batches: Iterable[Batch]) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean loss at each position and the number of targets there, both (T) with T the longest row.

    A position is that of the token that is predicted: of a causal language model, position 0 has no target. The means
    weighted by the numbers are the model's loss; where the number is 0, the mean is nan.

    Raises:
        ValueError: The model does not predict tokens one by one.
    """
    decoding = getattr(model.config, "decoding", "autoregressive")
    if not hasattr(model, "lm_head") or DECODING_CHOICES[decoding].is_parallel:
        raise ValueError(f"{type(model).__name__} (decoding={decoding!r}) has no loss of each token by its position")
    shift = int(model.predicts_next_token)
    sums: list[np.ndarray] = []
    counts: list[np.ndarray] = []
    for batch in batches:
        logits = logits_of(model(**batch))
        targets = model.targets(batch["labels"])  # (B, T)
        losses = nn.functional.cross_entropy(
            logits.double().transpose(1, 2), targets, reduction="none", ignore_index=IGNORE_INDEX
        )
        for found, values in ((sums, losses), (counts, targets != IGNORE_INDEX)):
            per_position = values.sum(dim=0).cpu().numpy()
            found.append(np.concatenate([np.zeros(shift), per_position[: len(per_position) - shift]]))
    longest = max(map(len, sums))
    total, count = (
        np.sum([np.pad(part, (0, longest - len(part))) for part in parts], axis=0) for parts in (sums, counts)
    )
    with np.errstate(invalid="ignore"):
        return total / count, count.astype(int)


def position_losses(example: Example) -> list[Drawing]:
    """Draw the loss over the positions."""
    if not example.rows:
        raise NotApplicable("it needs held-out rows (--rows)")
    try:
        means, counts = loss_by_position(example.model, example.rows)
    except ValueError as error:
        raise NotApplicable(str(error)) from error
    found = np.flatnonzero(counts)
    total = np.nansum(means * counts) / counts.sum()
    caption = f"Mean over all {counts.sum():,} tokens: {total:.4f}, a perplexity of {np.exp(total):.1f}."
    figure = curves({"loss": means[found]}, found, "Loss by position", axes=("mean loss of a token", "position"))
    rows = [[int(position), number(means[position]), int(counts[position])] for position in found]
    return [Drawing("loss_by_position", caption, figure, ("position", "loss", "tokens"), rows)]
