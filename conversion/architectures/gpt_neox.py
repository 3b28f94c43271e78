"""GPT-NeoX (Black et al. 2022) with Pythia, and BLOOM (BigScience 2022): queries, keys and values head by head."""

from vanillaformer.configuration import VanillaDecoderConfig

from ..mapping.architecture import Architecture, Part
from ..mapping.fields import PLAIN_HEADS, TEXT, Field, constant, renamed, rotary, same, switch
from ..mapping.tensors import Table
from .llama import ATTENTION_BIAS, DECODER, LAYER_NORM, PRE_NORMS, decoder_heads, neox_block

# Attention and feed-forward in parallel, each after its norm
NEOX_ENDS: Table = {"embed_tokens": "embed_in", "norm": "final_layer_norm"}
GPT_NEOX = Architecture(
    name="gpt_neox",
    config_class=VanillaDecoderConfig,
    prefix="gpt_neox.",
    fields=(
        *DECODER,
        LAYER_NORM,
        *PLAIN_HEADS,
        ATTENTION_BIAS,
        same("hidden_act"),
        renamed(dropout="hidden_dropout"),
        switch("use_parallel_residual", "block_layout", on="parallel", off="sequential"),
        rotary(partial=True),
    ),
    parts=(Part(neox_block("layers.{layer}", "attention") | PRE_NORMS | NEOX_ENDS),),
    heads=decoder_heads("GPTNeoX"),
)

# ALiBi and a norm after the embeddings
BLOOM_ENDS: Table = {"embed_tokens": "word_embeddings", "embeddings.norm": "word_embeddings_layernorm", "norm": "ln_f"}
BLOOM_NORMS: Table = {
    "layers.{layer}.self_attn_residual.norm": "h.{layer}.input_layernorm",
    "layers.{layer}.mlp_residual.norm": "h.{layer}.post_attention_layernorm",
}
BLOOM = Architecture(
    name="bloom",
    config_class=VanillaDecoderConfig,
    prefix="transformer.",
    fields=(
        TEXT,
        *PLAIN_HEADS,
        same("vocab_size", "hidden_size", "attention_dropout", "initializer_range", "use_cache"),
        same("tie_word_embeddings"),
        renamed(num_hidden_layers="n_layer", num_attention_heads="n_head", norm_eps="layer_norm_epsilon"),
        renamed(dropout="hidden_dropout"),
        Field(lambda config: {"intermediate_size": 4 * config.hidden_size}),
        constant(position_embedding_type="alibi", embedding_norm=True, hidden_act="gelu_pytorch_tanh"),
        constant(initialization="normal"),
    ),
    parts=(Part(neox_block("h.{layer}", "self_attention") | BLOOM_NORMS | BLOOM_ENDS),),
    heads=decoder_heads("Bloom"),
)
