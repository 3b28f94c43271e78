"""Descriptions of models: strict configs, every value of every option, and presets."""

from .base import BlockConfig, ConfigView, VanillaConfig, layer_types
from .decoder import VanillaDecoderConfig
from .encoder import VanillaEncoderConfig
from .encoder_decoder import VanillaEncoderDecoderConfig, VanillaRecurrentEncoderDecoderConfig
from .image_encoder import Stage, VanillaImageEncoderConfig
from .names import ACTIVATION_ALIASES
from .presets import PRESETS, Preset, preset

__all__ = [
    "ACTIVATION_ALIASES", "PRESETS", "BlockConfig", "ConfigView", "Preset", "Stage", "VanillaConfig",
    "VanillaDecoderConfig", "VanillaEncoderConfig", "VanillaEncoderDecoderConfig", "VanillaImageEncoderConfig",
    "VanillaRecurrentEncoderDecoderConfig", "layer_types", "preset",
]  # fmt: skip
