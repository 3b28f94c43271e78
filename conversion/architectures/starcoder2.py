"""StarCoder 2 (Lozhkov et al. 2024): GPT-2's block with rotary positions and shared key and value heads."""

from vanillaformer.configuration import VanillaDecoderConfig

from ..mapping.architecture import Architecture, Part
from ..mapping.fields import HEAD_DIM, all_biases, constant, renamed, rotary, same, window_of_all_layers
from ..mapping.tensors import Table
from .llama import ATTENTION, DECODER, ENDS, GROUPED, PRE_NORMS, decoder_heads

FEED_FORWARD: Table = {
    "layers.{layer}.mlp.up_proj": "layers.{layer}.mlp.c_fc",
    "layers.{layer}.mlp.down_proj": "layers.{layer}.mlp.c_proj",
}

STARCODER2 = Architecture(
    name="starcoder2",
    config_class=VanillaDecoderConfig,
    fields=(
        *DECODER,
        GROUPED,
        HEAD_DIM,
        same("hidden_act"),
        window_of_all_layers(),
        renamed(norm_eps="norm_epsilon", dropout=("residual_dropout", "embedding_dropout")),
        all_biases("use_bias"),
        constant(feed_forward="plain"),
        rotary(),
    ),
    parts=(Part(ATTENTION | FEED_FORWARD | PRE_NORMS | ENDS),),
    heads=decoder_heads("Starcoder2"),
)
