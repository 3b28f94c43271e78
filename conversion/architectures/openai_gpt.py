"""The first GPT (Radford et al. 2018): post-LN."""

from vanillaformer.configuration import VanillaDecoderConfig

from ..mapping.architecture import Architecture, Head, Part
from ..mapping.fields import ALL_KEY_VALUE_HEADS, DERIVED_HEAD_DIM, TEXT, Field, constant, same
from ..mapping.tensors import Table
from .gpt2 import BLOCK, SIZES

STACK: Table = BLOCK | {
    "embed_tokens": "tokens_embed",
    "embeddings.positions.embed_positions": "positions_embed",
}
# Its own names of activations
ACTIVATIONS = {"gelu": "gelu_new", "silu": "silu", "swish": "silu", "relu": "relu"}
NATIVE_ACTIVATIONS = {"gelu_new": "gelu", "gelu_pytorch_tanh": "gelu", "silu": "silu", "swish": "silu"}

ARCHITECTURE = Architecture(
    name="openai-gpt",
    config_class=VanillaDecoderConfig,
    native_config="OpenAIGPTConfig",
    prefix="transformer.",
    fields=(
        TEXT,
        SIZES,
        ALL_KEY_VALUE_HEADS,
        DERIVED_HEAD_DIM,
        same("vocab_size", "initializer_range", "tie_word_embeddings"),
        Field(
            to_ours=lambda config: {"hidden_act": ACTIVATIONS[config.afn]},
            to_native=lambda config: {"afn": NATIVE_ACTIVATIONS.get(config.hidden_act, "relu")},
        ),
        Field(to_ours=lambda config: {"intermediate_size": 4 * config.n_embd}, to_native=lambda config: {}),
        constant(position_embedding_type="learned", norm_placement="post", initialization="normal"),
    ),
    parts=(Part(STACK),),
    heads={
        "base": Head("OpenAIGPTModel"),
        "lm": Head("OpenAIGPTLMHeadModel", {"lm_head": "lm_head"}),
        "sequence": Head("OpenAIGPTForSequenceClassification", {"score": "score"}),
    },
)
