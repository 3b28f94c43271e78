"""What a model is: strict configs, the names of every option, and presets."""

from .block import BlockConfig
from .decoder import VanillaDecoderConfig
from .encoder import VanillaEncoderConfig
from .encoder_decoder import VanillaEncoderDecoderConfig
from .presets import PRESETS, Preset, preset

__all__ = [
    "PRESETS",
    "BlockConfig",
    "Preset",
    "VanillaDecoderConfig",
    "VanillaEncoderConfig",
    "VanillaEncoderDecoderConfig",
    "preset",
]
