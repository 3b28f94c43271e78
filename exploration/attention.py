"""Attention of heads: maps, entropy and distance; for image models, what the pooled vector is made of.

Shape letters: B batch, T query length, S key length, H heads, L layers.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase

from vanillaformer.console.drawing import save_figure
from vanillaformer.modeling.parts.position_schemes import Grid

from .examples import Example
from .pictures import LONGEST, Drawing, NotApplicable, counted, heat_map, large_map, map_grid, needed, shortened, table
from .recording import Recording, record

KINDS = {
    "encoder": "self-attention of the encoder",
    "decoder": "self-attention of the decoder",
    "cross": "cross-attention",
    "copy": "copying from the source",
}
TO_SOURCE = ("cross", "copy")
NO_ATTENTION = "the model has no attention"


# --------------------------------------------------------------------------------------------------------- numbers
def attention_arrays(recording: Recording) -> dict[str, np.ndarray]:
    """Return the probabilities of the first row of the batch by kind, (L, H, T, S) each."""
    found = {}
    for kind, layers in needed(recording.attentions, NO_ATTENTION).items():
        batch = recording.inputs[recording.model.main_input_name]
        if len({layer.shape[2:] for layer in layers}) != 1 or len(layers[0]) != len(batch):
            raise NotApplicable("the model attends inside windows, or has stages: no map covers all of its patches")
        found[kind] = torch.stack([layer[0] for layer in layers]).float().cpu().numpy()
    return found


def entropy(probabilities: torch.Tensor) -> torch.Tensor:
    """Return the entropy `-Σ p log p` of each distribution over keys in nats, (..., S) → (...).

    It is 0 if a head attends to a single token, and log S if it attends to all equally.
    """
    return torch.special.entr(probabilities.float()).sum(dim=-1)


def mean_distance(probabilities: torch.Tensor, distances: torch.Tensor) -> torch.Tensor:
    """Return the mean distance that each query attends over, `Σ p d / Σ p` (ViT, Dosovitskiy et al. 2021, figure 7).

    Pairs whose distance (T, S) is NaN are ignored.

    Shapes: (..., T, S), (T, S) → (..., T), NaN for a query without any distance.
    """
    weights = probabilities.float() * ~distances.isnan()
    return (weights * distances.nan_to_num()).sum(dim=-1) / weights.sum(dim=-1)


def head_entropies(recording: Recording) -> dict[str, np.ndarray]:
    """Return the mean entropy over the queries of each head by kind, (L, H), NaN where a layer lacks one.

    The rows of the batch must have no padding.
    """
    return {
        kind: per_head(map(entropy, layers)) for kind, layers in needed(recording.attentions, NO_ATTENTION).items()
    }


def uniform_entropies(recording: Recording) -> dict[str, float]:
    """Return by kind the entropy of heads that attend equally to all tokens they can see."""
    return {
        kind: float(np.mean([float((layer > 0).sum(dim=-1).float().log().mean()) for layer in layers]))
        for kind, layers in needed(recording.attentions, NO_ATTENTION).items()
    }


def head_distances(recording: Recording) -> dict[str, np.ndarray]:
    """Return the mean distance over the queries of each head by kind of self-attention, (L, H).

    Distances are between tokens of a text, or between patches of an image, in patches; tokens before the patches have
    none. Raises `NotApplicable` without self-attention.
    """
    found = {}
    for kind, layers in recording.attentions.items():
        if kind not in TO_SOURCE:
            tables = (distances.to(layers[0].device) for distances in token_distances(recording, kind))
            found[kind] = per_head(map(mean_distance, layers, tables))
    return needed(found, "the model has no self-attention")


def per_head(layers: Iterable[torch.Tensor]) -> np.ndarray:
    """Return the mean over rows and queries of each head's numbers, L of (B, H, T) → (L, H), padded with NaN."""
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


