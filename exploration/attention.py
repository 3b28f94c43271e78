"""What heads attend to: maps, entropy and distance of attention.

Shape letters: B batch, T query length, S key length, H heads, L layers.
"""

import numpy as np
import torch

from .examples import Example
from .pictures import LONGEST, Drawing, NotApplicable, large_map, map_grid, number
from .recording import Recording

KINDS = {
    "encoder": "self-attention of the encoder",
    "decoder": "self-attention of the decoder",
    "cross": "cross-attention",
}
"""The kinds of attention."""


def attention_arrays(recording: Recording) -> dict[str, np.ndarray]:
    """Return the probabilities of the first row of the batch by kind, (L, H, T, S) each.

    Raises:
        NotApplicable: The model has no attention, or windows or layers with different tokens.
    """
    found = {}
    for kind, layers in recording.attentions.items():
        if len({layer.shape for layer in layers}) != 1 or len(layers[0]) != len(batch_of(recording)):
            raise NotApplicable("the model attends inside of windows, or has stages: no map has all of its patches")
        found[kind] = torch.stack([layer[0] for layer in layers]).float().cpu().numpy()
    if not found:
        raise NotApplicable("the model has no attention")
    return found


def batch_of(recording: Recording) -> torch.Tensor:
    """Return the tensor of inputs whose rows are those of the batch."""
    return recording.inputs[recording.model.main_input_name]


def entropy(probabilities: torch.Tensor) -> torch.Tensor:
    """Return the entropy `-Σ p log p` of each distribution over keys in nats, (..., S) → (...).

    It is 0 where a head looks at one token and log S where it looks at all alike.
    """
    return torch.special.entr(probabilities.float()).sum(dim=-1)


def mean_distance(probabilities: torch.Tensor, distances: torch.Tensor) -> torch.Tensor:
    """Return the mean distance that each query attends over, `Σ p d` (ViT, Dosovitskiy et al. 2021, figure 7).

    Args:
        probabilities: (..., T, S).
        distances: From each query to each key (T, S); NaN for pairs that have none, which are left out.

    Shapes: → (..., T), NaN for a query without any distance.
    """
    known = ~distances.isnan()
    weights = probabilities.float() * known
    return (weights * distances.nan_to_num()).sum(dim=-1) / weights.sum(dim=-1).where(known.any(dim=-1), torch.nan)


def attention_maps(example: Example) -> list[Drawing]:
    """Draw every map of attention, and the mean of the heads of the last layer with its tokens."""
    drawings = []
    for kind, maps in attention_arrays(example.recording).items():
        rows, columns = axis_names(example, kind)
        length = max(len(rows), len(columns))
        cut = f"; the first {LONGEST} of {length} tokens" if length > LONGEST else ""
        maps, rows, columns = maps[..., :LONGEST, :LONGEST], rows[:LONGEST], columns[:LONGEST]
        title = f"{KINDS[kind]}{cut}"
        numbers = [
            (layer + 1, head + 1, row, *map(number, maps[layer, head, at]))
            for layer, head in np.ndindex(maps.shape[:2])
            for at, row in enumerate(rows)
        ]
        drawings.append(
            Drawing(f"attention_{kind}", title, map_grid(maps, title), ("layer", "head", "token", *columns), numbers)
        )
        mean, title = maps[-1].mean(axis=0), f"{KINDS[kind]}, last layer, mean of the heads{cut}"
        numbers = [(row, *map(number, values)) for row, values in zip(rows, mean)]
        picture = large_map(mean, rows, columns, title)
        drawings.append(Drawing(f"attention_{kind}_last", title, picture, ("token", *columns), numbers))
    return drawings


def axis_names(example: Example, kind: str) -> tuple[list[str], list[str]]:
    """Return the names of the tokens that attend and of those attended to, in cross-attention the predicted ones."""
    if kind == "cross":
        return example.predicted, example.tokens["encoder"]
    return example.tokens[kind], example.tokens[kind]
