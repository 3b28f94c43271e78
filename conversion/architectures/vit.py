"""ViT (Dosovitskiy et al. 2021), its closest relatives, and tables that other image encoders share."""

from typing import Any

from vanillaformer.configuration import BlockConfig, VanillaImageEncoderConfig
from vanillaformer.configuration.image_encoder import image_sides

from ..mapping.architecture import Architecture, Head, Part
from ..mapping.fields import ALL_KEY_VALUE_HEADS, HEAD_DIM, Field, Values, constant, mapped, renamed, same
from ..mapping.tensors import BATCHED, PATCH_CONVOLUTION, POINT_CONVOLUTION, Table, block

PROJECTION = "embeddings.patch_embeddings.projection"
PATCHES: Table = {PROJECTION: (PROJECTION, PATCH_CONVOLUTION)}
TOKENS: Table = {
    f"embeddings.{name}.weight": (f"embeddings.{name}", BATCHED)
    for name in ("cls_token", "distillation_token", "register_tokens", "mask_token")
}
POSITIONS: Table = {"embeddings.positions.embed_positions.weight": ("embeddings.position_embeddings", BATCHED)}


def vit_block(layer: str) -> Table:
    """Return the table of ViT's block, given the native name of a layer."""
    return block(
        layer, q="attention.q_proj", k="attention.k_proj", v="attention.v_proj", o="attention.o_proj",
        attention_norm="layernorm_before", up="mlp.fc1", down="mlp.fc2", mlp_norm="layernorm_after",
    )  # fmt: skip


BLOCK = vit_block("layers.{layer}.")
STACK: Table = PATCHES | TOKENS | POSITIONS | BLOCK | {"norm": "layernorm"}


# The first of two sides; a config whose sides differ is refused
PATCH_SIZE = mapped("patch_size", lambda size: image_sides(size)[0], lambda size: size)
QUERY_KEY_VALUE_BIAS = Field(
    to_ours=lambda config: {"attention_bias": True if config.qkv_bias else ["o_proj"]},
    to_native=lambda config: {"qkv_bias": any(config.has_attention_bias(f"{name}_proj") for name in "qkv")},
)
IMAGES: tuple[Field, ...] = (
    same("image_size", "num_channels"),
    PATCH_SIZE,
    constant(norm_placement="pre"),
    renamed(norm_eps="layer_norm_eps", dropout="hidden_dropout_prob"),
    renamed(attention_dropout="attention_probs_dropout_prob"),
)
ENCODER: tuple[Field, ...] = (
    *IMAGES,
    ALL_KEY_VALUE_HEADS,
    HEAD_DIM,
    QUERY_KEY_VALUE_BIAS,
    same("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act"),
    same("initializer_range"),
    constant(position_embedding_type="learned"),
)
CLASSIFIER: Table = {"classifier": "classifier"}
RECONSTRUCTION: Table = {"decoder": ("decoder.0", POINT_CONVOLUTION)}
CLASS_TOKEN = constant(use_cls_token=True, image_pooling="first")

# Only bare models have the tanh layer after pooling; the config names its activation even without it
POOLER = mapped("pooler_act", lambda name: name, lambda name: name or "tanh")
POOLER_FIELDS = ("pooler_act", "pooler_output_size")
# In pixels, so that the reconstruction has the size of the image
STRIDE = Field(to_native=lambda config: {"encoder_stride": config.patch_size})


def read_mask_token(model: Any) -> Values:
    """Return our field for the optional mask token of a bare native model."""
    return {"use_mask_token": model.embeddings.mask_token is not None} if model is model.base_model else {}


def mask_argument(config: BlockConfig) -> Values:
    """Return the argument of a bare native model with a mask token if ours has one."""
    return {"use_mask_token": config.use_mask_token}


def read_bare_options(model: Any) -> Values:
    """Return our fields for the optional parts of a bare native model, mask token and pooling layer."""
    fields = read_mask_token(model)
    return fields and fields | {"pooler_act": None if model.pooler is None else model.config.pooler_act}


# A square image, which some native models need
SQUARE = Field(to_native=lambda config: {"image_size": image_sides(config.image_size)[0]})


VIT_HEADS = {
    "base": Head(
        {"pooler.dense": "pooler.dense"},
        (POOLER,),
        ignored=("pooler_act", "encoder_stride"),
        unconstrained=("pooler_act", "use_mask_token"),
        arguments=lambda config: mask_argument(config) | {"add_pooling_layer": config.pooler_act is not None},
    ),
    "image": Head(CLASSIFIER, (constant(pooler_act=None),), (*POOLER_FIELDS, "encoder_stride")),
    "masked_image": Head(RECONSTRUCTION, (SQUARE,), POOLER_FIELDS),
}


def image_encoder(
    name: str, classes: str, parts: tuple[Part, ...], heads: dict[str, Head], *fields: Field, **options: Any
) -> Architecture:
    """Return an encoder of images, whose name is also the prefix of its tensors unless `options` has another."""
    options = {"prefix": f"{name}."} | options
    return Architecture(name, classes, VanillaImageEncoderConfig, fields, parts, heads, **options)


def vit_like(name: str, classes: str, *fields: Field) -> Architecture:
    """Return an encoder with a class token and ViT's heads."""
    fields = (*ENCODER, CLASS_TOKEN, STRIDE, *fields)
    return image_encoder(name, classes, (Part(STACK),), VIT_HEADS, *fields, read=read_bare_options)


VIT = vit_like("vit", "ViT")

# DeiT (Touvron et al. 2021) has a second token, which learns from a teacher
DEIT = vit_like("deit", "DeiT", constant(use_distillation_token=True))

# ViT-MSN (Assran et al. 2022) was trained without labels on masked views
VIT_MSN = image_encoder(
    "vit_msn", "ViTMSN", (Part(STACK),),
    {"base": Head(unconstrained=("use_mask_token",), arguments=mask_argument), "image": Head(CLASSIFIER)},
    *ENCODER, CLASS_TOKEN, constant(pooler_act=None), prefix="vit.", read=read_mask_token,
)  # fmt: skip

# I-JEPA (Assran et al. 2023) has no class token: patches are averaged
IJEPA = image_encoder(
    "ijepa", "IJepa", (Part(STACK),),
    {
        # its optional pooling layer reads the first patch
        "base": Head(ignored=POOLER_FIELDS, unconstrained=("use_mask_token",), arguments=mask_argument),
        "image": Head(CLASSIFIER, ignored=POOLER_FIELDS),
    },
    *ENCODER, constant(use_cls_token=False, image_pooling="mean", pooler_act=None), read=read_mask_token,
)  # fmt: skip
