"""How a model distinguishes positions: similarity of position vectors, rotation and bias over distance.

Shape letters: P positions, D model width, H heads, K head width, N patches.
"""

from typing import Any

import numpy as np
import torch
from torch import nn

from vanillaformer.configuration.options import POSITION_CHOICES
from vanillaformer.modeling.parts.position_schemes import Grid, GridBias, GridRotaryPositions
from vanillaformer.modeling.parts.positions import PositionTable, RotaryPositions, no_rotation
from vanillaformer.modeling.stack import Stack

from .examples import Example
from .pictures import Drawing, NotApplicable, curves, large_map, map_grid, needed, table
from .recording import stacks

LONGEST_DISTANCE = 128
PLANES = 4  # planes of a rotation that are drawn, besides the mean of all


def table_similarity(stack: Stack) -> np.ndarray:
    """Return the cosine similarity of every two rows of a position table, trained or sinusoidal, (P, P)."""
    scheme: Any = stack.embeddings.positions
    if not isinstance(scheme, PositionTable):
        raise NotApplicable("the stack has no position table")
    return cosines(scheme.rows()[-scheme.max_length :]).cpu().numpy()


def cosines(vectors: torch.Tensor) -> torch.Tensor:
    """Return the cosine similarity of every two vectors, (P, D) → (P, P)."""
    unit = nn.functional.normalize(vectors.detach().float(), dim=-1)
    return unit @ unit.T


@torch.no_grad()
def position_similarity(model: Any) -> torch.Tensor:
    """Return the cosine similarity of every two patches' position vectors (ViT, Dosovitskiy et al. 2021, figure 7).

    Shapes: → (rows, columns, rows, columns): the first two name a patch, the others those it is compared with.
    """
    config, embeddings = model.config, model.base_model.embeddings
    nothing = torch.zeros(1, config.num_positions, config.hidden_size, device=model.device, dtype=model.dtype)
    vectors = embeddings.add_positions(nothing, config.grid)[0, config.num_placed_tokens :]  # (N, D)
    if not vectors.any():
        scheme = config.position_embedding_type
        raise NotApplicable(f"position_embedding_type={scheme!r}: the model adds no position vectors")
    return cosines(vectors).unflatten(1, config.grid).unflatten(0, config.grid)


@torch.no_grad()
def rotary_cosines(stack: Stack, length: int = LONGEST_DISTANCE) -> dict[str, np.ndarray]:
    """Return by type of layer the cosine of each plane's rotation over a distance from 0 on, (P, K/2).

    A query and an equal key at this distance have this product in the plane, relative to that at distance 0 (Su et al.
    2021).
    """
    scheme, config = stack.embeddings.positions, stack.config
    x = torch.zeros(1, length, config.hidden_size, device=stack.device)
    found = {}
    for layer_type, (cos, sin) in scheme.position_embeddings(x, torch.arange(length, device=x.device)[None]).items():
        both = torch.stack([cos, sin])[:, 0, 0].double()  # (2, P, K)
        planes = both[..., ::2] if config.rope_interleaved else both.chunk(2, dim=-1)[0]
        first = planes[:, :1]
        found[layer_type] = ((planes * first).sum(dim=0) / (first * first).sum(dim=0)).cpu().numpy()
    return found


@torch.no_grad()
def grid_rotary_similarity(model: Any) -> np.ndarray:
    """Return the mean cosine of the planes' rotation between every two patches, (rows, columns, rows, columns)."""
    config, scheme = model.config, model.base_model.embeddings.positions
    x = torch.zeros(1, 1, config.hidden_size, device=model.device)
    cos, sin = next(iter(scheme.position_embeddings(x, Grid(config.grid[0], config.grid[1], 0)).values()))
    both = torch.cat([cos, sin], dim=-1)[0, 0].double()  # (N, 2 K)
    found = both @ both.T / cos.shape[-1]
    return found.unflatten(1, config.grid).unflatten(0, config.grid).cpu().numpy()


@torch.no_grad()
def bias_over_distance(stack: Stack, length: int = LONGEST_DISTANCE) -> tuple[np.ndarray, np.ndarray]:
    """Return distances (P), key minus query, and what is added to the scores there by each table and head, (L', H, P).

    ALiBi and T5's relative bias; L' is 1 where all layers share a table. A causal stack has no positive distances.
    """
    scheme = stack.embeddings.positions
    distances = torch.arange(1 - length, 1 if stack.is_causal else length, device=stack.device)
    x = torch.zeros(1, 1, stack.config.hidden_size, device=stack.device)
    origin, tables = distances.new_zeros(1), sorted({scheme.table_index(layer) for layer in range(len(stack.layers))})
    biases = [scheme.score_bias(x, origin, distances, index)[0, :, 0].float().cpu().numpy() for index in tables]
    return distances.cpu().numpy(), np.stack(biases)


def grid_bias(stack: Stack) -> list[np.ndarray]:
    """Return what is added to the scores over the distance in rows and columns, (H, 2 rows - 1, 2 columns - 1) each.

    One for each table: BEiT's relative bias of the whole grid and Swin's inside windows. The middle is the patch
    itself.
    """
    found = []
    for bias in (module for module in stack.embeddings.positions.modules() if isinstance(module, GridBias)):
        rows, columns = 2 * bias.grid.height - 1, 2 * bias.grid.width - 1
        values = bias.weight[: rows * columns].detach().float().T.unflatten(1, (rows, columns))
        found.append(values.flip(1, 2).cpu().numpy())  # the table counts query minus key
    return found


