"""Windows of patches, shifted in every second layer, and the merging of patches between stages (Swin).

Shape letters: B batch, N patches, W windows of an image, S patches of a window, D model width.
"""

from dataclasses import dataclass

import torch
from torch import nn

from vanillaformer.configuration import BlockConfig

from .norms import build_norm

Sides = tuple[int, int]
"""Rows and columns."""


@dataclass(frozen=True)
class Windows:
    """The division of a grid of patches into windows, padded at its lower and right end.

    Windows begin `shift` rows and columns later; those beyond the end of the grid wrap around.
    """

    grid: Sides
    size: Sides
    shift: Sides

    @property
    def padding(self) -> Sides:
        """Rows and columns to add so that whole windows cover the grid."""
        return -self.grid[0] % self.size[0], -self.grid[1] % self.size[1]

    @property
    def count(self) -> int:
        """Number of windows of an image."""
        rows, columns = (-(-self.grid[axis] // self.size[axis]) for axis in range(2))
        return rows * columns

    def split(self, x: torch.Tensor) -> torch.Tensor:
        """Return patches (B, N, D) grouped by window (B · W, S, D), with zeros in place of missing patches."""
        x = x.unflatten(1, self.grid)
        if any(self.padding):
            x = nn.functional.pad(x, (0, 0, 0, self.padding[1], 0, self.padding[0]))
        if any(self.shift):
            x = x.roll((-self.shift[0], -self.shift[1]), dims=(1, 2))
        x = x.unflatten(2, (-1, self.size[1])).unflatten(1, (-1, self.size[0]))  # (B, W₁, S₁, W₂, S₂, D)
        return x.transpose(2, 3).flatten(3, 4).flatten(0, 2)

    def join(self, x: torch.Tensor) -> torch.Tensor:
        """Return windows (B · W, S, D) as patches (B, N, D), the inverse of `split`."""
        rows, columns = ((self.grid[axis] + self.padding[axis]) // self.size[axis] for axis in range(2))
        x = x.unflatten(0, (-1, rows, columns)).unflatten(3, self.size).transpose(2, 3)  # (B, W₁, S₁, W₂, S₂, D)
        x = x.flatten(3, 4).flatten(1, 2)
        if any(self.shift):
            x = x.roll(self.shift, dims=(1, 2))
        return x[:, : self.grid[0], : self.grid[1]].flatten(1, 2)

    def regions(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor | None:
        """Return a number for each patch of each window (B · W, S): patches with equal numbers see each other.

        Patches of a shifted window that were not neighbors in the image have different numbers; padding and patches
        where `mask` (B, N) is 0 have 0. `None` means that all patches of a window see each other.
        """
        if mask is None and not any((*self.shift, *self.padding)):
            return None
        rows, columns = (torch.arange(side, device=x.device) < shift for side, shift in zip(self.grid, self.shift))
        regions = (1 + 2 * rows[:, None].long() + columns).flatten().expand(x.shape[0], -1)  # (B, N)
        if mask is not None:
            regions = regions * mask.bool()
        return self.split(regions.unsqueeze(-1)).squeeze(-1)


def stage_windows(grid: Sides, size: Sides) -> tuple[Windows, Windows]:
    """Return the windows of layers 0, 2, 4 ... of a stage, and of the layers between them.

    The latter are shifted by half a window along the sides that are longer than one.
    """
    shift = tuple(window // 2 if side > window else 0 for side, window in zip(grid, size))
    return Windows(grid, size, (0, 0)), Windows(grid, size, (shift[0], shift[1]))


class PatchMerging(nn.Module):
    """Between two stages (Swin, Liu et al. 2021): every 2 by 2 patches become one, `W norm([x₀₀; x₁₀; x₀₁; x₁₁])`.

    An odd side is padded with 0.

    Shapes: (B, N, D) and a grid → (B, about N / 4, 2D).
    """

    def __init__(self, config: BlockConfig):
        super().__init__()
        width = config.hidden_size
        self.norm = build_norm(config, 4 * width)
        self.reduction = nn.Linear(4 * width, 2 * width, bias=False)

    def forward(self, x: torch.Tensor, grid: Sides) -> torch.Tensor:
        return self.reduction(self.norm(neighbors(x, grid)))


def neighbors(x: torch.Tensor, grid: Sides) -> torch.Tensor:
    """Return every 2 by 2 patches of (B, N, D) concatenated, column by column, (B, about N / 4, 4D)."""
    x = x.unflatten(1, grid)
    if grid[0] % 2 or grid[1] % 2:
        x = nn.functional.pad(x, (0, 0, 0, grid[1] % 2, 0, grid[0] % 2))
    x = x.unflatten(2, (-1, 2)).unflatten(1, (-1, 2))  # (B, rows, 2, columns, 2, D)
    return x.permute(0, 1, 3, 4, 2, 5).flatten(3).flatten(1, 2)
