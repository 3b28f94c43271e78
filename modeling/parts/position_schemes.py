"""The list of position schemes, `POSITIONS`, and the schemes for images, by rows and columns of patches.

Shape letters: B batch, T tokens of a grid, those before the patches included, D model width, H heads, K head width.
"""

from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import nn

from vanillaformer.configuration import BlockConfig, VanillaImageEncoderConfig, layer_types

from .positions import (
    AlibiPositions,
    BiasTable,
    LearnedPositions,
    NoPositions,
    PositionEmbeddings,
    RelativePositions,
    RotaryPositions,
    Rotate,
    SinusoidalPositions,
    repeat_halves,
    rotate_all,
    rotate_half,
)


class Grid(NamedTuple):
    """Positions of tokens: some before the patches (`prefix`), then the patches of a grid, row after row."""

    height: int
    width: int
    prefix: int

    def coordinates(self, device: Any = None) -> torch.Tensor:
        """Return row and column of each patch (N, 2)."""
        rows, columns = torch.arange(self.height, device=device), torch.arange(self.width, device=device)
        return torch.cartesian_prod(rows, columns).view(-1, 2)


def axial_angles(grid: Grid, pairs: int, base: float, device: Any) -> torch.Tensor:
    """Return the angles `p · base^(-i / pairs)` of rows, then of columns, (T, 2 pairs), 0 on the prefix."""
    frequencies = base ** -(torch.arange(pairs, device=device, dtype=torch.float32) / pairs)
    angles = grid.coordinates(device).float().unsqueeze(-1) * frequencies  # (N, 2, pairs)
    return nn.functional.pad(angles.flatten(1), (0, 0, grid.prefix, 0))


class GridSinusoidalPositions(NoPositions):
    """Fixed sines and cosines of row and column (MAE, He et al. 2022), for images of any size.

    A vector is `sin(r ω), cos(r ω), sin(c ω), cos(c ω)` with `ω_i = 10000^(-4i/D)`; tokens before the patches get 0.

    Shapes: embeddings (B, T, D), grid → (B, T, D).
    """

    on_grid = True

    def embed(self, x: torch.Tensor, position_ids: Any) -> torch.Tensor:
        grid, pairs = position_ids, x.shape[-1] // 4
        rows, columns = axial_angles(grid, pairs, 10000.0, x.device)[grid.prefix :].chunk(2, dim=-1)
        table = torch.cat((rows.sin(), rows.cos(), columns.sin(), columns.cos()), dim=-1)
        return x + nn.functional.pad(table, (0, 0, grid.prefix, 0)).to(x.dtype)


class GridRotaryPositions(NoPositions):
    """Axial rotary positions (Heo et al. 2024): half of a head's planes are rotated by the row, half by the column.

    Plane i of each half is (i, i + K/2), rotated by `p · θ^(-4i/K)`; tokens before the patches are not rotated.

    Shapes: queries (B, H, T, K), keys (B, G, T, K), grid.
    """

    on_grid = True

    def __init__(self, config: BlockConfig, is_causal: bool = True):
        super().__init__(config, is_causal)
        self.pairs, self.layer_types = config.head_dim // 4, sorted(set(layer_types(config)))
        self.base = cast(VanillaImageEncoderConfig, config).rope_2d_theta

    def position_embeddings(self, x: torch.Tensor, position_ids: Any) -> dict[str, PositionEmbeddings]:
        angles = repeat_halves(axial_angles(position_ids, self.pairs, self.base, x.device))[None, None]
        return dict.fromkeys(self.layer_types, (angles.cos().to(x.dtype), angles.sin().to(x.dtype)))

    @classmethod
    def build_rotate(cls, config: BlockConfig, layer_idx: int) -> Rotate:
        return partial(rotate_all, quarter_turn=rotate_half)


def relative_index(grid: Grid, device: Any = None) -> torch.Tensor:
    """Return the row of a bias table for each query and key (T, T), by their distance in rows and columns.

    The last three rows are those of a query before the patches, a key before them, and both (BEiT).
    """
    rows, columns = (2 * grid.height - 1), (2 * grid.width - 1)
    coordinates = grid.coordinates(device)
    distances = coordinates[:, None] - coordinates[None, :]  # (N, N, 2)
    patches = (distances[..., 0] + grid.height - 1) * columns + distances[..., 1] + grid.width - 1
    index = nn.functional.pad(patches, (0, 0, grid.prefix, 0), value=rows * columns)
    index = nn.functional.pad(index, (grid.prefix, 0, 0, 0), value=rows * columns + 1)
    is_prefix = torch.arange(index.shape[0], device=device) < grid.prefix
    return index.masked_fill(is_prefix[:, None] & is_prefix, rows * columns + 2)


