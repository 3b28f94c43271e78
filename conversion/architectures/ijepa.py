"""I-JEPA (Assran et al. 2023): ViT without a class token, whose patches are averaged."""

from vanillaformer.configuration import VanillaImageEncoderConfig

from ..mapping.architecture import Architecture, Head, Part
from ..mapping.fields import constant
from .vit import ENCODER, POOLER_FIELDS, STACK, mask_argument, read_mask_token

ARCHITECTURE = Architecture(
    name="ijepa",
    config_class=VanillaImageEncoderConfig,
    native_config="IJepaConfig",
    prefix="ijepa.",
    fields=(*ENCODER, constant(use_cls_token=False, image_pooling="mean", pooler_act=None)),
    parts=(Part(STACK),),
    heads={
        # its optional pooling layer reads the first patch
        "base": Head("IJepaModel", ignored=POOLER_FIELDS, unconstrained=("use_mask_token",), arguments=mask_argument),
        "image": Head("IJepaForImageClassification", {"classifier": "classifier"}, ignored=POOLER_FIELDS),
    },
    read=read_mask_token,
)
