"""Swin (Liu et al. 2021): stages of layers on windows of patches, and merged patches between them."""

from transformers import PreTrainedConfig

from vanillaformer.configuration import BlockConfig
from vanillaformer.configuration.image_encoder import image_sides

from ..mapping.architecture import Head, Part
from ..mapping.fields import Field, Values, constant, renamed, same
from ..mapping.tensors import BATCHED, Table
from . import vit

LAYER = "encoder.layers.{stage}.blocks.{block}."
STACK: Table = (
    vit.PATCHES
    | vit.vit_block(LAYER)
    | {
        "embeddings.mask_token.weight": ("embeddings.mask_token", BATCHED),
        "embeddings.patch_norm": "embeddings.norm",
        "embeddings.positions.relative_attention_bias.{layer}.weight": (
            f"{LAYER}attention.relative_position_bias.relative_position_bias_table"
        ),
        "merges.{layer}.norm": "encoder.layers.{layer}.downsample.norm",
        "merges.{layer}.reduction": "encoder.layers.{layer}.downsample.reduction",
        "norm": "layernorm",
    }
)


def check_windows(side: int, window: int, stages: int) -> None:
    """Raise ValueError unless windows divide the patches of every stage: the native model attends to padding."""
    for stage in range(stages):
        if side % window:
            raise ValueError(
                f"window_size={window} must divide the {side} by {side} patches of stage {stage + 1}: the native "
                "model attends to the padding of its windows, ours does not"
            )
        side = (side + 1) // 2


def stages_to_ours(config: PreTrainedConfig) -> Values:
    (size, _), (patch, _) = image_sides(config.image_size), image_sides(config.patch_size)
    check_windows(size // patch, config.window_size, len(config.depths))
    heads = list(config.num_heads)
    return {
        "depths": list(config.depths),
        "num_hidden_layers": sum(config.depths),
        "stage_heads": heads,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[0],
        "head_dim": config.embed_dim // heads[0],
        "window_size": config.window_size,
        "intermediate_size": int(config.embed_dim * config.mlp_ratio),
    }


def stages_to_native(config: BlockConfig) -> Values:
    stages = config.stages
    if config.window_size is not None:
        check_windows(config.grid[0], config.window_size, len(stages))
    window: Values = {} if config.window_size is None else {"window_size": config.window_size}
    return window | {
        "depths": [stage.depth for stage in stages],
        "num_heads": [stage.config.num_attention_heads for stage in stages],
        "mlp_ratio": config.intermediate_size / config.hidden_size,
    }


IGNORED = ("_out_features", "_out_indices")
STRIDE = ("encoder_stride",)  # only reconstruction reads it

SWIN = vit.image_encoder(
    "swin", "Swin", (Part(STACK),),
    {
        "base": Head(ignored=IGNORED + STRIDE, unconstrained=("use_mask_token",), arguments=vit.mask_argument),
        "image": Head(vit.CLASSIFIER, ignored=IGNORED + STRIDE),
        "masked_image": Head(vit.RECONSTRUCTION, ignored=IGNORED),
    },
    *vit.IMAGES, vit.SQUARE, vit.QUERY_KEY_VALUE_BIAS, renamed(hidden_size="embed_dim"),
    same("hidden_act", "initializer_range", "drop_path_rate"), Field(stages_to_ours, stages_to_native),
    # the native norms of patches ignore the epsilon of the config
    Field(lambda config: {"norm_eps": 1e-5}, lambda config: {"layer_norm_eps": 1e-5}),
    Field(to_native=lambda config: {"encoder_stride": config.output_stride}),
    constant(position_embedding_type="window_relative", patch_norm=True, use_cls_token=False),
    constant(image_pooling="mean", pooler_act=None),
    read=vit.read_mask_token,
)  # fmt: skip
