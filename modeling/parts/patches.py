"""From pixels to the input of the first block; `PATCHES` is the list of choices.

Shape letters: B batch, C channels, P pixels on a patch's side, N patches, T patches and other tokens, D model width.
"""

from functools import partial
from typing import Any, cast

import torch
from torch import nn

from vanillaformer.configuration import VanillaImageEncoderConfig

from .dropout import build_dropout
from .embeddings import Stem
from .ngrams import ZeroTable
from .norms import build_norm
from .position_schemes import Grid, build_positions
from .windows import Sides


class ConvolutionPatches(nn.Module):
    """Patch vectors by a convolution whose kernel and stride are a patch (ViT, Dosovitskiy et al. 2021).

    Shapes: (B, C, rows · P, columns · P) → (B, N, D), row after row.
    """

    def __init__(self, config: VanillaImageEncoderConfig):
        super().__init__()
        self.patch_size = config.patch_size
        self.projection = self.build_projection(config)

    def build_projection(self, config: VanillaImageEncoderConfig) -> nn.Conv2d | nn.Linear:
        """Return the map from pixels to a patch vector."""
        return nn.Conv2d(config.num_channels, config.hidden_size, self.patch_size, stride=self.patch_size)

    def cast(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """Return the pixels in the projection's dtype: pipelines give float32."""
        # in a quantized layer only the bias has the dtype of the input
        return pixel_values.to(cast(torch.Tensor, self.projection.bias).dtype)

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        return self.projection(self.cast(pixel_values)).flatten(2).transpose(1, 2)


class LinearPatches(ConvolutionPatches):
    """The same as a linear map of flattened patches, whose weight is the convolution's, reshaped to (D, C · P · P)."""

    def build_projection(self, config: VanillaImageEncoderConfig) -> nn.Conv2d | nn.Linear:
        return nn.Linear(config.num_channels * self.patch_size**2, config.hidden_size)

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        patches = nn.functional.pixel_unshuffle(self.cast(pixel_values), self.patch_size)  # (B, C · P · P, rows, ...)
        return self.projection(patches.flatten(2).transpose(1, 2))


class EarlyConvolutions(ConvolutionPatches):
    """Patch vectors by overlapping convolutions (Xiao et al. 2021, arXiv 2106.14881): small models learn faster.

    Each `relu(norm(conv(x)))` has a kernel of 3 by 3 points and stride 2, and halves the sides; the number of channels
    doubles up to D. A linear layer on every point comes last. The paper has batch normalization; the norm here is that
    of the config, over the channels of a point, so that an image does not depend on its batch.
    """

    def __init__(self, config: VanillaImageEncoderConfig):
        super().__init__(config)
        halvings = config.patch_size.bit_length() - 1
        widths = [max(1, config.hidden_size >> number) for number in reversed(range(halvings))]
        sizes = zip([config.num_channels, *widths], widths)
        self.convolutions = nn.ModuleList(nn.Conv2d(*size, kernel_size=3, stride=2, padding=1) for size in sizes)
        self.norms = nn.ModuleList(build_norm(config, width) for width in widths)

    def build_projection(self, config: VanillaImageEncoderConfig) -> nn.Conv2d | nn.Linear:
        return nn.Linear(config.hidden_size if self.patch_size > 1 else config.num_channels, config.hidden_size)

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        x = self.cast(pixel_values)
        for convolution, norm in zip(self.convolutions, self.norms):
            x = norm(convolution(x).movedim(1, -1)).relu().movedim(-1, 1)
        return self.projection(x.flatten(2).transpose(1, 2))


PATCHES: dict[str, type[ConvolutionPatches]] = {
    "convolution": ConvolutionPatches,
    "linear": LinearPatches,
    "early_convolutions": EarlyConvolutions,
}


def resize_rows(rows: torch.Tensor, first: int, old: Sides, new: Sides, antialias: bool) -> torch.Tensor:
    """Return a position table (first + old N, D) for another grid of patches, interpolated bicubically in float32.

    The first rows, for tokens other than patches, are kept.
    """
    patches = rows[first:].float().unflatten(0, old).permute(2, 0, 1).unsqueeze(0)  # (1, D, rows, columns)
    patches = nn.functional.interpolate(patches, size=new, mode="bicubic", antialias=antialias)
    return torch.cat((rows[:first], patches.squeeze(0).flatten(1).T.to(rows.dtype)))


class ImageEmbeddings(Stem):
    """Patches and the tokens before them: `dropout(norm(class token ; √D patches + positions))`, most parts optional.

    The order is class token, distillation token, register tokens, patches; registers have no position in a table.

    Shapes: pixels (B, C, rows · P, columns · P), masked patches (B, N) or `None` → (B, T, D) and the grid of patches.
    """

    def __init__(self, config: VanillaImageEncoderConfig, use_mask_token: bool):
        super().__init__()
        width = config.hidden_size
        self.num_channels, self.patch_size, self.grid = config.num_channels, config.patch_size, config.grid
        self.scale = width**0.5 if config.scale_embedding else config.embedding_scale
        self.num_placed_tokens = config.num_placed_tokens
        self.patch_embeddings = PATCHES[config.patch_embedding](config)
        if use_mask_token:
            config.check_masking()
        self.patch_norm = build_norm(config) if config.patch_norm else nn.Identity()
        self.cls_token = nn.Embedding(1, width) if config.use_cls_token else None
        self.distillation_token = nn.Embedding(1, width) if config.use_distillation_token else None
        self.register_tokens = nn.Embedding(config.num_register_tokens, width) if config.num_register_tokens else None
        self.mask_token = ZeroTable(1, width) if use_mask_token else None
        self.positions = build_positions(config, is_causal=False)
        self.norm = build_norm(config) if config.embedding_norm else nn.Identity()
        self.dropout = build_dropout(config.dropout)

    def forward(
        self, pixel_values: torch.Tensor, bool_masked_pos: torch.Tensor | None, interpolate_pos_encoding: bool | None
    ) -> tuple[torch.Tensor, Sides]:
        grid = self.grid_of(pixel_values, interpolate_pos_encoding)
        patches = self.patch_norm(self.patch_embeddings(pixel_values))
        if bool_masked_pos is not None:
            patches = self.replace_masked(patches, bool_masked_pos)
        x = self.add_positions(self.prepend(patches * self.scale, self.cls_token, self.distillation_token), grid)
        if self.register_tokens is not None:
            placed, patches = x[:, : self.num_placed_tokens], x[:, self.num_placed_tokens :]
            x = torch.cat((placed, self.prepend(patches, self.register_tokens)), dim=1)
        return self.dropout(self.norm(x)), grid

    def grid_of(self, pixel_values: torch.Tensor, interpolate_pos_encoding: bool | None) -> Sides:
        """Return the rows and columns of an image's patches.

        Raises:
            ValueError: The image has another shape than the model's, or one that is not made of patches.
        """
        _, channels, height, width = pixel_values.shape
        if channels != self.num_channels:
            raise ValueError(f"pixel_values have {channels} channels, but num_channels={self.num_channels}")
        grid = (height // self.patch_size, width // self.patch_size)
        expected = (self.grid[0] * self.patch_size, self.grid[1] * self.patch_size)
        if (height, width) == expected:
            return grid
        if not interpolate_pos_encoding:
            raise ValueError(
                f"pixel_values are images of {height} by {width} pixels, but image_size is {expected[0]} by "
                f"{expected[1]}: resize them, or give interpolate_pos_encoding=True"
            )
        if height % self.patch_size or width % self.patch_size or 0 in grid:
            raise ValueError(
                f"pixel_values are images of {height} by {width} pixels, which must be multiples of "
                f"patch_size={self.patch_size}"
            )
        return grid

    def replace_masked(self, patches: torch.Tensor, bool_masked_pos: torch.Tensor) -> torch.Tensor:
        """Return the patches (B, N, D), masked ones replaced by the mask token.

        Raises:
            ValueError: The model has no mask token, or the shape of the mask does not fit.
        """
        if self.mask_token is None:
            raise ValueError("bool_masked_pos needs a model with a mask token: use_mask_token=True")
        mask = bool_masked_pos.flatten(1).bool()
        if mask.shape != patches.shape[:2]:
            raise ValueError(
                f"bool_masked_pos must have the shape (batch, patches), {tuple(patches.shape[:2])}, "
                f"got {tuple(bool_masked_pos.shape)}"
            )
        return torch.where(mask.unsqueeze(-1), self.mask_token.weight, patches)

    def prepend(self, x: torch.Tensor, *tokens: nn.Embedding | None) -> torch.Tensor:
        """Return `x` (B, T, D) after trained tokens."""
        tables = [table.weight.expand(x.shape[0], -1, -1) for table in tokens if table is not None]
        return torch.cat((*tables, x), dim=1) if tables else x

    def add_positions(self, x: torch.Tensor, grid: Sides) -> torch.Tensor:
        """Return class token, distillation token and patches (B, T, D) with the rows of a position table added."""
        if self.positions.on_grid:
            return self.positions.embed(x, Grid(*grid, self.num_placed_tokens))  # type: ignore[arg-type]
        if grid != self.grid:
            antialias = self.register_tokens is not None  # as the models were published
            sizes: dict[str, Any] = {"first": self.num_placed_tokens, "old": self.grid, "new": grid}
            resize = partial(resize_rows, **sizes, antialias=antialias)
            return self.positions.embed_resized(x, resize)
        return self.positions.embed(x, torch.arange(x.shape[1], device=x.device).unsqueeze(0))