def attention_rollout(attentions: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return how much of each token's last state comes from each input token: `Π (A + I) / 2` over the layers.

    A is the mean of a layer's heads, and I stands for the residual connection (Abnar and Zuidema 2020, arXiv
    2005.00928). Every row sums to 1.

    Shapes: L of (B, H, T, T), the first layer first → (B, T, T).
    """
    rollout = identity = torch.eye(attentions[0].shape[-1], device=attentions[0].device)
    for probabilities in attentions:
        rollout = (probabilities.float().mean(dim=1) + identity) / 2 @ rollout
    return rollout


def image_rollout(model: Any, pixel_values: torch.Tensor, **options: Any) -> torch.Tensor:
    """Return how much of a model's pooled vector comes from each patch, the heat map of attention roll-out.

    It is the class token's row of `attention_rollout`, or the mean of the patches' rows where those are pooled. The
    rest, up to 1, comes from the tokens before the patches.

    The model may have a head, and uses eager attention meanwhile; options such as `interpolate_pos_encoding` are
    passed on to it. Raises `NotApplicable` for windows or stages, where layers do not have the same tokens.

    Shapes: (B, C, height, width) → (B, rows, columns).
    """
    check_global_attention(model.config)
    recording = record(model, {"pixel_values": pixel_values, **options})
    return over_patches(recording, attention_rollout(recording.attentions["encoder"]))


def check_global_attention(config: Any) -> None:
    """Raise `NotApplicable` unless all patches attend to each other in every layer."""
    if config.model_type != "vanilla_image_encoder":
        raise NotApplicable("only image models have patches")
    for name, one in (("window_size", config.window_size), ("depths", len(config.depths or [0]) > 1)):
        if one:
            raise NotApplicable(f"{name}={getattr(config, name)}: roll-out needs attention between all patches")


def over_patches(recording: Recording, weights: torch.Tensor) -> torch.Tensor:
    """Return the pooled tokens' mean row of weights over the patches, (..., T, T) → (..., rows, columns)."""
    config = recording.model.config
    first = config.num_prefix_tokens
    rows = weights[..., :1, first:] if "first" in config.image_pooling else weights[..., first:, first:]
    height, width = (side // config.patch_size for side in recording.inputs["pixel_values"].shape[-2:])
    return rows.mean(dim=-2).unflatten(-1, (height, width))


# --------------------------------------------------------------------------------------------------------- figures
def attention_maps(example: Example) -> list[Drawing]:
    """Draw every map of attention, and the mean of the heads of the last layer with its tokens."""
    drawings = []
    for kind, maps in attention_arrays(example.recording).items():
        rows = columns = example.tokens.get(kind, [])
        axes = "query token", "key token"
        if kind in TO_SOURCE:
            rows, columns, axes = example.predicted, example.tokens["encoder"], ("predicted token", "source")
        name, cut = KINDS[kind].capitalize(), shortened(max(len(rows), len(columns)))
        is_single = maps.shape[:2] == (1, 1)
        maps, rows, columns = maps[..., :LONGEST, :LONGEST], rows[:LONGEST], columns[:LONGEST]
        if not is_single:
            title = f"{name}, every layer and head{cut}"
            numbers = [(layer, head, rows[at], *values) for layer, head, at, *values in table(maps[:, :, : len(rows)])]
            header = ("layer", "head", "token", *columns)
            drawings.append(Drawing(f"attention_{kind}", title, map_grid(maps, title), header, numbers))
        title = f"{name}{'' if is_single else ', last layer, mean of the heads'}{cut}"
        mean = maps[-1].mean(axis=0)
        picture = large_map(mean, rows, columns, title, axes=axes)
        numbers = [(row, *values) for row, values in zip(rows, mean)]
        drawings.append(Drawing(f"attention_{kind}_last", title, picture, ("token", *columns), numbers))
    return drawings


def draw_attention(model: Any, tokenizer: PreTrainedTokenizerBase, text: str, path: Path) -> Path:
    """Draw the cross-attention of the last decoder layer between a text and its translation, the mean of its heads."""
    inputs = tokenizer([text], return_tensors="pt")
    output = model.generate(**inputs, num_beams=1)
    recording = record(model, {**inputs, "decoder_input_ids": output[:, :-1]})
    sides = inputs["input_ids"][0], output[0, 1:]
    source, target = ([str(tokenizer.decode([token])) for token in ids] for ids in sides)
    weights = attention_arrays(recording)["cross"][-1].mean(axis=0)
    title, axes = f"Cross-attention of the last layer: {text}", ("target", "source")
    return save_figure(large_map(weights, target, source, title, axes=axes), path)


def entropies(example: Example) -> list[Drawing]:
    """Draw the entropy of every head."""
    uniform, drawings = uniform_entropies(example.recording), []
    for kind, values in head_entropies(example.recording).items():
        remark = f"; uniform attention: {uniform[kind]:.2f}"
        drawings.append(head_map(f"entropy_{kind}", values, f"Entropy, {KINDS[kind]}", "nats", remark))
    return drawings


def distances(example: Example) -> list[Drawing]:
    """Draw the mean distance of every head."""
    unit = "patches" if "pixel_values" in example.recording.inputs else "tokens"
    return [
        head_map(f"distance_{kind}", values, f"Mean distance, {KINDS[kind]}", unit)
        for kind, values in head_distances(example.recording).items()
    ]


def head_map(name: str, values: np.ndarray, title: str, unit: str, remark: str = "") -> Drawing:
    """Draw a number for every head (L, H); the caption names the heads with the least and the most."""
    extremes = [np.unravel_index(index, values.shape) for index in (np.nanargmin(values), np.nanargmax(values))]
    words = [f"{values[layer, head]:.2f} (layer {layer}, head {head})" for layer, head in extremes]
    caption = f"{title}, from {words[0]} to {words[1]} {unit}{remark}"
    picture = heat_map(values, counted(len(values)), counted(values.shape[1]), title, what=unit)
    return Drawing(name, caption, picture, ("layer", "head", unit), table(values[..., None]))


def rollout(example: Example) -> list[Drawing]:
    """Draw attention roll-out over the picture, and the attention of the pooled vector in every head."""
    recording = example.recording
    check_global_attention(recording.model.config)
    layers = recording.attentions["encoder"]
    pooled = over_patches(recording, torch.stack(layers, dim=1).float())[0].cpu().numpy()  # (L, H, rows, columns)
    found = over_patches(recording, attention_rollout(layers))[0].cpu().numpy()
    panels = {"roll-out": found, "attention of the last layer": pooled[-1].mean(axis=0)}
    title, (row, column) = "What the pooled vector is made of", np.unravel_index(found.argmax(), found.shape)
    caption = (
        f"{title}: roll-out gives {found.sum():.0%} to the patches, the most to that in row {row}, column "
        f"{column} ({found.max() / found.mean():.1f} times the mean)"
    )
    picture = over_picture(recording.inputs["pixel_values"][0], panels, title)
    heads = "Attention of the pooled vector over the patches, every layer and head"
    header = ("layer", "head", *(f"{row},{column}" for row, column in np.ndindex(found.shape)))
    numbers = table(pooled.reshape(*pooled.shape[:2], -1))
    return [
        Drawing("rollout", caption, picture, ("row", "column", *panels), table(np.stack([*panels.values()], -1))),
        Drawing("rollout_heads", heads, map_grid(pooled, heads), header, numbers),
    ]


def over_picture(pixels: torch.Tensor, panels: dict[str, np.ndarray], title: str) -> Figure:
    """Draw an image (C, height, width) as the model sees it, and maps of its patches over it."""
    image = pixels.float().cpu().numpy().transpose(1, 2, 0)
    image = (image - image.min()) / max(np.ptp(image), 1e-6)  # undoes the processor's normalization, except its scale
    gray = image.mean(axis=-1)
    height, width = gray.shape
    figure = Figure(figsize=(3 * (1 + len(panels)), 3.4), layout="constrained")
    plots = figure.subplots(1, 1 + len(panels))
    plots[0].imshow(image if image.shape[-1] == 3 else gray, cmap="gray")
    for plot, values in zip(plots[1:], panels.values()):
        plot.imshow(gray, cmap="gray", vmin=-0.5, vmax=1.5)
        heat = plot.imshow(values, cmap="viridis", alpha=0.65, vmin=0, extent=(-0.5, width - 0.5, height - 0.5, -0.5))
        figure.colorbar(heat, shrink=0.7, aspect=15).ax.tick_params(labelsize=7)
    for plot, name in zip(plots, ("input", *panels)):
        plot.set_title(name, fontsize=9)
        plot.set_axis_off()
    figure.suptitle(title, fontsize=10)
    return figure
