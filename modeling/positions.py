"""How a stack knows the order of its tokens; `POSITIONS` is the list of choices.

A scheme overrides hooks that do nothing in the base class: `embed` adds to the embeddings, `rotation` makes angles
and `rotate` turns queries and keys by them. All run once per forward of the stack but for `rotate`, which every layer
calls with the angles made once.
"""

import torch
from torch import nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS, dynamic_rope_update
from transformers.utils import is_torchdynamo_compiling

from vanillaformer.configuration import BlockConfig

Rotation = tuple[torch.Tensor, torch.Tensor]  # cosines and sines, each (B or 1, 1, T, K)


class NoPositions(nn.Module):
    """No position information at all, and the base of the schemes that give some."""

    def __init__(self, config: BlockConfig):
        super().__init__()

    def check_length(self, length: int) -> None:
        """Raise when a scheme cannot number `length` tokens."""

    def embed(self, x: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        """Return embeddings (B, T, D) with positions (B or 1, T) added."""
        return x

    def rotation(self, x: torch.Tensor, position_ids: torch.Tensor) -> Rotation | None:
        """Return what `rotate` needs for positions (B or 1, T), in the dtype and on the device of `x`."""
        return None

    @staticmethod
    def rotate(q: torch.Tensor, k: torch.Tensor, rotation: Rotation | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Return queries (B, H, T, K) and keys (B, G, T, K) turned by `rotation`."""
        return q, k

    def initial_buffers(self) -> dict[str, torch.Tensor]:
        """Return the values of buffers that no checkpoint holds; a model made on the meta device gets them so."""
        return {}


class PositionTable(NoPositions):
    """Base of the schemes that look positions up in a table of `max_position_embeddings` rows."""

    def __init__(self, config: BlockConfig):
        super().__init__(config)
        self.max_length = config.max_position_embeddings

    def check_length(self, length: int) -> None:
        if length > self.max_length:
            raise ValueError(
                f"the input has {length} tokens, but max_position_embeddings={self.max_length}: "
                "shorten the input or make a model with a longer position table"
            )

    def check_positions(self, position_ids: torch.Tensor) -> None:
        """Raise for a position outside the table, where finding out costs no synchronisation with a device."""
        if position_ids.device.type == "cpu" and position_ids.numel() and not is_torchdynamo_compiling():
            self.check_length(int(position_ids.max()) + 1)


class LearnedPositions(PositionTable):
    """One trained vector per position (Gehring et al. 2017; BERT, GPT).

    Shapes: embeddings (B, T, D), positions (B or 1, T) → (B, T, D).
    """

    def __init__(self, config: BlockConfig):
        super().__init__(config)
        self.embed_positions = nn.Embedding(config.max_position_embeddings, config.hidden_size)

    def embed(self, x: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        self.check_positions(position_ids)
        return x + self.embed_positions(position_ids)


class SinusoidalPositions(PositionTable):
    """Fixed sines and cosines (Vaswani et al. 2017, section 3.5).

    `PE(p, 2i) = sin(p / 10000^(2i/D))`, `PE(p, 2i+1) = cos(p / 10000^(2i/D))`, computed in float64; the layout
    `halves` holds the same columns with all sines first (Marian).

    Shapes: embeddings (B, T, D), positions (B or 1, T) → (B, T, D).
    """

    def __init__(self, config: BlockConfig):
        super().__init__(config)
        self.width = config.hidden_size
        self.layout = config.sinusoidal_layout
        self.table = nn.Buffer(self.initial_buffers()["table"], persistent=False)

    def embed(self, x: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        self.check_positions(position_ids)
        return x + self.table[position_ids].to(x.dtype)

    def initial_buffers(self) -> dict[str, torch.Tensor]:
        positions = torch.arange(self.max_length, dtype=torch.float64)
        frequencies = 10000.0 ** (-torch.arange(0, self.width, 2, dtype=torch.float64) / self.width)
        angles = positions[:, None] * frequencies
        pair = (angles.sin(), angles.cos())
        table = torch.cat(pair, -1) if self.layout == "halves" else torch.stack(pair, -1).flatten(1)
        return {"table": table.to(torch.float32)}


class RotaryEmbedding(nn.Module):
    """Sines and cosines for rotary positions, with the frequency scalings of transformers' `rope_parameters`.

    Shapes: positions (B or 1, T) → cosines and sines, each (B or 1, T, K).
    """

    def __init__(self, config: BlockConfig):
        super().__init__()
        # transformers' scaling code and weight initialisation read these attributes by name
        self.config = config
        self.max_seq_len_cached = self.original_max_seq_len = config.max_position_embeddings
        self.rope_type = config.rope_parameters["rope_type"]
        compute = ROPE_INIT_FUNCTIONS.get(self.rope_type, self.compute_default_rope_parameters)
        inv_freq, self.attention_scaling = compute(config)
        self.inv_freq = nn.Buffer(inv_freq, persistent=False)
        self.original_inv_freq = nn.Buffer(inv_freq.clone(), persistent=False)

    @staticmethod
    def compute_default_rope_parameters(config: BlockConfig, **kwargs) -> tuple[torch.Tensor, float]:
        """Return the frequencies θ^(-2i/K) of the paper and the factor 1 on sines and cosines."""
        exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float) / config.head_dim
        return 1.0 / config.rope_parameters["rope_theta"] ** exponents, 1.0

    @torch.no_grad()
    @dynamic_rope_update
    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> Rotation:
        """Return cosines and sines in the dtype and on the device of `x`."""
        angles = position_ids[..., None].float() * self.inv_freq.to(device=x.device, dtype=torch.float)
        angles = torch.cat((angles, angles), dim=-1)
        cos, sin = angles.cos() * self.attention_scaling, angles.sin() * self.attention_scaling
        return cos.to(x.dtype), sin.to(x.dtype)


class RotaryPositions(NoPositions):
    """Rotary positions (Su et al. 2021).

    Query and key of position p are turned in each plane (i, i + K/2) by the angle `p · θ^(-2i/K)`, so that their
    product depends on the distance alone.

    Shapes: queries (B, H, T, K), keys (B, G, T, K), positions (B or 1, T).
    """

    def __init__(self, config: BlockConfig):
        super().__init__(config)
        self.rotary_emb = RotaryEmbedding(config)

    def rotation(self, x: torch.Tensor, position_ids: torch.Tensor) -> Rotation:
        cos, sin = self.rotary_emb(x, position_ids)
        return cos.unsqueeze(1), sin.unsqueeze(1)  # (B or 1, 1, T, K): the same for all heads

    @staticmethod
    def rotate(q: torch.Tensor, k: torch.Tensor, rotation: Rotation) -> tuple[torch.Tensor, torch.Tensor]:
        cos, sin = rotation
        return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


def rotate_half(x: torch.Tensor) -> torch.Tensor:
    """Return `x` (..., K) turned by 90° in each plane (i, i + K/2)."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


POSITIONS: dict[str, type[NoPositions]] = {
    "sinusoidal": SinusoidalPositions,
    "learned": LearnedPositions,
    "rotary": RotaryPositions,
    "none": NoPositions,
}


def build_positions(config: BlockConfig) -> NoPositions:
    """Return the position scheme that `config` names."""
    return POSITIONS[config.position_embedding_type](config)
