"""ModernBERT (Warner et al. 2024): pre-LN, rotary positions, and windows in most layers."""

import copy

from vanillaformer.configuration import BlockConfig, layer_types

from ..mapping.architecture import Head
from ..mapping.fields import PLAIN_HEADS, TEXT, Field, Values, constant, filled, optional, renamed, same
from ..mapping.tensors import Table, block, rows
from .bert import CLASSIFIER, encoder
from .llama import ATTENTION_BIAS

ENDS: Table = {"embed_tokens": "embeddings.tok_embeddings", "embeddings.norm": "embeddings.norm", "norm": "final_norm"}
STACK: Table = ENDS | block(
    "layers.{layer}.", qkv=("attn.Wqkv", rows(3)), o="attn.Wo", attention_norm="attn_norm",
    gate_up=("mlp.Wi", rows(2)), down="mlp.Wo", mlp_norm="mlp_norm",
)  # fmt: skip
HEAD: Table = {"transform.dense": "head.dense", "transform.norm": "head.norm"}
POOLER: Table = {"pooler.dense": "head.dense", "pooler.norm": "head.norm"}


def layers_to_native(config: BlockConfig) -> Values:
    types = list(layer_types(config))
    if config.position_embedding_type != "rotary":
        return {"layer_types": types}
    ropes = {name: copy.deepcopy(config.rope_of(name)) for name in sorted(set(types))}
    for rope in ropes.values():
        if rope is not None:
            rope.pop("partial_rotary_factor", None)  # the native code turns all of a head
    window = {} if config.sliding_window is None else {"local_attention": 2 * config.sliding_window}
    return window | {"layer_types": types, "rope_parameters": ropes}


# The layer before the output layer is named after the one before the classifier
LM_FIELDS = (
    renamed(lm_head_bias="decoder_bias", head_bias="classifier_bias"),
    filled("head_act", lambda config: config.head_act or config.hidden_act, "classifier_activation"),
)
CLASSIFIER_FIELDS = (
    renamed(head_bias="classifier_bias", classifier_act="classifier_activation"),
    Field(
        to_ours=lambda config: {"classifier_pooling": "mean" if config.classifier_pooling == "mean" else "first"},
        to_native=lambda config: {"classifier_pooling": "mean" if config.classifier_pooling == "mean" else "cls"},
    ),
    constant(classifier_norm=True),
)
CLASSIFIER_ONLY = ("classifier_activation", "classifier_bias", "classifier_pooling")

MODERNBERT = encoder(
    "modernbert", "ModernBert", STACK,
    {
        "base": Head(ignored=(*CLASSIFIER_ONLY, "decoder_bias")),
        "lm": Head(HEAD | {"lm_head": "decoder"}, LM_FIELDS, ("classifier_pooling",)),
        "sequence": Head(POOLER | CLASSIFIER, CLASSIFIER_FIELDS, ("decoder_bias",)),
    },
    TEXT, optional("cls_token_id", "sep_token_id"), *PLAIN_HEADS, ATTENTION_BIAS,
    same("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"),
    same("max_position_embeddings", "initializer_range", "norm_eps", "norm_bias", "mlp_bias"),
    same("tie_word_embeddings", "attention_dropout", "classifier_dropout"),
    renamed(hidden_act="hidden_activation", dropout="embedding_dropout", activation_dropout="mlp_dropout"),
    constant(feed_forward="gated", norm_placement="pre", skip_first_norm=True, type_vocab_size=0),
    constant(position_embedding_type="rotary", initialization="gpt2"),
    Field(
        to_ours=lambda config: {
            "sliding_window": config.sliding_window,
            "layer_types": list(config.layer_types),
            "rope_parameters": {name: config.rope_parameters[name] for name in sorted(set(config.layer_types))},
        },
        to_native=layers_to_native,
    ),
    prefix="model.",
)  # fmt: skip
