"""Batches of images: the processor's numbers, changes in training only, hidden patches."""

import numpy as np
import pytest
import torch
from datasets import Dataset, Features, Value

from vanillaformer.data.preprocessing.images import (
    AugmentationArguments,
    ImageCollator,
    PatchMasking,
    image_processor,
    new_processor,
)

SIZE = 8


@pytest.fixture
def rows() -> list[dict]:
    values = np.random.default_rng(0).integers(0, 200, (12, SIZE, SIZE, 3), dtype=np.uint8)
    return [{"pixel_values": image.tobytes(), "labels": number} for number, image in enumerate(values)]


@pytest.fixture
def processor(rows):
    features = Features({"image": Value("large_binary")})
    return new_processor(Dataset.from_dict({"image": [row["pixel_values"] for row in rows]}, features=features), SIZE)


def test_batches_are_what_the_saved_processor_makes(rows, processor, tmp_path):
    from transformers import AutoImageProcessor

    processor.save_pretrained(tmp_path)
    loaded = AutoImageProcessor.from_pretrained(tmp_path)
    batch = ImageCollator(processor)(rows)
    images = [np.frombuffer(row["pixel_values"], np.uint8).reshape(SIZE, SIZE, 3) for row in rows]
    torch.testing.assert_close(batch["pixel_values"], loaded(images, return_tensors="pt")["pixel_values"])
    assert batch["labels"].tolist() == list(range(12))
    mean, std = batch["pixel_values"].mean(dim=(0, 2, 3)), batch["pixel_values"].std(dim=(0, 2, 3))
    torch.testing.assert_close(mean, torch.zeros(3), atol=1e-4, rtol=0)
    torch.testing.assert_close(std, torch.ones(3), atol=1e-2, rtol=0)


def test_a_constant_channel_is_not_divided_by_zero():
    features = Features({"image": Value("large_binary")})
    rows = Dataset.from_dict({"image": [bytes(SIZE * SIZE * 3)] * 2}, features=features)
    assert list(new_processor(rows, SIZE).image_std) == [1.0] * 3


def test_images_are_changed_in_training_anew_in_each_epoch(rows, processor):
    collator = ImageCollator(processor, AugmentationArguments(shift=2, flip="horizontal"), seed=3)
    plain = ImageCollator(processor)(rows)["pixel_values"]
    first = collator(rows)["pixel_values"]
    assert not torch.equal(first, plain)
    assert torch.equal(first[4:6], collator(rows[4:6])["pixel_values"]), "whatever else is in the batch"
    with collator.evaluation():
        assert torch.equal(collator(rows)["pixel_values"], plain)
    collator.set_epoch(1)
    assert not torch.equal(collator(rows)["pixel_values"], first)


def test_as_many_patches_are_hidden_in_each_image(rows, processor):
    collator = PatchMasking(processor, patch_size=2, ratio=0.6)
    hidden = collator(rows)["bool_masked_pos"]
    assert hidden.shape == (12, 16)
    assert hidden.sum(dim=1).tolist() == [10] * 12
    assert len({tuple(row) for row in hidden.tolist()}) == 12
    with collator.evaluation():
        fixed = collator(rows)["bool_masked_pos"]
    collator.set_epoch(1)
    assert not torch.equal(collator(rows)["bool_masked_pos"], hidden)
    with collator.evaluation():
        assert torch.equal(collator(rows)["bool_masked_pos"], fixed)
    assert PatchMasking(processor, 8, 0.6)(rows)["bool_masked_pos"].all(), "at least one"
    assert image_processor(8, [0.5] * 3, [0.5] * 3).size["height"] == 8
