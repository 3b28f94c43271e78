"""Position schemes, which tell a stack the order of its tokens; `position_schemes.py` has the list of choices.

A scheme overrides hooks that do nothing in the base class: `embed` adds to the embeddings, `position_embeddings`
computes cosines and sines, `build_rotate` chooses the function that rotates queries and keys by them, `score_bias`
computes the term added to the attention scores. All run once per forward of the stack, only the rotation once per
layer.

Shape letters: B batch, T query length, S key length, D model width, H query heads, G key/value heads, K head width.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from torch import nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS, dynamic_rope_update
from transformers.utils import is_torchdynamo_compiling

from vanillaformer.configuration import BlockConfig, ConfigView, layer_types

PositionEmbeddings = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines, each (B or 1, 1, T, K), less than K if only a part of each head is rotated."""

TensorFunction = Callable[[torch.Tensor], torch.Tensor]
Rotate = Callable[[torch.Tensor, torch.Tensor, Any], tuple[torch.Tensor, torch.Tensor]]
"""Queries (B, H, T, K), keys (B, G, T, K), `PositionEmbeddings` or `None` → rotated queries and keys."""


def no_rotation(q: torch.Tensor, k: torch.Tensor, position_embeddings: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return queries and keys unchanged."""
    return q, k


class ExactTables(nn.Module):
    """Base of the modules whose buffers keep their dtype when a model is cast: far positions magnify rounding."""

    def _apply(self, fn: TensorFunction, recurse: bool = True) -> "ExactTables":
        buffers: dict[str, Any] = self._buffers
        exact = dict(buffers)
        super()._apply(fn, recurse)
        for name, table in exact.items():
            if table.dtype != buffers[name].dtype:
                buffers[name] = table.to(buffers[name].device)
        return self


class NoPositions(ExactTables):
    """No position information, and the base of the schemes that add some."""

    on_grid = False  # whether its hooks get a `Grid` of rows and columns in place of positions

    def __init__(self, config: BlockConfig, is_causal: bool = True):
        super().__init__()

    def check_length(self, length: int) -> None:
        """Raise ValueError for more tokens than the scheme has positions."""

    def embed(self, x: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        """Return embeddings (B, T, D) with positions (B or 1, T) added."""
        return x

    def embed_resized(self, x: torch.Tensor, resize: TensorFunction) -> torch.Tensor:
        """Return embeddings (B, T, D) with the table's rows (P, D) added, changed by `resize`."""
        return x

    def position_embeddings(self, x: torch.Tensor, position_ids: torch.Tensor) -> dict[str, PositionEmbeddings]:
        """Return cosines and sines of positions (B or 1, T) by type of layer, in the dtype of `x`."""
        return {}

    @classmethod
    def build_rotate(cls, config: BlockConfig, layer_idx: int) -> Rotate:
        """Return the function that rotates a layer's queries and keys."""
        return no_rotation

    def table_index(self, layer_idx: int) -> int:
        """Return the index of the bias table that a layer uses."""
        return 0

    def score_bias(
        self, x: torch.Tensor, query_positions: torch.Tensor, key_positions: torch.Tensor, table: int
    ) -> torch.Tensor:
        """Return the term (1, H, T, S) added to the scores of queries (T) and keys (S), in the dtype of `x`.

        These positions count the columns of the batch, padding included: biases depend only on distances.
        """
        raise NotImplementedError

    def initial_values(self) -> dict[str, torch.Tensor]:
        """Return the fixed initial values of parameters and buffers, by name."""
        return {}


class PositionTable(NoPositions):
    """Base of the schemes with a table of one row per position, `max_position_embeddings` in all."""

    def __init__(self, config: BlockConfig, is_causal: bool = True):
        super().__init__(config, is_causal)
        self.max_length = config.max_position_embeddings
        self.offset = config.position_offset

    def rows(self) -> torch.Tensor:
        """Return the table (P, D)."""
        raise NotImplementedError

    def set_length(self, length: int, draw: Callable[[nn.Module], None]) -> None:
        """Change the table's length; the rows of both are kept, and `draw` initializes a learned table's new ones."""
        self.max_length = length

    def embed_resized(self, x: torch.Tensor, resize: TensorFunction) -> torch.Tensor:
        return x + resize(self.rows()).to(x.dtype)

    def check_length(self, length: int) -> None:
        if length > self.max_length:
            raise ValueError(
                f"the input has {length} tokens, but max_position_embeddings={self.max_length}: "
                "shorten the input or use a model with a longer position table"
            )

    def check_positions(self, position_ids: torch.Tensor) -> None:
        """Raise ValueError for a position outside the table, unless the check would synchronize with a device."""
        if position_ids.device.type == "cpu" and position_ids.numel() and not is_torchdynamo_compiling():
            self.check_length(int(position_ids.max()) + 1)


class LearnedPositions(PositionTable):
    """One trained vector per position (Gehring et al. 2017; BERT, GPT).

    Shapes: embeddings (B, T, D), positions (B or 1, T) → (B, T, D).
    """

    def __init__(self, config: BlockConfig, is_causal: bool = True):
        super().__init__(config, is_causal)
        self.embed_positions = nn.Embedding(self.max_length + self.offset, config.hidden_size)

    def rows(self) -> torch.Tensor:
        return self.embed_positions.weight

    @torch.no_grad()
    def set_length(self, length: int, draw: Callable[[nn.Module], None]) -> None:
        super().set_length(length, draw)
        rows = self.rows()
        self.embed_positions = nn.Embedding(length + self.offset, rows.shape[1], device=rows.device, dtype=rows.dtype)
        draw(self.embed_positions)
        self.embed_positions.requires_grad_(rows.requires_grad)
        self.rows()[: len(rows)] = rows[: length + self.offset]

    def embed(self, x: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        self.check_positions(position_ids)
        return x + self.embed_positions(position_ids + self.offset)


class SinusoidalPositions(PositionTable):
    """Fixed sines and cosines (Vaswani et al. 2017, section 3.5).

    `PE(p, 2i) = sin(p / 10000^(2i/D))`, `PE(p, 2i+1) = cos(p / 10000^(2i/D))`, computed in float64. The layout
    `halves` holds the same columns with all sines first (Marian); so does `tensor2tensor`, whose exponents are divided
    by D/2 - 1 instead of D/2, so that the longest wavelength is 20000π.
    """

    def __init__(self, config: BlockConfig, is_causal: bool = True):
        super().__init__(config, is_causal)
        self.width = config.hidden_size
        self.layout = config.sinusoidal_layout
        self.table = nn.Buffer(self.initial_values()["table"], persistent=False)

    def rows(self) -> torch.Tensor:
        return self.table

    def set_length(self, length: int, draw: Callable[[nn.Module], None]) -> None:
        super().set_length(length, draw)
        self.table = nn.Buffer(self.initial_values()["table"].to(self.table.device), persistent=False)

    def embed(self, x: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        self.check_positions(position_ids)
        return x + self.table[position_ids].to(x.dtype)

    def initial_values(self) -> dict[str, torch.Tensor]:
        positions = torch.arange(self.offset, self.offset + self.max_length, dtype=torch.float64)
        pairs = self.width // 2
        steps = pairs - 1 if self.layout == "tensor2tensor" else pairs
        angles = positions[:, None] * 10000.0 ** (-torch.arange(pairs, dtype=torch.float64) / steps)
        both = (angles.sin(), angles.cos())
        table = torch.stack(both, -1).flatten(1) if self.layout == "interleaved" else torch.cat(both, -1)
        return {"table": table.to(torch.float32)}


def rotate_half(x: torch.Tensor) -> torch.Tensor:
    """Return `x` (..., K) rotated by 90° in each plane (i, i + K/2)."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def rotate_pairs(x: torch.Tensor) -> torch.Tensor:
    """Return `x` (..., K) rotated by 90° in each plane (2i, 2i + 1)."""
    return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)


def repeat_halves(angles: torch.Tensor) -> torch.Tensor:
    """Return angles (..., K/2) for both dimensions of each plane (i, i + K/2), as (..., K)."""
    return torch.cat((angles, angles), dim=-1)


def repeat_interleaved(angles: torch.Tensor) -> torch.Tensor:
    """Return angles (..., K/2) for both dimensions of each plane (2i, 2i + 1), as (..., K)."""
    return angles.repeat_interleave(2, dim=-1)


def rotate_all(
    q: torch.Tensor, k: torch.Tensor, position_embeddings: PositionEmbeddings, quarter_turn: TensorFunction
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return queries and keys rotated in all planes: `x cos + R x sin`, R being the rotation by 90°."""
    cos, sin = position_embeddings
    return q * cos + quarter_turn(q) * sin, k * cos + quarter_turn(k) * sin


def rotate_part(
    q: torch.Tensor, k: torch.Tensor, position_embeddings: PositionEmbeddings, quarter_turn: TensorFunction
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return queries and keys rotated in their first dimensions, as many as there are angles (GPT-NeoX, GPT-J)."""
    width = position_embeddings[0].shape[-1]
    rotated_q, rotated_k = rotate_all(q[..., :width], k[..., :width], position_embeddings, quarter_turn)
    return torch.cat((rotated_q, q[..., width:]), dim=-1), torch.cat((rotated_k, k[..., width:]), dim=-1)


class RotaryEmbedding(ExactTables):
    """Cosines and sines for rotary positions, with the frequency scalings of transformers' `rope_parameters`.

    Shapes: positions (B or 1, T) → cosines and sines, each (B or 1, T, K).
    """

    def __init__(self, config: BlockConfig):
        super().__init__()
        # transformers' scaling code and weight initialization read these attributes by name
        self.config = config
        self.max_length = self.max_seq_len_cached = self.original_max_seq_len = config.max_position_embeddings
        self.rope_type = config.rope_parameters["rope_type"]
        self.repeat = repeat_interleaved if config.rope_interleaved else repeat_halves
        compute = ROPE_INIT_FUNCTIONS.get(self.rope_type, self.compute_default_rope_parameters)
        inv_freq, self.attention_scaling = compute(config)
        self.inv_freq = nn.Buffer(inv_freq, persistent=False)
        self.original_inv_freq = nn.Buffer(inv_freq.clone(), persistent=False)

    def set_length(self, length: int, draw: Callable[[nn.Module], None]) -> None:
        """Compute the frequencies again, as some scalings depend on the length."""
        device = self.inv_freq.device
        RotaryEmbedding.__init__(self, cast(BlockConfig, ConfigView(self.config, max_position_embeddings=length)))
        self.to(device)

    @staticmethod
    def compute_default_rope_parameters(config: BlockConfig, **kwargs: Any) -> tuple[torch.Tensor, float]:
        """Return the frequencies θ^(-2i/K) of the paper and the factor 1 on cosines and sines."""
        width = int(config.head_dim * config.rope_parameters.get("partial_rotary_factor", 1.0))
        exponents = torch.arange(0, width, 2, dtype=torch.float) / width
        return 1.0 / config.rope_parameters["rope_theta"] ** exponents, 1.0

    @torch.no_grad()
    @dynamic_rope_update
    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> PositionEmbeddings:
        """Return cosines and sines in the dtype and on the device of `x`."""
        angles = position_ids[..., None].float() * self.inv_freq.to(device=x.device, dtype=torch.float)
        angles = self.repeat(angles)
        cos, sin = angles.cos() * self.attention_scaling, angles.sin() * self.attention_scaling
        return cos.to(x.dtype), sin.to(x.dtype)


class RotaryPositions(NoPositions):
    """Rotary positions (Su et al. 2021).

    Query and key of position p are rotated in plane i by the angle `p · θ^(-2i/K)`, so that their product depends only
    on the distance. The planes are (i, i + K/2) or, interleaved, (2i, 2i + 1).

    Shapes: queries (B, H, T, K), keys (B, G, T, K), positions (B or 1, T).
    """

    def __init__(self, config: BlockConfig, is_causal: bool = True):
        super().__init__(config, is_causal)
        self.layer_types = sorted(set(layer_types(config)))
        self.shared = all(config.rope_of(layer_type) is config.rope_parameters for layer_type in self.layer_types)
        entries = {"all": config.rope_parameters} if self.shared else {t: config.rope_of(t) for t in self.layer_types}
        self.rotary_emb = nn.ModuleDict(
            {
                name: RotaryEmbedding(cast(BlockConfig, ConfigView(config, rope_parameters=parameters)))
                for name, parameters in entries.items()
                if parameters is not None
            }
        )

    def position_embeddings(self, x: torch.Tensor, position_ids: torch.Tensor) -> dict[str, PositionEmbeddings]:
        embeddings = {}
        for name, rotary_emb in self.rotary_emb.items():
            cos, sin = rotary_emb(x, position_ids)
            embeddings[name] = cos.unsqueeze(1), sin.unsqueeze(1)  # (B, 1, T, K), for all heads
        return dict.fromkeys(self.layer_types, embeddings["all"]) if self.shared else embeddings

    @classmethod
    def build_rotate(cls, config: BlockConfig, layer_idx: int) -> Rotate:
        parameters = config.rope_of(layer_types(config)[layer_idx])
        if parameters is None or not config.is_rotary_layer(layer_idx):
            return no_rotation
        rotate = rotate_all if parameters.get("partial_rotary_factor", 1.0) == 1.0 else rotate_part
        return partial(rotate, quarter_turn=rotate_pairs if config.rope_interleaved else rotate_half)


class AlibiPositions(NoPositions):
    """Attention with linear biases (ALiBi, Press et al. 2022): `-m d` is added to the score at distance d.

    The slopes m of H heads are the geometric sequence from 2^(-8/H) down to 2^-8 if H is a power of two; otherwise
    those of the next smaller power of two, then every other one of the next larger. In an encoder d is the distance
    in either direction.

    Shapes: query positions (T), key positions (S) → (1, H, T, S).
    """

    def __init__(self, config: BlockConfig, is_causal: bool = True):
        super().__init__(config, is_causal)
        self.heads = config.num_attention_heads
        self.slopes = nn.Buffer(self.initial_values()["slopes"], persistent=False)

    def score_bias(
        self, x: torch.Tensor, query_positions: torch.Tensor, key_positions: torch.Tensor, table: int
    ) -> torch.Tensor:
        distances = (key_positions[None, :] - query_positions[:, None]).abs()  # (T, S)
        return (-self.slopes[None, :, None, None] * distances).to(x.dtype)

    def initial_values(self) -> dict[str, torch.Tensor]:
        power = 2 ** math.floor(math.log2(self.heads))
        slopes = [2 ** (-8 * head / power) for head in range(1, power + 1)]
        slopes += [2 ** (-4 * head / power) for head in range(1, 2 * (self.heads - power), 2)]
        return {"slopes": torch.tensor(slopes, dtype=torch.float32)}


class BiasTable(nn.Embedding):
    """T5's biases, one per bucket and head; the initial ones depend on the width D of the stack."""

    def __init__(self, buckets: int, heads: int, stream_width: int):
        super().__init__(buckets, heads)
        self.stream_width = stream_width


class RelativePositions(NoPositions):
    """T5's relative bias (Raffel et al. 2020, section 2.1): a trained number per head and bucket of distances.

    Half the buckets hold one distance each, the others logarithmically growing ranges up to
    `relative_attention_max_distance`; in an encoder half of them are for either direction.
    """

    def __init__(self, config: BlockConfig, is_causal: bool = True):
        super().__init__(config, is_causal)
        self.is_causal = is_causal
        self.buckets = config.relative_attention_num_buckets
        self.max_distance = config.relative_attention_max_distance
        tables = config.num_hidden_layers if config.relative_attention_per_layer else 1
        self.relative_attention_bias = nn.ModuleList(
            BiasTable(self.buckets, config.num_attention_heads, config.hidden_size) for _ in range(tables)
        )

    def table_index(self, layer_idx: int) -> int:
        return layer_idx % len(self.relative_attention_bias)

    def score_bias(
        self, x: torch.Tensor, query_positions: torch.Tensor, key_positions: torch.Tensor, table: int
    ) -> torch.Tensor:
        buckets = self.bucket(key_positions[None, :] - query_positions[:, None])  # (T, S)
        return self.relative_attention_bias[table](buckets).permute(2, 0, 1).unsqueeze(0).to(x.dtype)

    def bucket(self, distances: torch.Tensor) -> torch.Tensor:
        """Return the bucket of each distance, key minus query."""
        if self.is_causal:
            return self.one_sided_bucket(-distances.clamp(max=0), self.buckets)
        half = self.buckets // 2
        return half * (distances > 0) + self.one_sided_bucket(distances.abs(), half)

    def one_sided_bucket(self, distances: torch.Tensor, buckets: int) -> torch.Tensor:
        """Return the bucket, below `buckets`, of each distance of 0 or more."""
        exact = buckets // 2
        # in float32 and this order, as in T5: the edges of the buckets depend on rounding
        steps = torch.log(distances.clamp(min=1).float() / exact) / math.log(self.max_distance / exact)
        far = exact + (steps * (buckets - exact)).to(torch.long)
        return torch.where(distances < exact, distances, far.clamp(max=buckets - 1))
