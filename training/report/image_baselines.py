"""Scores that a model of images has to beat: two classifiers of scikit-learn on pixels, and the mean image."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from datasets import Dataset
from sklearn.linear_model import RidgeClassifier
from sklearn.neighbors import NearestCentroid
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from vanillaformer.data.caching import batch_size
from vanillaformer.data.images import CHANNELS

from ..metrics.scores import compute_scores

MAX_VALUES = 2**27
"""Most pixel values that a classifier is fitted on, 512 MiB; of more training images every second, third ..."""
AT_ONCE = 100
"""Images whose hidden patches are compared together."""
FEATURES = 3_072
"""Pixels that the linear classifier looks at; of larger images every second, third ... in both directions."""
RIDGE = 0.01
"""Weight of the squared coefficients of the linear classifier, by training image."""

Scorer = Callable[[Dataset], dict[str, float]]


def nearest_mean(data: Any) -> Scorer:
    """Return the scores of taking the class whose mean training image is the nearest (Rocchio)."""
    return _fitted(lambda count: NearestCentroid(), data.texts)


def linear_on_pixels(data: Any) -> Scorer:
    """Return the scores of ridge regression of the classes on the pixels."""
    return _fitted(
        lambda count: make_pipeline(FunctionTransformer(_smaller), RidgeClassifier(alpha=RIDGE * count)), data.texts
    )


def _fitted(build: Callable[[int], Any], images: Dataset) -> Scorer:
    """Fit a classifier that is built for a number of images, and return what scores held-out images with it."""
    count = min(len(images), max(1, MAX_VALUES // len(images[0]["image"])))
    images = images.select(np.linspace(0, len(images) - 1, count).round().astype(int))
    pixels, classes = (np.concatenate(side) for side in zip(*_batches(images)))
    classifier = build(count).fit(pixels, classes)

    def score(rows: Dataset) -> dict[str, float]:
        pairs = [(classifier.predict(pixels), labels) for pixels, labels in _batches(rows)]
        chosen, labels = (np.concatenate(side) for side in zip(*pairs))
        return compute_scores("classes", "ids", chosen, labels)

    return score


def mean_image(data: Any) -> Scorer:
    """Return the loss of predicting, for every hidden pixel, its mean in the training images."""
    mean = sum(pixels.sum(axis=0, dtype=np.float64) for pixels, _ in _batches(data.texts)) / len(data.texts)
    collator = data.collator
    normalized = collator.normalized((mean * 255).round().astype(np.uint8).tobytes())

    def score(rows: Dataset) -> dict[str, float]:
        total, hidden = 0.0, 0
        with collator.evaluation():
            for start in range(0, len(rows), AT_ONCE):
                batch = collator(rows.select(range(start, min(start + AT_ONCE, len(rows)))).to_list())
                mask = collator.pixel_mask(batch["bool_masked_pos"])  # (B, H, W)
                differences = (batch["pixel_values"] - normalized).abs().mean(dim=1)
                total, hidden = total + differences[mask].sum().item(), hidden + int(mask.sum())
        return {"loss": total / hidden}

    return score


def _batches(rows: Dataset) -> Iterator[tuple[np.ndarray, Any]]:
    """Yield pixels from 0 to 1 (B, H · W · C) and labels (B), None without any, of raw rows or those of a model."""
    names = rows.column_names
    image = "image" if "image" in names else "pixel_values"
    label = next((name for name in ("label", "labels") if name in names), None)
    for table in rows.with_format("arrow").iter(batch_size(rows)):
        cells = table[image].to_pylist()
        pixels = np.frombuffer(b"".join(cells), np.uint8).reshape(len(cells), -1).astype(np.float32) / 255
        yield pixels, None if label is None else np.asarray(table[label])


def _smaller(pixels: np.ndarray) -> np.ndarray:
    """Return square images (B, F) with at most `FEATURES` values."""
    side = round((pixels.shape[1] / CHANNELS) ** 0.5)
    step = max(1, -(-side // int((FEATURES / CHANNELS) ** 0.5)))
    return pixels.reshape(len(pixels), side, side, CHANNELS)[:, ::step, ::step].reshape(len(pixels), -1)
