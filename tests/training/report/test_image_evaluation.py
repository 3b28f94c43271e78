"""Baselines and pictures of images."""

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, Features, Value

from vanillaformer.data.preprocessing.images import PatchMasking, image_processor
from vanillaformer.training.report.baselines import BaselineData
from vanillaformer.training.report.image_baselines import linear_on_pixels, mean_image, nearest_mean
from vanillaformer.training.report.plots import confused_picture

SIZE = 8


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


@pytest.mark.parametrize("baseline", [nearest_mean, linear_on_pixels])
def test_baselines_tell_dark_from_bright(baseline):
    score = baseline(BaselineData(images(40, 0)))
    assert score(rows_of(images(20, 1)))["accuracy"] == 1
    assert score(images(20, 1))["accuracy"] == 1, "raw rows, of a finished run"
    wrong = images(20, 1).map(lambda row: {"label": 1 - row["label"]})
    assert score(rows_of(wrong))["accuracy"] == 0


def test_the_mean_image_is_scored_on_hidden_pixels_only():
    data = images(40, 0)
    collator = PatchMasking(image_processor(SIZE, [0.5] * 3, [0.25] * 3), patch_size=4, ratio=0.5)
    held_out = images(6, 1)
    loss = mean_image(BaselineData(data, collator=collator))(rows_of(held_out))["loss"]
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


def test_the_picture_shows_errors_only(tmp_path):
    rows, labels = rows_of(images(10, 0)), np.arange(10) % 2
    right = np.eye(2)[labels] * 0.8 + 0.1
    names = ["dark", "$bright\N{SNOWMAN}" * 9]
    assert confused_picture(tmp_path, rows, (SIZE, SIZE), labels, right, names) is None
    assert not (tmp_path / "confused_images.png").exists()
    path = confused_picture(tmp_path, rows, (SIZE, SIZE), 1 - labels, right, names)
    assert path is not None
    assert path.stat().st_size > 1_000
    assert confused_picture(tmp_path, rows, (SIZE, SIZE), labels, right, names) is None
    assert not path.exists(), "that of another model"
