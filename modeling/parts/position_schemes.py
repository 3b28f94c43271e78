"""The list of position schemes, `POSITIONS`, and what a stack and its layers build of it."""

from vanillaformer.configuration import BlockConfig

from .grid_positions import (
    GridRelativePositions,
    GridRotaryPositions,
    GridSinusoidalPositions,
    WindowRelativePositions,
)
from .positions import (
    AlibiPositions,
    LearnedPositions,
    NoPositions,
    RelativePositions,
    RotaryPositions,
    Rotate,
    SinusoidalPositions,
)

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
    """Return the position scheme that `config` names."""
    return POSITIONS[config.position_embedding_type](config, is_causal)


def build_rotate(config: BlockConfig, layer_idx: int) -> Rotate:
    """Return the function that rotates a layer's queries and keys by position."""
    return POSITIONS[config.position_embedding_type].build_rotate(config, layer_idx)
