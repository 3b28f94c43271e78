"""GPT-2 (Radford et al. 2019)."""

from vanillaformer.configuration import VanillaDecoderConfig

from ..mapping.architecture import Architecture, Head, Part
from ..mapping.fields import ALL_KEY_VALUE_HEADS, DERIVED_HEAD_DIM, TEXT, Field, constant, renamed, same
from ..mapping.tensors import Table, Transposed, TransposedRows

BLOCK: Table = {
    ("layers.{layer}.self_attn.q_proj", "layers.{layer}.self_attn.k_proj", "layers.{layer}.self_attn.v_proj"): (
        "h.{layer}.attn.c_attn",
        TransposedRows(3),
    ),
    "layers.{layer}.self_attn.o_proj": ("h.{layer}.attn.c_proj", Transposed()),
    "layers.{layer}.self_attn_residual.norm": "h.{layer}.ln_1",
    "layers.{layer}.mlp.up_proj": ("h.{layer}.mlp.c_fc", Transposed()),
    "layers.{layer}.mlp.down_proj": ("h.{layer}.mlp.c_proj", Transposed()),
    "layers.{layer}.mlp_residual.norm": "h.{layer}.ln_2",
}
STACK: Table = BLOCK | {
    "embed_tokens": "wte",
    "embeddings.positions.embed_positions": "wpe",
    "norm": "ln_f",
}

SIZES = renamed(
    hidden_size="n_embd",
    num_hidden_layers="n_layer",
    num_attention_heads="n_head",
    max_position_embeddings="n_positions",
    norm_eps="layer_norm_epsilon",
    dropout=("resid_pdrop", "embd_pdrop"),
    attention_dropout="attn_pdrop",
)
# GPT, GPT-2 and GPT-J may leave it open: the default is four times the model's width
INNER_SIZE = Field(
    to_ours=lambda config: {"intermediate_size": config.n_inner or 4 * config.n_embd},
    to_native=lambda config: {"n_inner": config.intermediate_size},
)

ARCHITECTURE = Architecture(
    name="gpt2",
    config_class=VanillaDecoderConfig,
    native_config="GPT2Config",
    prefix="transformer.",
    fields=(
        TEXT,
        SIZES,
        INNER_SIZE,
        ALL_KEY_VALUE_HEADS,
        DERIVED_HEAD_DIM,
        same("vocab_size", "initializer_range", "use_cache", "tie_word_embeddings"),
        renamed(hidden_act="activation_function"),
        Field(
            to_ours=lambda config: {"attention_scale": None if config.scale_attn_weights else 1.0},
            to_native=lambda config: {"scale_attn_weights": config.attention_scale != 1.0},
        ),
        constant(position_embedding_type="learned"),
    ),
    parts=(Part(STACK),),
    heads={
        "base": Head("GPT2Model"),
        "lm": Head("GPT2LMHeadModel", {"lm_head": "lm_head"}),
        "sequence": Head("GPT2ForSequenceClassification", {"score": "score"}),
    },
)
