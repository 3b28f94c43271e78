"""Pictures of images: those that a classifier takes for another class, and what a masked image model makes of some."""

from collections.abc import Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from matplotlib.figure import Figure

from vanillaformer.console.drawing import drawable, save_figure
from vanillaformer.data.preprocessing.images import unpacked

CONFUSED, COLUMNS = 24, 6
"""Images of the picture of errors, and those in a row."""
RECONSTRUCTED = 8
TITLE = 24
"""Most characters of the names of two classes."""


def confused_picture(
    folder: Path,
    rows: Dataset,
    size: tuple[int, int],
    labels: np.ndarray,
    probabilities: np.ndarray,
    names: Sequence[str],
) -> Path | None:
    """Draw the images that a classifier is surest of, and wrong about: `confused_images.png`; none without errors.

    Args:
        folder: Folder of the picture.
        rows: Rows with `pixel_values`.
        size: Height and width of an image.
        labels: Their classes (N).
        probabilities: The probabilities of all classes (N, C).
        names: The names of the classes.
    """
    path = folder / "confused_images.png"
    path.unlink(missing_ok=True)
    chosen = probabilities.argmax(axis=1)
    wrong = np.flatnonzero(chosen != labels)
    wrong = wrong[np.argsort(-probabilities[wrong].max(axis=1), kind="stable")][:CONFUSED]
    if not len(wrong):
        return None
    images = unpacked(rows.select(wrong)["pixel_values"], size).permute(0, 2, 3, 1)
    titles = [
        f"{_short(names[labels[row]])} → {_short(names[chosen[row]])}\n{probabilities[row].max():.0%}" for row in wrong
    ]
    return draw_images([images.numpy()], path, [titles], columns=COLUMNS, title="reference → prediction")


def write_reconstructions(folder: Path, trainer: Any, rows: Dataset) -> None:
    """Draw some images, what a masked image model saw of them, and what it made of it: `reconstructions.png`.

    Args:
        folder: Folder of the picture.
        trainer: The trainer, whose collator hides patches.
        rows: Rows with `pixel_values`.
    """
    if not trainer.is_world_process_zero() or trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
        return
    model, collator = trainer.accelerator.unwrap_model(trainer.model), trainer.data_collator
    model.eval()
    with collator.evaluation(), torch.inference_mode():
        batch = collator(rows.select(range(min(RECONSTRUCTED, len(rows)))).to_list())
        inputs = {name: value.to(model.device) for name, value in batch.items() if name != "labels"}
        made = model(**inputs).reconstruction.float().cpu()
    images, hidden = batch["pixel_values"], collator.pixel_mask(batch["bool_masked_pos"])[:, None]
    seen, filled = images.masked_fill(hidden, 0.0), torch.where(hidden, made, images)
    shown = [collator.colors(each) for each in (images, seen, filled)]
    titles = [["image"], ["what it sees"], ["what it makes of it"]]
    draw_images(shown, folder / "reconstructions.png", titles, columns=len(images))


def draw_images(
    rows: Sequence[np.ndarray], path: Path, titles: Sequence[Sequence[str]], *, columns: int, title: str = ""
) -> Path:
    """Draw rows of images.

    Args:
        rows: Images (N, H, W, C) of each row; more than `columns` are continued below.
        path: The picture to write.
        titles: Titles of the first images of each row.
        columns: Images side by side.
        title: Shown above.
    """
    lines = sum(-(-len(images) // columns) for images in rows)
    figure = Figure(figsize=(1.3 * columns, 1.55 * lines + 0.3), layout="constrained")
    grid = iter(figure.subplots(lines, columns, squeeze=False).flat)
    for images, texts in zip(rows, titles):
        for number in range(-(-len(images) // columns) * columns):
            axes = next(grid)
            axes.set_axis_off()
            if number < len(images):
                axes.imshow(images[number])
            if number < min(len(images), len(texts)):
                axes.set_title(texts[number].replace("$", "\\$"), fontsize=7)
    figure.suptitle(title, fontsize=9)
    return save_figure(figure, path)


def _short(name: str) -> str:
    return shorten(drawable(name, "?"), TITLE // 2, placeholder="...")
