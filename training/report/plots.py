"""Pictures of a run: learning curves, confusion matrix, images that a model takes for others or completes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font

from vanillaformer.console.drawing import save_figure

from ..metrics.scores import ENTRIES

NUMBERED = 40  # most classes of a picture with numbers in it
CONFUSED, COLUMNS = 24, 6  # images of the picture of errors, and those in a row
RECONSTRUCTED = 8
TITLE = 24  # most characters of the names of two classes


def loss_curve(log_history: Sequence[dict[str, Any]], path: Path) -> Path:
    """Draw training and validation loss, and the validation score, over the steps."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot(xlabel="step", ylabel="loss (log scale)", yscale="log")
    for name, label in (("loss", "training loss"), ("eval_loss", "validation loss")):
        if points := curve(log_history, name):
            axes.plot(*zip(*points), label=label, marker="." if name == "eval_loss" else None)
    score = next((score for score in ENTRIES if score.drawn and curve(log_history, f"eval_{score.name}")), None)
    if score is not None:
        right = axes.twinx()
        right.plot(*zip(*curve(log_history, f"eval_{score.name}")), color="tab:green", marker=".", label=score.label)
        right.set_ylabel(score.label)
    axes.grid(alpha=0.3)
    if axes.lines:
        figure.legend(loc="outside upper center", ncols=3, frameon=False)
    return save_figure(figure, path)


def confusion_picture(matrix: np.ndarray, names: Sequence[str], path: Path, *, title: str = "") -> Path:
    """Draw how often each class (row) was taken for each (column): colors are shares of the row, numbers are rows.

    The matrix has the counts (C, C). More than `NUMBERED` classes have no numbers; the picture does not grow beyond
    them. A class whose name the font lacks is shown by its number.
    """
    shares = matrix / np.maximum(matrix.sum(axis=1), 1)[:, None]
    size = 2.5 + 0.45 * min(len(names), NUMBERED)
    figure = Figure(figsize=(size + 1, size), layout="constrained")
    axes = figure.add_subplot(xlabel="predicted", ylabel="reference", title=title)
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    ticks = [_drawn(str(name), f"class {number}", 40) for number, name in enumerate(names)]
    font = 8 if len(names) <= NUMBERED else 5
    axes.set_xticks(range(len(names)), ticks, rotation=90, fontsize=font)
    axes.set_yticks(range(len(names)), ticks, fontsize=font)
    for (row, column), count in np.ndenumerate(matrix if len(names) <= NUMBERED else np.empty((0, 0))):
        color = "white" if shares[row, column] > 0.5 else "black"
        number = axes.text(column, row, str(count), ha="center", va="center", fontsize=7, color=color)
        number.set_in_layout(False)  # it lies inside the axes: looking for room for it takes most of the time
    figure.colorbar(image, label="share of the reference's rows")
    return save_figure(figure, path)


def confused_picture(
    folder: Path,
    rows: Dataset,
    size: tuple[int, int],
    labels: np.ndarray,
    probabilities: np.ndarray,
    names: Mapping[int, str],
) -> Path | None:
    """Draw the images that a classifier is surest of, and wrong about, as `confused_images.png`; none without errors.

    Rows have `pixel_values` of a height and width, labels (N), and probabilities of all named classes (N, C).
    """
    path = folder / "confused_images.png"
    path.unlink(missing_ok=True)
    chosen = probabilities.argmax(axis=1)
    wrong = np.flatnonzero(chosen != labels)
    wrong = wrong[np.argsort(-probabilities[wrong].max(axis=1), kind="stable")][:CONFUSED]
    if not len(wrong):
        return None
    from vanillaformer.data.preprocessing.images import unpacked  # which only tasks of images need

    images = unpacked(rows.select(wrong)["pixel_values"], size).permute(0, 2, 3, 1)
    short = {number: _drawn(name, "?", TITLE // 2) for number, name in names.items()}
    titles = [f"{short[labels[row]]} → {short[chosen[row]]}\n{probabilities[row].max():.0%}" for row in wrong]
    return draw_images([images.numpy()], path, [titles], columns=COLUMNS, title="reference → prediction")


def write_reconstructions(folder: Path, trainer: Any, rows: Dataset) -> None:
    """Draw some images, what a masked image model saw of them, and what it made of it: `reconstructions.png`."""
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
    """Draw rows of images (N, H, W, C), more than `columns` continued below, with titles of the first ones."""
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
                axes.set_title(texts[number], fontsize=7)
    figure.suptitle(title, fontsize=9)
    return save_figure(figure, path)


def _drawn(name: str, other: str, width: int) -> str:
    """Return the beginning of a name as matplotlib draws it, or `other` if the font lacks one of its characters."""
    glyphs = get_font(findfont("DejaVu Sans")).get_charmap()
    known = all(ord(character) in glyphs for character in name)
    return shorten(name if known else other, width, placeholder=" ...").replace("$", "\\$")


def curve(log_history: Sequence[dict[str, Any]], name: str) -> list[tuple[int, float]]:
    return sorted({entry["step"]: float(entry[name]) for entry in log_history if name in entry}.items())
