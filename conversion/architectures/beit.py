"""BEiT (Bao et al. 2022): relative positions of patches, layer scale, keys without a bias."""

from transformers import PreTrainedConfig

from vanillaformer.configuration import BlockConfig

from ..mapping.architecture import Head, Part
from ..mapping.fields import ALL_KEY_VALUE_HEADS, HEAD_DIM, Field, Values, constant, mapped, same, switch
from ..mapping.tensors import Table, block
from .dinov2 import BACKBONE_FIELDS
from .vit import BLOCK, CLASSIFIER, IMAGES, PATCHES, POSITIONS, SQUARE, TOKENS, image_encoder

STACK: Table = PATCHES | TOKENS | POSITIONS | BLOCK | {"norm": "layernorm", "pooler.norm": "pooler.layernorm"}
STACK |= block("layers.{layer}.", attention_scale="lambda_1", mlp_scale="lambda_2")
TABLES = "embeddings.positions.relative_attention_bias."
BY_LAYER: Table = {f"{TABLES}{{layer}}.weight": "layers.{layer}.relative_position_bias.relative_position_bias_table"}
SHARED: Table = {f"{TABLES}0.weight": "shared_position_bias.relative_position_bias_table"}


def positions_to_ours(config: PreTrainedConfig) -> Values:
    kind = "learned" if config.use_absolute_position_embeddings else "none"
    if config.use_relative_position_bias or config.use_shared_relative_position_bias:
        kind = "grid_relative"
    return {"position_embedding_type": kind, "relative_attention_per_layer": config.use_relative_position_bias}


def positions_to_native(config: BlockConfig) -> Values:
    is_relative, by_layer = config.position_embedding_type == "grid_relative", config.relative_attention_per_layer
    return {
        "use_absolute_position_embeddings": config.position_embedding_type == "learned",
        "use_relative_position_bias": is_relative and by_layer,
        "use_shared_relative_position_bias": is_relative and not by_layer,
    }


LAYER_SCALE = mapped("layer_scale_init_value", lambda scale: scale or None, lambda scale: scale or 0.0)
SEGMENTATION_FIELDS = (
    *("vocab_size", "pool_scales", "use_auxiliary_head", "semantic_loss_ignore_index", "add_fpn"),
    *(f"auxiliary_{name}" for name in ("loss_weight", "channels", "num_convs", "concat_input")),
)
IGNORED = (*BACKBONE_FIELDS, *SEGMENTATION_FIELDS)

BEIT = image_encoder(
    "beit", "Beit",
    (
        Part(STACK),
        Part(BY_LAYER, when=lambda config: config.relative_attention_per_layer),
        Part(SHARED, when=lambda config: not config.relative_attention_per_layer),
    ),
    {"base": Head(ignored=IGNORED), "image": Head(CLASSIFIER, ignored=IGNORED)},
    *IMAGES, SQUARE, ALL_KEY_VALUE_HEADS, HEAD_DIM, LAYER_SCALE, Field(positions_to_ours, positions_to_native),
    same("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act"),
    same("initializer_range", "drop_path_rate", "use_mask_token"),
    constant(attention_bias=["q_proj", "v_proj", "o_proj"], use_cls_token=True, pooler_act=None),
    switch("use_mean_pooling", "image_pooling", on="mean", off="first"),
    Field(lambda config: {"pooler_norm": config.use_mean_pooling, "final_norm": not config.use_mean_pooling}),
)  # fmt: skip
