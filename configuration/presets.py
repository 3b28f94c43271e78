"""Published (and tiny) architectures by name: a config class and the fields that differ from its defaults."""

from typing import Any, NamedTuple

from .block import BlockConfig
from .decoder import VanillaDecoderConfig
from .encoder import VanillaEncoderConfig
from .encoder_decoder import VanillaEncoderDecoderConfig


class Preset(NamedTuple):
    """A config class with field values.

    The tiny presets leave `attention_dropout` at 0: on a CPU dropout on the attention probabilities rules out the
    fused kernel, and models this small do not need it.
    """

    config_class: type[BlockConfig]
    fields: dict[str, Any]


TWELVE_LAYERS = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}
TINY = {"hidden_size": 128, "max_position_embeddings": 256, "dropout": 0.1}
GPT_SMALL = {**TWELVE_LAYERS, "position_embedding_type": "learned", "dropout": 0.1}

PRESETS: dict[str, Preset] = {
    # Vaswani et al. 2017, table 3: base and big (English-German).
    "transformer-base": Preset(VanillaEncoderDecoderConfig, {"dropout": 0.1}),
    "transformer-big": Preset(
        VanillaEncoderDecoderConfig, {"hidden_size": 1024, "num_attention_heads": 16, "dropout": 0.3}
    ),
    "transformer-tiny": Preset(
        VanillaEncoderDecoderConfig,
        {**TINY, "num_hidden_layers": 2, "num_attention_heads": 4},
    ),
    # Radford et al. 2018: learned positions, post-LN and an initialisation that does not look at the depth.
    "gpt": Preset(
        VanillaDecoderConfig,
        {
            **GPT_SMALL,
            "vocab_size": 40478,
            "norm_placement": "post",
            "initialization": "normal",
            "attention_dropout": 0.1,
            "max_position_embeddings": 512,
        },
    ),
    # Radford et al. 2019, the smallest of the four.
    "gpt2": Preset(VanillaDecoderConfig, {**GPT_SMALL, "attention_dropout": 0.1}),
    "gpt-tiny": Preset(
        VanillaDecoderConfig,
        {
            **TINY,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "position_embedding_type": "learned",
        },
    ),
    # Touvron et al. 2023, shrunk: RMSNorm, rotary positions, SwiGLU, grouped key/value heads, no biases.
    "llama-tiny": Preset(
        VanillaDecoderConfig,
        {
            "hidden_size": 128,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "intermediate_size": 344,
            "feed_forward": "gated",
            "hidden_act": "silu",
            "norm": "rms_norm",
            "attention_bias": False,
            "mlp_bias": False,
            "initialization": "normal",
            "tie_word_embeddings": False,
        },
    ),
    # Devlin et al. 2019.
    "bert-base": Preset(VanillaEncoderConfig, {**TWELVE_LAYERS, "dropout": 0.1, "attention_dropout": 0.1}),
    "bert-tiny": Preset(
        VanillaEncoderConfig,
        {**TINY, "num_hidden_layers": 2, "num_attention_heads": 2},
    ),
}


def preset(name: str, **overrides: Any) -> BlockConfig:
    """Return the config called `name`, with `overrides` in place of its field values.

    Raises:
        ValueError: `name` is not one of `PRESETS`.
    """
    if name not in PRESETS:
        raise ValueError(f"preset must be one of {', '.join(PRESETS)}, got {name!r}")
    config_class, fields = PRESETS[name]
    return config_class(**(fields | overrides))
