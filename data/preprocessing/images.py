"""Batches of images, normalized, augmented in training, with hidden patches, and the processor saved with a model.

What happens to an image depends only on the seed, the epoch and the image, not on its batch: it is the same on any
number of processes, and after an interruption.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Any, Literal
from zlib import crc32

import numpy as np
import torch
from datasets import Dataset
from transformers import ViTImageProcessorPil

from vanillaformer.console.limits import NOT_NEGATIVE, PROBABILITY, option

from ..caching import batch_size
from ..images import CHANNELS
from .batching import EVALUATION, EpochCollator, epoch_seed

SAMPLE = 20_000  # images from which mean and deviation are computed
MIN_DEVIATION = 1e-3  # standard deviation below which a channel is constant, and not scaled
Flip = Literal["none", "horizontal", "vertical", "both"]

ERASED_AREA = (0.02, 0.33)  # minimum and maximum part of an image that is erased (Zhong et al. 2020)
ERASED_SHAPE = (0.3, 1 / 0.3)  # minimum and maximum ratio of height and width of the erased rectangle
DRAWS = 8  # random numbers of an image: two for mirroring, two for the shift, four for the erased rectangle


@dataclass
class AugmentationArguments:
    """Arguments of the augmentation of training images."""

    HELP_GROUP = "Augmentation"

    flip: Flip = option("none", "Mirror half of the images")
    shift: int = option(0, "Maximum shift of a training image in pixels", limit=NOT_NEGATIVE)
    random_erasing: float = option(0.0, "Probability of erasing a rectangle", limit=PROBABILITY)


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
    """Return images (B, C, H, W) moved by numbers of pixels (B); their border pixels fill the gap."""
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
    """Return numbers from 0 to 1 (B, `count`) that depend on each row and the seed: SplitMix64 of a checksum."""
    keys = np.array([crc32(row, seed) for row in rows], dtype=np.uint64)
    with np.errstate(over="ignore"):
        steps = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        state = (keys[:, None] << np.uint64(32)) + steps
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state ^= state >> np.uint64(31)
    return torch.from_numpy((state >> np.uint64(40)).astype(np.float32) * np.float32(2**-24))


class ImageCollator(EpochCollator):
    """Collator of batches of images: `pixel_values` (B, C, S, S) and, if rows have them, `labels` (B)."""

    def __init__(self, processor: Any, augmentation: AugmentationArguments | None = None, seed: int = 0):
        self.size = processor.size["height"], processor.size["width"]
        self.mean, self.std = (torch.tensor(values).view(-1, 1, 1) for values in normalization(processor))
        self.augmentation, self.seed = augmentation, seed
        self.set_epoch(0)

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        pixels = [row["pixel_values"] for row in rows]
        batch = {"pixel_values": self.images(pixels)}
        if "labels" in rows[0]:
            batch["labels"] = torch.tensor([row["labels"] for row in rows])
        return batch

    def images(self, pixels: list[bytes]) -> torch.Tensor:
        """Return normalized images, augmented in training."""
        images = self.normalized(*pixels)
        if self.augmentation is None or self.epoch == EVALUATION:
            return images
        return augmented(images, row_draws(pixels, epoch_seed(self.seed, self.epoch), DRAWS), self.augmentation)

    def normalized(self, *pixels: bytes) -> torch.Tensor:
        """Return images (B, C, H, W) of mean 0 and deviation 1."""
        values = np.frombuffer(b"".join(pixels), np.uint8).reshape(len(pixels), *self.size, CHANNELS)
        return (torch.from_numpy(values.transpose(0, 3, 1, 2).copy()).float() / 255 - self.mean) / self.std


class PatchMasking(ImageCollator):
    """`ImageCollator` with `bool_masked_pos` (B, N): which patches of an image are hidden (Xie et al. 2022)."""

    def __init__(self, processor: Any, patch_size: int, ratio: float, augmentation: Any = None, seed: int = 0):
        super().__init__(processor, augmentation, seed)
        self.patch_size = patch_size
        self.grid = self.size[0] // patch_size, self.size[1] // patch_size
        self.patches = self.grid[0] * self.grid[1]
        self.hidden = min(self.patches, max(1, round(ratio * self.patches)))

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        batch = super().__call__(rows)
        draws = row_draws([row["pixel_values"] for row in rows], epoch_seed(self.seed + 1, self.epoch), self.patches)
        order = draws.argsort(dim=1)
        return {**batch, "bool_masked_pos": torch.zeros_like(draws).scatter(1, order[:, : self.hidden], 1.0).bool()}

    def pixel_mask(self, masks: torch.Tensor) -> torch.Tensor:
        """Return the mask of pixels (B, H, W) for masks of patches (B, N)."""
        side = self.patch_size
        return masks.view(len(masks), *self.grid).repeat_interleave(side, dim=1).repeat_interleave(side, dim=2)


def new_processor(rows: Dataset, size: int) -> Any:
    """Return an image processor for images of a size, which normalizes by their mean and deviation."""
    chosen = rows.select(np.linspace(0, len(rows) - 1, min(SAMPLE, len(rows))).astype(int)).with_format("arrow")
    sums, count = np.zeros((2, CHANNELS)), 0
    for table in chosen.iter(batch_size(rows)):
        values = np.frombuffer(b"".join(table["image"].to_pylist()), np.uint8).reshape(-1, CHANNELS) / 255
        sums += values.sum(axis=0), (values**2).sum(axis=0)
        count += len(values)
    mean = sums[0] / count
    deviation = np.sqrt(np.maximum(sums[1] / count - mean**2, 0))
    deviation[deviation < MIN_DEVIATION] = 1.0
    return image_processor(size, mean.round(6).tolist(), deviation.round(6).tolist())


def normalization(processor: Any) -> Iterator[list[float]]:
    """Return the mean and deviation, of pixels from 0 to 1, with which a processor normalizes."""
    given = (processor.image_mean, processor.image_std) if processor.do_normalize else ([0.0] * 3, [1.0] * 3)
    scale = 255 * processor.rescale_factor if processor.do_rescale else 255
    return ([value / scale for value in values] for values in given)


def image_processor(size: int, mean: list[float], std: list[float]) -> Any:
    """Return a `ViTImageProcessorPil`, which loads without torchvision and without code of ours."""
    sides = {"height": size, "width": size}
    return ViTImageProcessorPil(size=sides, image_mean=mean, image_std=std, do_convert_rgb=True)


def encode_images(batch: Mapping[str, Any]) -> dict[str, Any]:
    return {"pixel_values": batch["image"]}
