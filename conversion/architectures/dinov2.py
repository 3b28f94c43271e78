"""DINOv2 (Oquab et al. 2023): ViT with layer scale, and a classifier that reads class token and patches.

With registers (Darcet et al. 2024) it has tokens without a position between class token and patches.
"""

from transformers import PreTrainedConfig

from vanillaformer.configuration import BlockConfig

from ..mapping.architecture import Head, Part
from ..mapping.fields import ALL_KEY_VALUE_HEADS, HEAD_DIM, Field, Values, at_least_one, constant, same
from ..mapping.tensors import Table, block
from .vit import CLASSIFIER, IMAGES, PATCHES, POSITIONS, QUERY_KEY_VALUE_BIAS, SQUARE, TOKENS, image_encoder

LAYER = "encoder.layer.{layer}."
BLOCK = block(
    LAYER, q="attention.q_proj", k="attention.k_proj", v="attention.v_proj", o="attention.o_proj",
    attention_norm="norm1", attention_scale="layer_scale1.lambda1",
    mlp_norm="norm2", mlp_scale="layer_scale2.lambda1",
)  # fmt: skip
MASK_TOKEN: Table = {"embeddings.mask_token.weight": "embeddings.mask_token"}  # without a batch axis
STACK: Table = PATCHES | TOKENS | MASK_TOKEN | POSITIONS | BLOCK | {"norm": "layernorm"}
PLAIN = block(f"{LAYER}mlp.", up="fc1", down="fc2")
GATED = block(f"{LAYER}mlp.", gate="gate_proj", up="up_proj", down="down_proj")
PARTS = (
    Part(STACK),
    Part(PLAIN, when=lambda config: config.feed_forward == "plain"),
    Part(GATED, when=lambda config: config.feed_forward == "gated"),
)


def gated_width(width: int, ratio: int) -> int:
    """Return two thirds of the inner width, rounded up to a multiple of 8."""
    return (int(width * ratio * 2 / 3) + 7) // 8 * 8


def feed_forward_to_ours(config: PreTrainedConfig) -> Values:
    width, ratio = config.hidden_size, config.mlp_ratio
    if config.use_swiglu_ffn:
        return {"feed_forward": "gated", "hidden_act": "silu", "intermediate_size": gated_width(width, ratio)}
    return {"feed_forward": "plain", "hidden_act": config.hidden_act, "intermediate_size": width * ratio}


def feed_forward_to_native(config: BlockConfig) -> Values:
    width, inner, is_gated = config.hidden_size, config.intermediate_size, config.feed_forward == "gated"
    ratio = round(inner / width * (1.5 if is_gated else 1)) or 1
    if is_gated:
        near = [each for each in (ratio, ratio - 1, ratio + 1) if each > 0 and gated_width(width, each) == inner]
        return {"use_swiglu_ffn": True, "mlp_ratio": (near or [ratio])[0]}
    return {"use_swiglu_ffn": False, "mlp_ratio": ratio, "hidden_act": config.hidden_act}


FEED_FORWARD = Field(feed_forward_to_ours, feed_forward_to_native)
LAYER_SCALE = Field(
    to_ours=lambda config: {"layer_scale_init_value": config.layerscale_value},
    to_native=lambda config: (
        {} if config.layer_scale_init_value is None else {"layerscale_value": config.layer_scale_init_value}
    ),
)
FIELDS: tuple[Field, ...] = (
    *IMAGES,
    SQUARE,
    ALL_KEY_VALUE_HEADS,
    HEAD_DIM,
    QUERY_KEY_VALUE_BIAS,
    same("hidden_size", "num_hidden_layers", "num_attention_heads", "initializer_range", "drop_path_rate"),
    FEED_FORWARD,
    LAYER_SCALE,
    constant(position_embedding_type="learned", use_cls_token=True, pooler_act=None, pooler_norm=False),
)
BACKBONE_FIELDS = ("_out_features", "_out_indices", "apply_layernorm", "reshape_hidden_states")


HEADS = {
    "base": Head(fields=(constant(image_pooling="first"),), ignored=BACKBONE_FIELDS),
    "image": Head(CLASSIFIER, (constant(image_pooling="first_and_mean"),), BACKBONE_FIELDS),
}

DINOV2 = image_encoder("dinov2", "Dinov2", PARTS, HEADS, *FIELDS, same("use_mask_token"))
DINOV2_WITH_REGISTERS = image_encoder(
    "dinov2_with_registers", "Dinov2WithRegisters", PARTS, HEADS, *FIELDS,
    at_least_one("num_register_tokens"), constant(use_mask_token=True),
)  # fmt: skip
