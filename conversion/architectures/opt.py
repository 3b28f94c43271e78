"""OPT (Zhang et al. 2022): an open GPT-3, with ReLU and positions from row 2."""

from transformers import PreTrainedConfig

from vanillaformer.configuration import BlockConfig, VanillaDecoderConfig

from ..mapping.architecture import Architecture, Head, Part
from ..mapping.fields import PLAIN_HEADS, TEXT, Field, Values, all_biases, constant, renamed, same
from ..mapping.tensors import Table
from .bart import BLOCK

STACK: Table = BLOCK | {
    "embed_tokens": "embed_tokens",
    "embeddings.positions.embed_positions": "embed_positions",
    "norm": "final_layer_norm",
}


def norms_to_ours(config: PreTrainedConfig) -> Values:
    before, affine = config.do_layer_norm_before, config.layer_norm_elementwise_affine
    return {
        "norm_placement": "pre" if before else "post",
        "final_norm": False if before and config._remove_final_layer_norm else None,
        "norm_weight": affine,
        "norm_bias": affine,
    }


def norms_to_native(config: BlockConfig) -> Values:
    before = config.norm_placement != "post"
    return {
        "do_layer_norm_before": before,
        "_remove_final_layer_norm": before and config.final_norm is False,
        "layer_norm_elementwise_affine": config.norm_weight or config.norm_bias,
    }


OPT = Architecture(
    name="opt",
    config_class=VanillaDecoderConfig,
    fields=(
        TEXT,
        *PLAIN_HEADS,
        same("vocab_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings"),
        same("dropout", "attention_dropout", "use_cache", "tie_word_embeddings"),
        renamed(layer_drop="layerdrop"),
        renamed(hidden_size=("hidden_size", "word_embed_proj_dim"), intermediate_size="ffn_dim"),
        renamed(hidden_act="activation_function", initializer_range="init_std"),
        all_biases("enable_bias"),
        Field(norms_to_ours, norms_to_native),
        constant(position_embedding_type="learned", position_offset=2, norm_eps=1e-5, initialization="normal"),
    ),
    parts=(Part(STACK, native="decoder."),),
    heads={
        "base": Head("OPTModel"),
        "lm": Head("OPTForCausalLM", {"lm_head": "lm_head"}),
        "sequence": Head("OPTForSequenceClassification", {"score": "score"}),
    },
)
