"""Classifiers of images: defaults, baselines and pictures."""

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, Features, Value

from vanillaformer.data.preprocessing.images import PatchMasking, image_processor
from vanillaformer.training.report.baselines import BaselineData
from vanillaformer.training.tasks import images as task
from vanillaformer.training.tasks.images import image_defaults

SIZE = 8


def chosen(rows: int, size: int) -> dict:
    return {entry.option: entry.value for entry in image_defaults(rows, size)}


def test_few_images_are_seen_more_often() -> None:
    epochs = [chosen(rows, 28)["max_epochs"] for rows in (100, 1_400, 60_000)]
    assert epochs[0] == task.MOST_EPOCHS > epochs[1] > epochs[2] == task.FEWEST_EPOCHS


@pytest.mark.parametrize(("size", "shift"), [(8, None), (28, 2), (32, 2), (64, 5)])
def test_a_shift_is_small_and_tiny_images_have_none(size: int, shift: int | None) -> None:
    assert chosen(1_000, size).get("shift") == shift


def images(count: int, seed: int) -> Dataset:
    """Dark and bright images, with noise."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % 2
    pixels = rng.integers(0, 100, (count, SIZE, SIZE, 3)) + 100 * labels[:, None, None, None]
    features = Features({"image": Value("large_binary"), "label": ClassLabel(names=["dark", "bright"])})
    cells = [image.astype(np.uint8).tobytes() for image in pixels]
    return Dataset.from_dict({"image": cells, "label": labels}, features=features)


def rows_of(data: Dataset) -> Dataset:
    return data.rename_columns({"image": "pixel_values", "label": "labels"})


@pytest.mark.parametrize("baseline", [task.NEAREST_MEAN, task.PIXELS])
def test_baselines_tell_dark_from_bright(baseline):
    score = baseline.fit(BaselineData(images(40, 0)))
    assert score(rows_of(images(20, 1)))["accuracy"] == 1
    assert score(images(20, 1))["accuracy"] == 1, "raw rows, of a finished run"
    wrong = images(20, 1).map(lambda row: {"label": 1 - row["label"]})
    assert score(rows_of(wrong))["accuracy"] == 0


def test_the_mean_image_is_scored_on_hidden_pixels_only():
    data = images(40, 0)
    collator = PatchMasking(image_processor(SIZE, [0.5] * 3, [0.25] * 3), patch_size=4, ratio=0.5)
    held_out = images(6, 1)
    loss = task.mean_image(BaselineData(data, collator=collator))(rows_of(held_out))["loss"]
    pixels = np.stack([np.frombuffer(cell, np.uint8) for cell in data["image"]]).reshape(-1, SIZE, SIZE, 3)
    mean = (pixels / 255).mean(axis=0)
    with collator.evaluation():
        masks = collator(rows_of(held_out).to_list())["bool_masked_pos"]
    found = []
    for cell, mask in zip(held_out["image"], masks):
        image = np.frombuffer(cell, np.uint8).reshape(SIZE, SIZE, 3) / 255
        hidden = np.kron(mask.numpy().reshape(2, 2), np.ones((4, 4))).astype(bool)
        found.append(np.abs(image - mean)[hidden].mean() / 0.25)
    assert loss == pytest.approx(np.mean(found), abs=0.01)
