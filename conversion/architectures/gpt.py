"""The first GPT (Radford et al. 2018), GPT-2 (Radford et al. 2019) and GPT-J (Wang and Komatsuzaki 2021)."""

from vanillaformer.configuration import VanillaDecoderConfig

from ..mapping.architecture import Architecture, Head, Part
from ..mapping.fields import PLAIN_HEADS, TEXT, Field, constant, first_rope, renamed, same
from ..mapping.tensors import Table, Transposed, TransposedRows
from .llama import decoder_heads

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
GPT2_STACK: Table = BLOCK | {
    "embed_tokens": "wte",
    "embeddings.positions.embed_positions": "wpe",
    "norm": "ln_f",
}
FIELDS: tuple[Field, ...] = (
    TEXT,
    renamed(
        hidden_size="n_embd",
        num_hidden_layers="n_layer",
        num_attention_heads="n_head",
        max_position_embeddings="n_positions",
        norm_eps="layer_norm_epsilon",
        dropout=("resid_pdrop", "embd_pdrop"),
        attention_dropout="attn_pdrop",
    ),
    *PLAIN_HEADS,
    same("vocab_size", "initializer_range", "tie_word_embeddings"),
)
# GPT-2 and GPT-J may leave it open: the default is four times the model's width
INNER_SIZE = Field(
    to_ours=lambda config: {"intermediate_size": config.n_inner or 4 * config.n_embd},
    to_native=lambda config: {"n_inner": config.intermediate_size},
)


def gpt_heads(name: str, language_model: str) -> dict[str, Head]:
    """Return the heads of the models whose classes are called `name`."""
    return {
        "base": Head(f"{name}Model"),
        "lm": Head(language_model, {"lm_head": "lm_head"}),
        "sequence": Head(f"{name}ForSequenceClassification", {"score": "score"}),
    }


GPT2 = Architecture(
    name="gpt2",
    config_class=VanillaDecoderConfig,
    prefix="transformer.",
    fields=(
        *FIELDS,
        INNER_SIZE,
        same("use_cache"),
        renamed(hidden_act="activation_function"),
        Field(
            to_ours=lambda config: {"attention_scale": None if config.scale_attn_weights else 1.0},
            to_native=lambda config: {"scale_attn_weights": config.attention_scale != 1.0},
        ),
        constant(position_embedding_type="learned"),
    ),
    parts=(Part(GPT2_STACK),),
    heads=gpt_heads("GPT2", "GPT2LMHeadModel"),
)

# GPT is post-LN and has its own names of activations
ACTIVATIONS = {"gelu": "gelu_new", "silu": "silu", "swish": "silu", "relu": "relu"}
NATIVE_ACTIVATIONS = {"gelu_new": "gelu", "gelu_pytorch_tanh": "gelu", "silu": "silu", "swish": "silu"}

OPENAI_GPT = Architecture(
    name="openai-gpt",
    config_class=VanillaDecoderConfig,
    prefix="transformer.",
    fields=(
        *FIELDS,
        Field(
            to_ours=lambda config: {"hidden_act": ACTIVATIONS[config.afn]},
            to_native=lambda config: {"afn": NATIVE_ACTIVATIONS.get(config.hidden_act, "relu")},
        ),
        Field(lambda config: {"intermediate_size": 4 * config.n_embd}),
        constant(position_embedding_type="learned", norm_placement="post", initialization="normal"),
    ),
    parts=(Part(BLOCK | {"embed_tokens": "tokens_embed", "embeddings.positions.embed_positions": "positions_embed"}),),
    heads=gpt_heads("OpenAIGPT", "OpenAIGPTLMHeadModel"),
)

# GPT-J has attention and feed-forward side by side, and interleaved rotary positions
GPTJ_STACK: Table = {
    "embed_tokens": "wte",
    "norm": "ln_f",
    "layers.{layer}.norm": "h.{layer}.ln_1",
    **{f"layers.{{layer}}.self_attn.{name}_proj": f"h.{{layer}}.attn.{name}_proj" for name in "qkv"},
    "layers.{layer}.self_attn.o_proj": "h.{layer}.attn.out_proj",
    "layers.{layer}.mlp.up_proj": "h.{layer}.mlp.fc_in",
    "layers.{layer}.mlp.down_proj": "h.{layer}.mlp.fc_out",
}


ROTARY_DIM = Field(
    to_ours=lambda config: {
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            # a little more than the quotient, so that rounding down gives the same number
            "partial_rotary_factor": min(1.0, (config.rotary_dim + 1e-6) / (config.n_embd // config.n_head)),
        }
    },
    to_native=lambda config: {
        "rotary_dim": int(config.head_dim * (first_rope(config) or {}).get("partial_rotary_factor", 1.0))
    },
)
GPTJ = Architecture(
    name="gptj",
    config_class=VanillaDecoderConfig,
    prefix="transformer.",
    fields=(
        *FIELDS,
        INNER_SIZE,
        same("use_cache"),
        renamed(hidden_act="activation_function"),
        ROTARY_DIM,
        constant(position_embedding_type="rotary", rope_interleaved=True),
        constant(block_layout="parallel_shared_norm", attention_bias=False, initialization="normal"),
    ),
    parts=(Part(GPTJ_STACK),),
    heads=decoder_heads("GPTJ", constant(lm_head_bias=True)),
)
