"""Scores that a model of images has to beat."""

from collections.abc import Callable
from typing import Any

import numpy as np
from datasets import Dataset

from vanillaformer.data.arrow_files import batch_size
from vanillaformer.data.images import CHANNELS

from ..metrics.scores import functions_of

AT_ONCE = 100
"""Images whose hidden patches are compared together."""
FEATURES = 3_072
"""Pixels that the linear classifier looks at; of larger images every second, third ... in both directions."""
RIDGE = 0.01
"""Weight of the squared coefficients of the linear classifier, by training image."""

Scorer = Callable[[Dataset], dict[str, float]]


def nearest_mean(data: Any) -> Scorer:
    """Return the scores of taking the class whose mean training image is the nearest (Rocchio)."""
    classes = data.texts.features["label"].num_classes
    sums, counts = 0.0, np.zeros(classes)
    for pixels, labels in _batches(data.texts):
        members = np.eye(classes)[labels]  # (B, C)
        sums, counts = sums + members.T @ pixels, counts + members.sum(axis=0)
    means = sums / np.maximum(counts, 1)[:, None]
    offsets = np.where(counts > 0, (means**2).sum(axis=1), np.inf)
    return _scorer(lambda pixels: (offsets - 2 * pixels @ means.T).argmin(axis=1))


def linear_on_pixels(data: Any) -> Scorer:
    """Return the scores of ridge regression on the pixels: the class with the largest value of `W x + b`."""
    classes = data.texts.features["label"].num_classes
    covariance: Any = 0.0
    cross: Any = 0.0
    count = 0
    for pixels, labels in _batches(data.texts):
        inputs = _with_one(pixels)
        covariance, cross = covariance + inputs.T @ inputs, cross + inputs.T @ np.eye(classes)[labels]
        count += len(labels)
    weights = np.linalg.solve(covariance + RIDGE * count * np.eye(len(covariance)), cross)
    return _scorer(lambda pixels: (_with_one(pixels) @ weights).argmax(axis=1))


def mean_image(data: Any) -> Scorer:
    """Return the loss of predicting, for every hidden pixel, its mean in the training images."""
    sums, count = 0.0, 0
    for pixels, _ in _batches(data.texts):
        sums, count = sums + pixels.sum(axis=0), count + len(pixels)
    collator = data.collator
    mean = collator.normalized(((np.asarray(sums) / count * 255).round().astype(np.uint8)).tobytes())

    def score(rows: Dataset) -> dict[str, float]:
        total, hidden = 0.0, 0
        with collator.evaluation():
            for start in range(0, len(rows), AT_ONCE):
                batch = collator(rows.select(range(start, min(start + AT_ONCE, len(rows)))).to_list())
                mask = collator.pixel_mask(batch["bool_masked_pos"])  # (B, H, W)
                differences = (batch["pixel_values"] - mean).abs().mean(dim=1)
                total, hidden = total + differences[mask].sum().item(), hidden + int(mask.sum())
        return {"loss": total / hidden}

    return score


def _scorer(choose: Callable[[np.ndarray], np.ndarray]) -> Scorer:
    def score(rows: Dataset) -> dict[str, float]:
        pairs = [(choose(pixels), labels) for pixels, labels in _batches(rows)]
        chosen, labels = (np.concatenate(side) for side in zip(*pairs))
        return {name: function(chosen, labels) for name, function in functions_of("classes", "ids").items()}

    return score


def _batches(rows: Dataset) -> Any:
    """Yield pixels from 0 to 1 (B, H · W · C) and labels (B), None without any, of raw rows or those of a model."""
    names = rows.column_names
    image = "image" if "image" in names else "pixel_values"
    label = next((name for name in ("label", "labels") if name in names), None)
    for table in rows.with_format("arrow").iter(batch_size(rows)):
        cells = table[image].to_pylist()
        pixels = np.frombuffer(b"".join(cells), np.uint8).reshape(len(cells), -1).astype(np.float64) / 255
        yield pixels, None if label is None else np.asarray(table[label])


def _with_one(pixels: np.ndarray) -> np.ndarray:
    """Return images with fewer pixels, and a 1 for the offset (B, F + 1)."""
    side = round((pixels.shape[1] / CHANNELS) ** 0.5)
    step = max(1, -(-side // int((FEATURES / CHANNELS) ** 0.5)))
    small = pixels.reshape(len(pixels), side, side, CHANNELS)[:, ::step, ::step]
    return np.hstack([small.reshape(len(pixels), -1), np.ones((len(pixels), 1))])
