"""Changes of training images that leave their class as it is: mirroring, shifts and erased rectangles.

What happens to an image depends only on the seed, the epoch and the image, not on its batch: it is the same on any
number of processes, and after an interruption.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from typing import Literal
from zlib import crc32

import numpy as np
import torch

from vanillaformer.console.limits import NOT_NEGATIVE, Limit, check_limits, option

Flip = Literal["none", "horizontal", "vertical", "both"]

ERASED_AREA = (0.02, 0.33)
"""Least and largest part of an image that is erased (Zhong et al. 2020)."""
ERASED_SHAPE = (0.3, 1 / 0.3)
"""Least and largest ratio of height and width of what is erased."""
DRAWS = 8
"""Random numbers of an image: two for mirroring, two for the shift, four for the erased rectangle."""
PROBABILITY: Limit = ("from 0 to 1", lambda value: 0 <= value <= 1)


@dataclass
class AugmentationArguments:
    """How training images are changed."""

    HELP_GROUP = "Augmentation"

    flip: Flip = option("none", "Mirror half of the training images")
    shift: int = option(0, "Maximum shift of a training image in pixels")
    random_erasing: float = option(0.0, "Probability of erasing a rectangle of a training image")
    mixup: float = option(0.0, "Mixup: a of the Beta(a, a) that weighs two training images; 0 for none")

    def check(self) -> None:
        """Raise ValueError for a number out of range."""
        check_limits(self, {"shift": NOT_NEGATIVE, "random_erasing": PROBABILITY, "mixup": NOT_NEGATIVE})


def augmented(images: torch.Tensor, draws: torch.Tensor, arguments: AugmentationArguments) -> torch.Tensor:
    """Return normalized images (B, C, H, W) changed as the arguments say."""
    if arguments.flip in ("horizontal", "both"):
        images = mirrored(images, draws[:, 0] < 0.5, dimension=3)
    if arguments.flip in ("vertical", "both"):
        images = mirrored(images, draws[:, 1] < 0.5, dimension=2)
    if arguments.shift:
        images = shifted(images, *(draws[:, 2:4].T * (2 * arguments.shift + 1)).long() - arguments.shift)
    if arguments.random_erasing:
        images = erased(images, draws[:, 4:8], arguments.random_erasing)
    return images


def mirrored(images: torch.Tensor, chosen: torch.Tensor, dimension: int) -> torch.Tensor:
    """Return images (B, C, H, W) of which the chosen ones (B) are mirrored along a dimension."""
    return torch.where(chosen[:, None, None, None], images.flip(dimension), images)


def shifted(images: torch.Tensor, down: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return images (B, C, H, W) moved by numbers of pixels (B); their border is repeated in what becomes free."""
    height, width = images.shape[2:]
    rows = (torch.arange(height) - down[:, None]).clamp(0, height - 1)  # (B, H)
    columns = (torch.arange(width) - right[:, None]).clamp(0, width - 1)  # (B, W)
    batch = torch.arange(len(images))[:, None, None]
    return images.permute(0, 2, 3, 1)[batch, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()


def erased(images: torch.Tensor, draws: torch.Tensor, probability: float) -> torch.Tensor:
    """Return normalized images (B, C, H, W) in which a rectangle is 0, the mean color, with a probability.

    Random erasing (Zhong et al. 2020, arXiv 1708.04896). A rectangle that would not fit is as high or wide as the
    image.
    """
    size = torch.tensor(images.shape[2:])  # height, width
    area = ERASED_AREA[0] + draws[:, 1] * (ERASED_AREA[1] - ERASED_AREA[0])
    low, high = map(log, ERASED_SHAPE)
    shape = (low + draws[:, 0] / max(probability, 1e-9) * (high - low)).exp()  # uniform where an image is changed
    sides = torch.stack([(area * shape).sqrt(), (area / shape).sqrt()], dim=1).clamp(max=1)
    extent = (sides * size).round().clamp(min=1)  # (B, 2)
    start = (draws[:, 2:4] * (size - extent + 1)).floor()
    inside = [
        (torch.arange(length) >= start[:, [axis]]) & (torch.arange(length) < (start + extent)[:, [axis]])
        for axis, length in enumerate(images.shape[2:])
    ]
    hidden = inside[0][:, :, None] & inside[1][:, None, :] & (draws[:, 0] < probability)[:, None, None]
    return images.masked_fill(hidden[:, None], 0.0)


def row_draws(rows: Sequence[bytes], seed: int, count: int) -> torch.Tensor:
    """Return numbers from 0 to 1 (B, `count`) by each row and the seed only: SplitMix64 of a checksum."""
    keys = np.array([crc32(row, seed) for row in rows], dtype=np.uint64)
    with np.errstate(over="ignore"):
        state = (keys[:, None] << np.uint64(32)) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(
            0x9E3779B97F4A7C15
        )
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state ^= state >> np.uint64(31)
    return torch.from_numpy((state >> np.uint64(40)).astype(np.float32) * np.float32(2**-24))
