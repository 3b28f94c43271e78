"""DeiT (Touvron et al. 2021): ViT with a second token, which follows a teacher."""

from vanillaformer.configuration import VanillaImageEncoderConfig

from ..mapping.architecture import Architecture, Part
from ..mapping.fields import constant
from .vit import CLASS_TOKEN, ENCODER, STACK, STRIDE, image_heads, read_bare_options

ARCHITECTURE = Architecture(
    name="deit",
    config_class=VanillaImageEncoderConfig,
    native_config="DeiTConfig",
    prefix="deit.",
    fields=(*ENCODER, CLASS_TOKEN, STRIDE, constant(use_distillation_token=True)),
    parts=(Part(STACK),),
    heads=image_heads("DeiT"),
    read=read_bare_options,
)
