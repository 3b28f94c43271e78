"""Attention of heads: maps, entropy and distance.

Shape letters: B batch, T query length, S key length, H heads, L layers.
"""

from collections.abc import Iterable

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from vanillaformer.modeling.parts.grid_positions import Grid

from .examples import Example
from .pictures import LONGEST, Drawing, NotApplicable, counted, heat_map, large_map, map_grid, number
from .recording import Recording

KINDS = {
    "encoder": "self-attention of the encoder",
    "decoder": "self-attention of the decoder",
    "cross": "cross-attention",
    "copy": "copying from the source",
}
"""The kinds of attention."""
TO_SOURCE = ("cross", "copy")


def attention_arrays(recording: Recording) -> dict[str, np.ndarray]:
    """Return the probabilities of the first row of the batch by kind, (L, H, T, S) each.

    Raises:
        NotApplicable: The model has no attention, or windows or layers with different tokens.
    """
    found = {}
    for kind, layers in with_attention(recording).items():
        batch = recording.inputs[recording.model.main_input_name]
        if len({layer.shape[2:] for layer in layers}) != 1 or len(layers[0]) != len(batch):
            raise NotApplicable("the model attends inside of windows, or has stages: no map has all of its patches")
        found[kind] = torch.stack([layer[0] for layer in layers]).float().cpu().numpy()
    return found


def with_attention(recording: Recording) -> dict[str, tuple[torch.Tensor, ...]]:
    """Return the kinds of attention that a model has.

    Raises:
        NotApplicable: It has none.
    """
    if not recording.attentions:
        raise NotApplicable("the model has no attention")
    return recording.attentions


def entropy(probabilities: torch.Tensor) -> torch.Tensor:
    """Return the entropy `-Σ p log p` of each distribution over keys in nats, (..., S) → (...).

    It is 0 where a head looks at one token and log S where it looks at all alike.
    """
    return torch.special.entr(probabilities.float()).sum(dim=-1)


def mean_distance(probabilities: torch.Tensor, distances: torch.Tensor) -> torch.Tensor:
    """Return the mean distance that each query attends over, `Σ p d / Σ p` (ViT, Dosovitskiy et al. 2021, figure 7).

    Args:
        probabilities: (..., T, S).
        distances: From each query to each key (T, S); NaN for pairs that have none, which are left out.

    Shapes: → (..., T), NaN for a query without any distance.
    """
    weights = probabilities.float() * ~distances.isnan()
    return (weights * distances.nan_to_num()).sum(dim=-1) / weights.sum(dim=-1)


def head_entropies(recording: Recording) -> dict[str, np.ndarray]:
    """Return the mean entropy over the queries of each head by kind, (L, H), NaN where a layer lacks one.

    The rows of the batch must have no padding.
    """
    return {kind: per_head(map(entropy, layers)) for kind, layers in with_attention(recording).items()}


def uniform_entropies(recording: Recording) -> dict[str, float]:
    """Return by kind the entropy that heads would have if they looked at all tokens that they may, alike."""
    return {
        kind: float(np.mean([float((layer > 0).sum(dim=-1).float().log().mean()) for layer in layers]))
        for kind, layers in with_attention(recording).items()
    }


def head_distances(recording: Recording) -> dict[str, np.ndarray]:
    """Return the mean distance over the queries of each head by kind of self-attention, (L, H).

    The distance is that of tokens in the text, or of patches in the image in units of a patch; tokens before the
    patches have none.

    Raises:
        NotApplicable: The model has no self-attention.
    """
    found = {}
    for kind, layers in recording.attentions.items():
        if kind not in TO_SOURCE:
            tables = (distances.to(layers[0].device) for distances in token_distances(recording, kind))
            found[kind] = per_head(map(mean_distance, layers, tables))
    if not found:
        raise NotApplicable("the model has no self-attention")
    return found


def per_head(layers: Iterable[torch.Tensor]) -> np.ndarray:
    """Return the mean over rows and queries of each head's numbers, L of (B, H, T) → (L, H); NaN fills up stages."""
    means = [layer.nanmean(dim=(0, 2)).float() for layer in layers]
    return pad_sequence(means, batch_first=True, padding_value=torch.nan).cpu().numpy()


