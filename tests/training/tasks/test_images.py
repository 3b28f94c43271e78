"""The defaults of a classifier of images: options of the program, which fit what they follow."""

import pytest

from vanillaformer.training.tasks.images import FEWEST_EPOCHS, MOST_EPOCHS, image_defaults


def chosen(rows: int, size: int) -> dict:
    return {entry.option: entry.value for entry in image_defaults(rows, size)}


def test_few_images_are_seen_more_often() -> None:
    epochs = [chosen(rows, 28)["max_epochs"] for rows in (100, 1_400, 60_000)]
    assert epochs[0] == MOST_EPOCHS > epochs[1] > epochs[2] == FEWEST_EPOCHS


@pytest.mark.parametrize(("size", "shift"), [(8, None), (28, 2), (32, 2), (64, 5)])
def test_a_shift_is_small_and_tiny_images_have_none(size: int, shift: int | None) -> None:
    assert chosen(1_000, size).get("shift") == shift
