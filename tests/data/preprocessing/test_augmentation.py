"""Changes of images: what each one leaves, and that nothing but seed, epoch and image decides."""

import pytest
import torch

from vanillaformer.data.preprocessing.images import (
    DRAWS,
    AugmentationArguments,
    augmented,
    erased,
    mirrored,
    row_draws,
    shifted,
)


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randn(64, 3, 6, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def draws() -> torch.Tensor:
    return torch.rand(64, DRAWS, generator=torch.Generator().manual_seed(1))


def test_nothing_is_done_by_default(images, draws):
    assert augmented(images, draws, AugmentationArguments()) is images


@pytest.mark.parametrize("dimension", [2, 3])
def test_mirroring_twice_gives_the_image_back(images, dimension):
    chosen = torch.arange(64) % 2 == 0
    once = mirrored(images, chosen, dimension)
    assert torch.equal(once[~chosen], images[~chosen])
    assert torch.equal(once[chosen], images[chosen].flip(dimension))
    assert torch.equal(mirrored(once, chosen, dimension), images)


def test_a_shift_moves_each_image_and_repeats_its_border(images):
    down, right = torch.arange(64) % 5 - 2, torch.arange(64) % 7 - 3
    moved = shifted(images, down, right)
    for row, (y, x) in enumerate(zip(down.tolist(), right.tolist())):
        rows = [min(5, max(0, place - y)) for place in range(6)]
        columns = [min(7, max(0, place - x)) for place in range(8)]
        assert torch.equal(moved[row], images[row][:, rows][:, :, columns])
    assert torch.equal(shifted(images, torch.zeros(64).long(), torch.zeros(64).long()), images)


def test_erasing_hides_one_rectangle(images, draws):
    found = erased(images, draws[:, 4:], 0.6)
    gone = (found != images).any(dim=1)  # (B, H, W)
    changed = gone.any(dim=(1, 2))
    assert torch.equal(changed, draws[:, 4] < 0.6)
    assert (found[gone[:, None].expand_as(found)] == 0).all()
    for mask in gone[changed]:
        rows, columns = mask.any(dim=1), mask.any(dim=0)
        assert torch.equal(mask, rows[:, None] & columns), "a rectangle"
        assert mask.float().mean() < 0.5
    assert torch.equal(erased(images, draws[:, 4:], 0.0), images)


def test_all_together_keep_shape_and_are_drawn_for_each_image_by_itself(images, draws):
    arguments = AugmentationArguments(flip="both", shift=2, random_erasing=0.5)
    found = augmented(images, draws, arguments)
    assert found.shape == images.shape
    assert torch.equal(found[5:9], augmented(images[5:9], draws[5:9], arguments))


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


@pytest.mark.parametrize("name", ["shift", "random_erasing", "mixup"])
def test_numbers_out_of_range_are_refused(name):
    arguments = AugmentationArguments(**{name: -1})
    with pytest.raises(ValueError, match=f"--{name} -1: it must be"):
        arguments.check()