def token_distances(recording: Recording, kind: str) -> list[torch.Tensor]:
    """Return the distance between every two tokens in each layer, (T, T)."""
    layers, config = recording.attentions[kind], recording.model.config
    if "pixel_values" in recording.inputs:
        stages = [stage for stage in config.stages for _ in range(stage.depth)]
        areas = [stage.window for stage in stages]
        if config.window_size is None and len(config.stages) == 1:  # the image may have another size than the config's
            height, width = recording.inputs["pixel_values"].shape[-2:]
            areas = [(height // config.patch_size, width // config.patch_size)] * len(layers)
        return [grid_distances(Grid(rows, columns, config.num_prefix_tokens)) for rows, columns in areas]
    positions = torch.arange(layers[0].shape[-1], dtype=torch.float)
    return [(positions[:, None] - positions).abs()] * len(layers)


def grid_distances(grid: Grid) -> torch.Tensor:
    """Return the distance between every two tokens of an image in patches, (T, T), NaN for those before them."""
    points = grid.coordinates().float()
    return torch.nn.functional.pad(torch.cdist(points, points), (grid.prefix, 0, grid.prefix, 0), value=torch.nan)


def attention_maps(example: Example) -> list[Drawing]:
    """Draw every map of attention, and the mean of the heads of the last layer with its tokens."""
    drawings = []
    for kind, maps in attention_arrays(example.recording).items():
        rows = columns = example.tokens.get(kind, [])
        if kind in TO_SOURCE:
            rows, columns = example.predicted, example.tokens["encoder"]
        length = max(len(rows), len(columns))
        cut = f" (the first {LONGEST} of {length} tokens)" if length > LONGEST else ""
        maps, rows, columns = maps[..., :LONGEST, :LONGEST], rows[:LONGEST], columns[:LONGEST]
        if maps.shape[:2] != (1, 1):
            title = f"{KINDS[kind].capitalize()}, every layer and head{cut}"
            numbers = [
                (layer, head, row, *map(number, maps[layer, head, at]))
                for layer, head in np.ndindex(maps.shape[:2])
                for at, row in enumerate(rows)
            ]
            header = ("layer", "head", "token", *columns)
            drawings.append(Drawing(f"attention_{kind}", title, map_grid(maps, title), header, numbers))
        mean, which = maps[-1].mean(axis=0), "" if maps.shape[:2] == (1, 1) else ", last layer, mean of the heads"
        title = f"{KINDS[kind].capitalize()}{which}{cut}"
        numbers = [(row, *map(number, values)) for row, values in zip(rows, mean)]
        axes = ("predicted token", "source") if kind in TO_SOURCE else ("token that reads", "token that is read")
        picture = large_map(mean, rows, columns, title, axes=axes)
        drawings.append(Drawing(f"attention_{kind}_last", title, picture, ("token", *columns), numbers))
    return drawings


def entropies(example: Example) -> list[Drawing]:
    """Draw the entropy of every head."""
    uniform = uniform_entropies(example.recording)
    return [
        head_map(
            f"entropy_{kind}", values, f"Entropy, {KINDS[kind]}", "nats", f"uniform attention: {uniform[kind]:.2f}"
        )
        for kind, values in head_entropies(example.recording).items()
    ]


def distances(example: Example) -> list[Drawing]:
    """Draw the mean distance of every head."""
    unit = "patches" if "pixel_values" in example.recording.inputs else "tokens"
    return [
        head_map(f"distance_{kind}", values, f"Mean distance, {KINDS[kind]}", unit, "")
        for kind, values in head_distances(example.recording).items()
    ]


def head_map(name: str, values: np.ndarray, title: str, unit: str, remark: str) -> Drawing:
    """Draw a number for every head (L, H); the caption names the heads with the least and the most."""
    extremes = [np.unravel_index(index, values.shape) for index in (np.nanargmin(values), np.nanargmax(values))]
    words = [f"{values[layer, head]:.2f} (layer {layer}, head {head})" for layer, head in extremes]
    caption = f"{title}, from {words[0]} to {words[1]} {unit}" + (f"; {remark}" if remark else "")
    rows = [(layer, head, number(value)) for (layer, head), value in np.ndenumerate(values)]
    picture = heat_map(values, counted(len(values)), counted(values.shape[1]), title, what=unit)
    return Drawing(name, caption, picture, ("layer", "head", unit), rows)
