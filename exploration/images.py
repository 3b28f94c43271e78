"""Attention of an image model's pooled vector, and attention roll-out, over the patches.

Shape letters: B batch, L layers, H heads, T tokens, N patches.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from .examples import Example
from .pictures import Drawing, NotApplicable, map_grid, number
from .recording import Recording, record


def attention_rollout(attentions: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return how much of each token's last state comes from each input token: `Π (A + I) / 2` over the layers.

    A is the mean of a layer's heads, and I stands for the residual connection (Abnar and Zuidema 2020, arXiv
    2005.00928). Every row sums to 1.

    Args:
        attentions: The probabilities of each layer, first to last, L of (B, H, T, T).

    Shapes: L of (B, H, T, T) → (B, T, T).
    """
    rollout = torch.eye(attentions[0].shape[-1], device=attentions[0].device)
    identity = rollout
    for probabilities in attentions:
        rollout = (probabilities.float().mean(dim=1) + identity) / 2 @ rollout
    return rollout


def image_rollout(model: Any, pixel_values: torch.Tensor, **options: Any) -> torch.Tensor:
    """Return how much of a model's pooled vector comes from each patch, the heat map of attention roll-out.

    It is the class token's row of `attention_rollout`, or the mean of the patches' rows where those are pooled. The
    rest, up to 1, comes from the tokens before the patches.

    Args:
        model: An image model of this package, with a head or without; it attends eagerly meanwhile.
        pixel_values: Images (B, C, height, width).
        **options: Passed on to the model, such as `interpolate_pos_encoding`.

    Shapes: (B, C, height, width) → (B, rows, columns).

    Raises:
        NotApplicable: The model attends inside of windows, or has several stages: its layers do not have the same
            tokens.
    """
    check_meeting(model.config)
    recording = record(model, {"pixel_values": pixel_values, **options})
    return over_patches(recording, attention_rollout(recording.attentions["encoder"]))


def pooled_attention(recording: Recording) -> torch.Tensor:
    """Return what the pooled vector's tokens attend to among the patches, (B, L, H, rows, columns).

    Raises:
        NotApplicable: As `image_rollout`.
    """
    check_meeting(recording.model.config)
    return over_patches(recording, torch.stack(recording.attentions["encoder"], dim=1).float())


def check_meeting(config: Any) -> None:
    """Raise `NotApplicable` for a model in which not all patches meet in every layer, or that has none."""
    if config.model_type != "vanilla_image_encoder":
        raise NotApplicable("only image models have patches")
    for name, one in (("window_size", config.window_size), ("depths", len(config.depths or [0]) > 1)):
        if one:
            raise NotApplicable(f"{name}={getattr(config, name)}: roll-out needs layers in which all patches meet")


def over_patches(recording: Recording, weights: torch.Tensor) -> torch.Tensor:
    """Return the pooled tokens' mean row of weights over the patches, (..., T, T) → (..., rows, columns)."""
    config = recording.model.config
    first = config.num_prefix_tokens
    rows = weights[..., :1, first:] if "first" in config.image_pooling else weights[..., first:, first:]
    height, width = (side // config.patch_size for side in recording.inputs["pixel_values"].shape[-2:])
    return rows.mean(dim=-2).unflatten(-1, (height, width))


def rollout(example: Example) -> list[Drawing]:
    """Draw attention roll-out over the picture, and the attention of the pooled vector in every head."""
    check_meeting(example.model.config)
    recording = example.recording
    found = over_patches(recording, attention_rollout(recording.attentions["encoder"]))[0].cpu().numpy()
    pooled = pooled_attention(recording)[0].cpu().numpy()
    panels = {"roll-out": found, "attention of the last layer": pooled[-1].mean(axis=0)}
    title = "What the pooled vector is made of"
    rows = [
        (row, column, *(number(values[row, column]) for values in panels.values()))
        for row, column in np.ndindex(found.shape)
    ]
    row, column = np.unravel_index(found.argmax(), found.shape)
    caption = (
        f"{title}: roll-out gives {found.sum():.0%} to the patches, the most to that in row {row}, column "
        f"{column} ({found.max() / found.mean():.1f} times the mean)"
    )
    picture = over_picture(recording.inputs["pixel_values"][0], panels, title)
    heads = "Attention of the pooled vector over the patches, every layer and head"
    numbers = [
        (layer, head, *map(number, pooled[layer, head].ravel())) for layer, head in np.ndindex(pooled.shape[:2])
    ]
    header = ("layer", "head", *(f"{row},{column}" for row, column in np.ndindex(found.shape)))
    return [
        Drawing("rollout", caption, picture, ("row", "column", *panels), rows),
        Drawing("rollout_heads", heads, map_grid(pooled, heads), header, numbers),
    ]


def over_picture(pixels: torch.Tensor, panels: dict[str, np.ndarray], title: str) -> Figure:
    """Draw an image (C, height, width) as the model sees it, and maps of its patches over it."""
    image = pixels.float().cpu().numpy().transpose(1, 2, 0)
    image = (image - image.min()) / max(np.ptp(image), 1e-6)  # undoes the processor's normalization but for its scale
    gray = image.mean(axis=-1)
    figure = Figure(figsize=(3 * (1 + len(panels)), 3.4), layout="constrained")
    plots = figure.subplots(1, 1 + len(panels))
    shown = image if image.shape[-1] == 3 else gray
    plots[0].imshow(shown, cmap="gray")
    plots[0].set_title("input", fontsize=9)
    for plot, (name, values) in zip(plots[1:], panels.items()):
        plot.imshow(gray, cmap="gray", vmin=-0.5, vmax=1.5)
        height, width = gray.shape
        heat = plot.imshow(values, cmap="viridis", alpha=0.65, vmin=0, extent=(-0.5, width - 0.5, height - 0.5, -0.5))
        bar = figure.colorbar(heat, shrink=0.7, aspect=15)
        bar.ax.tick_params(labelsize=7)
        plot.set_title(name, fontsize=9)
    for plot in plots:
        plot.set_axis_off()
    figure.suptitle(title, fontsize=10)
    return figure