def positions(example: Example) -> list[Drawing]:
    """Draw how each stack of the model distinguishes positions, only once if both do it in the same way."""
    model = example.model
    drawings: dict[str, Drawing] = {}
    reason = "a recurrent model has no position scheme: it reads one token after another"
    for name, stack in needed(stacks(model), reason).items():
        for drawing in drawings_of(model, stack, name):
            drawings.setdefault(str(drawing.rows), drawing)
    reason = f"position_embedding_type={model.config.position_embedding_type!r}: there is nothing to show"
    return list(needed(drawings, reason).values())


def drawings_of(model: Any, stack: Stack, name: str) -> list[Drawing]:
    """Return the drawings of one stack's position scheme, none if it has nothing to show."""
    scheme = stack.embeddings.positions
    is_image = model.main_input_name == "pixel_values"
    if isinstance(scheme, RotaryPositions):
        return [rotary_drawing(stack, name, kind, values) for kind, values in rotary_cosines(stack).items()]
    if isinstance(scheme, GridRotaryPositions):
        return [grid_drawing(grid_rotary_similarity(model), "Mean cosine of the rotation between two patches")]
    if POSITION_CHOICES[model.config.position_embedding_type].is_biased:
        return grid_bias_drawings(stack) if scheme.on_grid else bias_drawings(stack, name)
    if is_image and (scheme.on_grid or isinstance(scheme, PositionTable)):
        found = position_similarity(model).cpu().numpy()
        return [grid_drawing(found, "Cosine similarity of the positions of two patches")]
    if isinstance(scheme, PositionTable):
        found = table_similarity(stack)
        shown = found[:LONGEST_DISTANCE, :LONGEST_DISTANCE]
        cut = f" (the first {len(shown)} of {len(found)})" if len(shown) < len(found) else ""
        title = f"Cosine similarity of position vectors, {name}{cut}"
        picture = large_map(shown, None, None, title, signed="cosine", axes=("position", "position"))
        near, far = np.diagonal(found, 1).mean(), found[0, -1]
        caption = f"{title}: {near:.2f} for neighbors on average, {far:.2f} for the first and the last"
        return [Drawing(f"positions_{name}", caption, picture, ("position", *range(len(shown))), table(shown))]
    return []


def rotary_drawing(stack: Stack, name: str, layer_type: str, values: np.ndarray) -> Drawing:
    """Draw the cosines of a rotation over distance (P, K/2)."""
    title = f"Cosine of the rotation over distance, {name}, {layer_type.replace('_', ' ')}"
    chosen = np.unique(np.linspace(0, values.shape[1] - 1, PLANES).astype(int))
    lines = {"mean of all planes": values.mean(axis=1), **{f"plane {plane + 1}": values[:, plane] for plane in chosen}}
    layers: Any = stack.layers
    without = [str(index) for index, layer in enumerate(layers) if layer.self_attn.rotate is no_rotation]
    caption = title + (f"; no rotation in layers {', '.join(without)}" if without else "")
    picture = curves(lines, range(len(values)), title, axes=("cosine", "distance in tokens"))
    header = ("distance", *(f"plane {plane + 1}" for plane in range(values.shape[1])))
    return Drawing(f"positions_{name}_{layer_type}", caption, picture, header, table(values))


def bias_drawings(stack: Stack, name: str) -> list[Drawing]:
    """Draw what each head adds to its scores over distance, a picture for each table."""
    distances, tables = bias_over_distance(stack)
    drawings = []
    for number, values in enumerate(tables):
        which = f", layer {number}" if len(tables) > 1 else ""
        title = f"Bias of attention scores over distance, {name}{which}"
        rows = [(distance, *row) for distance, row in zip(distances, values.T)]
        heads = [f"head {head}" for head in range(len(values))]
        picture = curves(dict(zip(heads, values)), distances, title, axes=("bias", "distance, key minus query"))
        caption = f"{title}: from {values.min():.3g} to {values.max():.3g}"
        drawings.append(Drawing(f"positions_{name}_{number}", caption, picture, ("distance", *heads), rows))
    return drawings


def grid_drawing(values: np.ndarray, title: str) -> Drawing:
    """Draw a number for every two patches, a map for each patch: (rows, columns, rows, columns)."""
    rows = table(values.reshape(*values.shape[:2], -1))
    header = ("row", "column", *(f"{row},{column}" for row, column in np.ndindex(values.shape[2:])))
    picture = map_grid(values, title, signed="cosine", axes=("row of the patch", "column of the patch"))
    return Drawing("positions", f"{title}: a map for each patch, at its place in the image", picture, header, rows)


def grid_bias_drawings(stack: Stack) -> list[Drawing]:
    """Draw what each head adds to its scores over the distance in rows and columns, a picture for each table."""
    drawings = []
    for number, values in enumerate(tables := grid_bias(stack)):
        which = f", layer {number}" if len(tables) > 1 else ""
        title = f"Bias of attention scores by rows and columns to the key{which}"
        height, width = (side // 2 for side in values.shape[1:])
        rows = [(head, row - height, column - width, value) for (head, row, column), value in np.ndenumerate(values)]
        picture = map_grid(values[None], title, signed="bias", axes=("", "head"))
        header = ("head", "rows to the key", "columns to the key", "bias")
        caption = f"{title}: from {values.min():.3g} to {values.max():.3g}, the patch itself in the middle"
        drawings.append(Drawing(f"positions_{number}", caption, picture, header, rows))
    return drawings
