"""DINOv2 with registers (Darcet et al. 2024): tokens without a position between class token and patches."""

from vanillaformer.configuration import VanillaImageEncoderConfig

from ..mapping.architecture import Architecture
from ..mapping.fields import constant, same
from .dinov2 import FIELDS, PARTS, classifying_heads

ARCHITECTURE = Architecture(
    name="dinov2_with_registers",
    config_class=VanillaImageEncoderConfig,
    native_config="Dinov2WithRegistersConfig",
    prefix="dinov2_with_registers.",
    fields=(*FIELDS, same("num_register_tokens"), constant(use_mask_token=True)),
    parts=PARTS,
    heads=classifying_heads("Dinov2WithRegisters"),
)
