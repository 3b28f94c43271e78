"""GPT-NeoX (Black et al. 2022) with Pythia, and BLOOM (BigScience 2022): queries, keys and values head by head."""

from ..mapping.fields import PLAIN_HEADS, TEXT, Field, constant, renamed, rotary, same, switch
from ..mapping.tensors import block
from .llama import ATTENTION_BIAS, DECODER, LAYER, LAYER_NORM, PRE_NORMS, decoder, neox_block

# Attention and feed-forward in parallel, each after its norm
GPT_NEOX = decoder(
    "gpt_neox", "GPTNeoX",
    neox_block(LAYER, "attention") | PRE_NORMS | {"embed_tokens": "embed_in", "norm": "final_layer_norm"},
    *DECODER, LAYER_NORM, *PLAIN_HEADS, ATTENTION_BIAS, same("hidden_act"), renamed(dropout="hidden_dropout"),
    switch("use_parallel_residual", "block_layout", on="parallel", off="sequential"), rotary(partial=True),
    prefix="gpt_neox.",
)  # fmt: skip

# ALiBi and a norm after the embeddings
BLOOM = decoder(
    "bloom", "Bloom",
    neox_block("h.{layer}.", "self_attention")
    | block("h.{layer}.", attention_norm="input_layernorm", mlp_norm="post_attention_layernorm")
    | {"embed_tokens": "word_embeddings", "embeddings.norm": "word_embeddings_layernorm", "norm": "ln_f"},
    TEXT, *PLAIN_HEADS,
    same("vocab_size", "hidden_size", "attention_dropout", "initializer_range", "use_cache", "tie_word_embeddings"),
    renamed(num_hidden_layers="n_layer", num_attention_heads="n_head", norm_eps="layer_norm_epsilon"),
    renamed(dropout="hidden_dropout"), Field(lambda config: {"intermediate_size": 4 * config.hidden_size}),
    constant(position_embedding_type="alibi", embedding_norm=True, hidden_act="gelu_pytorch_tanh"),
    constant(initialization="normal"),
    prefix="transformer.",
)  # fmt: skip
