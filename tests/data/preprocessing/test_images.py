"""Batches of images: the processor's numbers, changes in training only, hidden patches."""

import numpy as np
import pytest
import torch
from datasets import Dataset, Features, Value
from refusals import refused
from transformers import AutoImageProcessor

from vanillaformer.console.limits import check_limits
from vanillaformer.data.preprocessing import images as pixels
from vanillaformer.data.preprocessing.images import AugmentationArguments, ImageCollator, new_processor, row_draws

SIZE = 8


@pytest.fixture
def rows() -> list[dict]:
    values = np.random.default_rng(0).integers(0, 200, (12, SIZE, SIZE, 3), dtype=np.uint8)
    return [{"pixel_values": image.tobytes(), "labels": number} for number, image in enumerate(values)]


def processor_of(rows: list[dict]):
    features = Features({"image": Value("large_binary")})
    return new_processor(Dataset.from_dict({"image": [row["pixel_values"] for row in rows]}, features=features), SIZE)


@pytest.fixture
def processor(rows):
    return processor_of(rows)


def test_batches_are_what_the_saved_processor_makes(rows, processor, tmp_path):
    processor.save_pretrained(tmp_path)
    loaded = AutoImageProcessor.from_pretrained(tmp_path)
    batch = ImageCollator(processor)(rows)
    images = [np.frombuffer(row["pixel_values"], np.uint8).reshape(SIZE, SIZE, 3) for row in rows]
    torch.testing.assert_close(batch["pixel_values"], loaded(images, return_tensors="pt")["pixel_values"])
    assert batch["labels"].tolist() == list(range(12))
    mean, std = batch["pixel_values"].mean(dim=(0, 2, 3)), batch["pixel_values"].std(dim=(0, 2, 3))
    torch.testing.assert_close(mean, torch.zeros(3), atol=1e-4, rtol=0)
    torch.testing.assert_close(std, torch.ones(3), atol=1e-2, rtol=0)
    for fields in ({"do_normalize": False}, {"rescale_factor": 1 / 127.5}, {"do_rescale": False}):  # of other models
        other = type(processor)(size=dict(processor.size), image_std=[0.2, 0.3, 0.4], **fields)
        wanted = other(images, return_tensors="pt")["pixel_values"].float()
        torch.testing.assert_close(ImageCollator(other)(rows)["pixel_values"], wanted)
        as_trained = pixels.image_processor(SIZE, *pixels.normalization(other))
        torch.testing.assert_close(as_trained(images, return_tensors="pt")["pixel_values"], wanted)
    constant = {"pixel_values": bytes(SIZE * SIZE * 3)}
    assert list(processor_of([constant] * 2).image_std) == [1.0] * 3, "it is not divided by 0"


def test_images_are_changed_in_training_anew_in_each_epoch(rows, processor):
    collator = ImageCollator(processor, AugmentationArguments(shift=2, flip="both", random_erasing=0.5), seed=3)
    plain = ImageCollator(processor)(rows)["pixel_values"]
    first = collator(rows)["pixel_values"]
    assert not torch.equal(first, plain)
    assert torch.equal(first[4:6], collator(rows[4:6])["pixel_values"]), "whatever else is in the batch"
    with collator.evaluation():
        assert torch.equal(collator(rows)["pixel_values"], plain)
    collator.set_epoch(1)
    assert not torch.equal(collator(rows)["pixel_values"], first)
    for name in ("shift", "random_erasing"):
        refused(f"--{name} -1: it must be", check_limits, AugmentationArguments(**{name: -1}))


def test_as_many_patches_are_hidden_in_each_image(rows, processor):
    collator = pixels.PatchMasking(processor, patch_size=2, ratio=0.6)
    hidden = collator(rows)["bool_masked_pos"]
    assert (hidden.shape, hidden.sum(dim=1).tolist()) == ((12, 16), [10] * 12)
    assert len({tuple(row) for row in hidden.tolist()}) == 12
    with collator.evaluation():
        fixed = collator(rows)["bool_masked_pos"]
    collator.set_epoch(1)
    assert not torch.equal(collator(rows)["bool_masked_pos"], hidden)
    with collator.evaluation():
        assert torch.equal(collator(rows)["bool_masked_pos"], fixed)
    assert pixels.PatchMasking(processor, 8, 0.6)(rows)["bool_masked_pos"].all(), "at least one"
    assert pixels.image_processor(8, [0.5] * 3, [0.5] * 3).size["height"] == 8


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randn(64, 3, 6, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("dimension", [2, 3])
def test_mirroring_twice_gives_the_image_back(images, dimension):
    chosen = torch.arange(64) % 2 == 0
    once = pixels.mirrored(images, chosen, dimension)
    assert torch.equal(once[~chosen], images[~chosen])
    assert torch.equal(once[chosen], images[chosen].flip(dimension))
    assert torch.equal(pixels.mirrored(once, chosen, dimension), images)


def test_a_shift_moves_each_image_and_repeats_its_border(images):
    down, right = torch.arange(64) % 5 - 2, torch.arange(64) % 7 - 3
    moved = pixels.shifted(images, down, right)
    for row, (y, x) in enumerate(zip(down.tolist(), right.tolist())):
        rows = [min(5, max(0, place - y)) for place in range(6)]
        columns = [min(7, max(0, place - x)) for place in range(8)]
        assert torch.equal(moved[row], images[row][:, rows][:, :, columns])
    assert torch.equal(pixels.shifted(images, torch.zeros(64).long(), torch.zeros(64).long()), images)


def test_erasing_hides_one_rectangle(images):
    draws = torch.rand(64, pixels.DRAWS, generator=torch.Generator().manual_seed(1))
    found = pixels.erased(images, draws[:, 4:], 0.6)
    gone = (found != images).any(dim=1)  # (B, H, W)
    changed = gone.any(dim=(1, 2))
    assert torch.equal(changed, draws[:, 4] < 0.6)
    assert (found[gone[:, None].expand_as(found)] == 0).all()
    for mask in gone[changed]:
        rows, columns = mask.any(dim=1), mask.any(dim=0)
        assert torch.equal(mask, rows[:, None] & columns), "a rectangle"
        assert mask.float().mean() < 0.5
    assert torch.equal(pixels.erased(images, draws[:, 4:], 0.0), images)


def test_draws_depend_on_row_and_seed():
    rows = [bytes([number]) * 20 for number in range(250)]
    found = row_draws(rows, 3, 40)
    assert torch.equal(found[7:9], row_draws(rows[7:9], 3, 40))
    assert not torch.equal(found, row_draws(rows, 4, 40))
    assert torch.equal(found[:, :8], row_draws(rows, 3, 8))
    assert 0 <= found.min() < found.max() < 1
    assert found.mean().item() == pytest.approx(0.5, abs=0.01)
    assert found.std().item() == pytest.approx(12**-0.5, abs=0.01)
    assert torch.corrcoef(found.T).triu(1).abs().max() < 0.3
    assert len(set(found.ravel().tolist())) > 9_900
