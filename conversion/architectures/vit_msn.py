"""ViT-MSN (Assran et al. 2022): ViT, trained without labels on masked views."""

from vanillaformer.configuration import VanillaImageEncoderConfig

from ..mapping.architecture import Architecture, Head, Part
from ..mapping.fields import constant
from .vit import CLASS_TOKEN, ENCODER, STACK, mask_argument, read_mask_token

ARCHITECTURE = Architecture(
    name="vit_msn",
    config_class=VanillaImageEncoderConfig,
    native_config="ViTMSNConfig",
    prefix="vit.",
    fields=(*ENCODER, CLASS_TOKEN, constant(pooler_act=None)),
    parts=(Part(STACK),),
    heads={
        "base": Head("ViTMSNModel", unconstrained=("use_mask_token",), arguments=mask_argument),
        "image": Head("ViTMSNForImageClassification", {"classifier": "classifier"}),
    },
    read=read_mask_token,
)