class GridBias(BiasTable):
    """Biases of one layer, a trained number per head and distance in rows and columns: grid → (1, H, T, T)."""

    def __init__(self, grid: Grid, heads: int, stream_width: int):
        super().__init__((2 * grid.height - 1) * (2 * grid.width - 1) + 3 * (grid.prefix > 0), heads, stream_width)
        self.grid = grid
        self.index = nn.Buffer(relative_index(grid), persistent=False)

    def forward(self, grid: Grid) -> torch.Tensor:  # type: ignore[override]
        if grid == self.grid:
            bias = nn.functional.embedding(self.index, self.weight)
        else:
            bias = nn.functional.embedding(relative_index(grid, self.weight.device), self.resized(grid))
        return bias.permute(2, 0, 1).unsqueeze(0)

    def resized(self, grid: Grid) -> torch.Tensor:
        """Return the table for another grid, distances interpolated bilinearly, the last three rows unchanged."""
        old, new = ((2 * side.height - 1, 2 * side.width - 1) for side in (self.grid, grid))
        count = old[0] * old[1]
        distances = self.weight[:count].unflatten(0, old).permute(2, 0, 1).unsqueeze(0)  # (1, H, rows, columns)
        distances = nn.functional.interpolate(distances, size=new, mode="bilinear")
        return torch.cat((distances.squeeze(0).flatten(1).T, self.weight[count:]))

    def initial_values(self) -> dict[str, torch.Tensor]:
        return {"index": relative_index(self.grid)}


class GridRelativePositions(NoPositions):
    """Relative bias of a whole image (BEiT, Bao et al. 2022), one table for the stack or one per layer.

    Shapes: grid → (1, H, T, T).
    """

    on_grid = True

    def __init__(self, config: BlockConfig, is_causal: bool = True):
        super().__init__(config, is_causal)
        self.relative_attention_bias = nn.ModuleList(self.build_tables(cast(VanillaImageEncoderConfig, config)))

    def build_tables(self, config: VanillaImageEncoderConfig) -> list[GridBias]:
        """Return the tables that the layers use."""
        tables = config.num_hidden_layers if config.relative_attention_per_layer else 1
        grid = Grid(*config.grid, config.num_prefix_tokens)
        return [GridBias(grid, config.num_attention_heads, config.hidden_size) for _ in range(tables)]

    def table_index(self, layer_idx: int) -> int:
        return layer_idx % len(self.relative_attention_bias)

    def score_bias(self, x: torch.Tensor, query_positions: Any, key_positions: Any, table: int) -> torch.Tensor:
        return self.relative_attention_bias[table](query_positions).to(x.dtype)


class WindowRelativePositions(GridRelativePositions):
    """Relative bias inside windows (Swin, Liu et al. 2021), one table per layer."""

    def build_tables(self, config: VanillaImageEncoderConfig) -> list[GridBias]:
        return [
            GridBias(Grid(*stage.window, 0), stage.config.num_attention_heads, stage.config.hidden_size)
            for stage in config.stages
            for _ in range(stage.depth)
        ]


POSITIONS: dict[str, type[NoPositions]] = {
    "sinusoidal": SinusoidalPositions,
    "learned": LearnedPositions,
    "rotary": RotaryPositions,
    "alibi": AlibiPositions,
    "relative": RelativePositions,
    "none": NoPositions,
    "sinusoidal_2d": GridSinusoidalPositions,
    "rotary_2d": GridRotaryPositions,
    "window_relative": WindowRelativePositions,
    "grid_relative": GridRelativePositions,
}


def build_positions(config: BlockConfig, is_causal: bool = True) -> NoPositions:
    """Return the position scheme that `config` selects."""
    return POSITIONS[config.position_embedding_type](config, is_causal)


def build_rotate(config: BlockConfig, layer_idx: int) -> Rotate:
    """Return the function that rotates a layer's queries and keys by position."""
    return POSITIONS[config.position_embedding_type].build_rotate(config, layer_idx)
