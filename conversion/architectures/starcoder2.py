"""StarCoder 2 (Lozhkov et al. 2024): GPT-2's block with rotary positions and shared key and value heads."""

from vanillaformer.configuration import VanillaDecoderConfig

from ..mapping.architecture import Architecture, Part
from ..mapping.fields import HEAD_DIM, Field, constant, renamed, rotary, same, window_of_all_layers
from ..mapping.tensors import Table
from .llama import ATTENTION, DECODER, ENDS, GROUPED, PRE_NORMS, decoder_heads

FEED_FORWARD: Table = {
    "layers.{layer}.mlp.up_proj": "layers.{layer}.mlp.c_fc",
    "layers.{layer}.mlp.down_proj": "layers.{layer}.mlp.c_proj",
}

ARCHITECTURE = Architecture(
    name="starcoder2",
    config_class=VanillaDecoderConfig,
    native_config="Starcoder2Config",
    prefix="model.",
    fields=(
        *DECODER,
        GROUPED,
        HEAD_DIM,
        same("hidden_act"),
        window_of_all_layers(),
        renamed(norm_eps="norm_epsilon", dropout=("residual_dropout", "embedding_dropout")),
        Field(
            to_ours=lambda config: {"attention_bias": config.use_bias, "mlp_bias": config.use_bias},
            to_native=lambda config: {"use_bias": config.mlp_bias or bool(config.attention_bias)},
        ),
        constant(feed_forward="plain"),
        rotary(),
    ),
    parts=(Part(ATTENTION | FEED_FORWARD | PRE_NORMS | ENDS),),
    heads=decoder_heads("Starcoder2"),
)
