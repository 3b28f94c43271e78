"""BERT (Devlin et al. 2019), RoBERTa (Liu et al. 2019), DistilBERT (Sanh et al. 2019) and related encoders."""

from dataclasses import replace
from typing import Any

from vanillaformer.configuration import VanillaEncoderConfig

from ..mapping.architecture import Architecture, Head, Part
from ..mapping.fields import ALL_KEY_VALUE_HEADS, PLAIN_HEADS, TEXT, Field, at_least_one, constant, renamed, same
from ..mapping.tensors import Table, block

LAYER = "encoder.layer.{layer}."
EMBEDDINGS: Table = {
    "embed_tokens": "embeddings.word_embeddings",
    "embeddings.positions.embed_positions": "embeddings.position_embeddings",
    "embeddings.norm": "embeddings.LayerNorm",
}
TOKEN_TYPES: Table = {"embeddings.token_types.embed_token_types": "embeddings.token_type_embeddings"}
STACK: Table = EMBEDDINGS | TOKEN_TYPES | block(
    LAYER, q="attention.self.query", k="attention.self.key", v="attention.self.value", o="attention.output.dense",
    attention_norm="attention.output.LayerNorm", up="intermediate.dense", down="output.dense",
    mlp_norm="output.LayerNorm",
)  # fmt: skip


def predictions(dense: str, norm: str, output: str) -> Table:
    """Return the table of the masked language model's head, given the native names of its parts."""
    return {"transform.dense": dense, "transform.norm": norm, "lm_head": output}


PREDICTIONS = predictions(
    "cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.decoder"
)
SIZES: tuple[Field, ...] = (
    TEXT,
    *PLAIN_HEADS,
    same(
        "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act",
        "initializer_range", "tie_word_embeddings",
    ),
    at_least_one("type_vocab_size"),
    renamed(
        norm_eps="layer_norm_eps", dropout="hidden_dropout_prob", attention_dropout="attention_probs_dropout_prob"
    ),
)  # fmt: skip
FIELDS: tuple[Field, ...] = (
    *SIZES,
    # a classifier without a rate uses that of the blocks
    Field(
        to_ours=lambda config: {"classifier_dropout": config.classifier_dropout},
        to_native=lambda config: {
            "classifier_dropout": None if config.classifier_dropout == config.dropout else config.classifier_dropout
        },
    ),
    constant(position_embedding_type="learned"),
)
CLASSIFIER: Table = {"classifier": "classifier"}
DENSE_CLASSIFIER: Table = {"pooler.dense": "classifier.dense", "classifier": "classifier.out_proj"}
# The layer before the classifier
POOLER: Table = {"pooler.dense": "bert.pooler.dense"}


def on_first(table: Table, act: str = "tanh") -> Head:
    """Return the head that classifies the first token's state."""
    return Head(table, (constant(classifier_pooling="first", classifier_act=act, classifier_norm=False),))


def heads_of(lm: Table, sequence: Head, base: Head | None = None, head_act: str | None = None) -> dict[str, Head]:
    """Return the heads that all these encoders have; `head_act` is the predictions' activation, if it is fixed."""
    fields = () if head_act is None else (constant(head_act=head_act),)
    return {"base": base or Head(), "lm": Head(lm, fields), "sequence": sequence, "token": Head(CLASSIFIER)}


def encoder(
    name: str, classes: str, stack: Table, heads: dict[str, Head], *fields: Field, prefix: str = "", **options: Any
) -> Architecture:
    """Return an encoder of one stack; its name is the default prefix of its tensors."""
    prefix = prefix or f"{name}."
    return Architecture(name, classes, VanillaEncoderConfig, fields, (Part(stack),), heads, prefix=prefix, **options)


BARE = Head(arguments=lambda config: {"add_pooling_layer": False})
BERT_HEADS = heads_of(PREDICTIONS, on_first(POOLER | CLASSIFIER), BARE)
BERT_HEADS |= {"question": Head({"qa_outputs": "qa_outputs"}), "choice": on_first(POOLER | CLASSIFIER)}
UNUSED_BIAS = {"cls.predictions.bias": "lm_head.bias"}
PAIRS: Table = PREDICTIONS | POOLER | {"seq_relationship": "cls.seq_relationship"}
BERT = encoder(
    "bert", "Bert", STACK, BERT_HEADS | {"pretraining": on_first(PAIRS)},
    *FIELDS, same("max_position_embeddings"), unused=UNUSED_BIAS,
)  # fmt: skip

# RoBERTa's positions begin after the id of the padding token, and its table also has the rows before
ROBERTA_POSITIONS = Field(
    to_ours=lambda config: {
        "position_offset": config.pad_token_id + 1,
        "max_position_embeddings": config.max_position_embeddings - config.pad_token_id - 1,
    },
    to_native=lambda config: {"max_position_embeddings": config.max_position_embeddings + config.position_offset},
)
ROBERTA_PREDICTIONS = predictions("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder")
ROBERTA_HEADS = heads_of(ROBERTA_PREDICTIONS, on_first(DENSE_CLASSIFIER), BARE, head_act="gelu")


def roberta_like(
    name: str, classes: str, *fields: Field, prefix: str = "roberta.", stack: Table = STACK
) -> Architecture:
    """Return an encoder with RoBERTa's positions and heads."""
    fields = (*FIELDS, ROBERTA_POSITIONS, *fields)
    bias = {"lm_head.bias": "lm_head.bias"}
    return encoder(name, classes, stack, ROBERTA_HEADS, *fields, prefix=prefix, unused=bias)


ROBERTA = roberta_like("roberta", "Roberta")

# DistilBERT has neither token types nor a pooler
DISTILBERT_STACK: Table = EMBEDDINGS | block(
    "transformer.layer.{layer}.", q="attention.q_lin", k="attention.k_lin", v="attention.v_lin", o="attention.out_lin",
    attention_norm="sa_layer_norm", up="ffn.lin1", down="ffn.lin2", mlp_norm="output_layer_norm",
)  # fmt: skip
DISTILBERT_HEADS = heads_of(
    predictions("vocab_transform", "vocab_layer_norm", "vocab_projector"),
    on_first(CLASSIFIER | {"pooler.dense": "pre_classifier"}, "relu"),
)
DISTILBERT = encoder(
    "distilbert", "DistilBert", DISTILBERT_STACK, DISTILBERT_HEADS,
    TEXT, ALL_KEY_VALUE_HEADS, Field(lambda config: {"head_dim": config.dim // config.n_heads}),
    same("vocab_size", "max_position_embeddings", "initializer_range", "tie_word_embeddings"),
    same("dropout", "attention_dropout"),
    renamed(hidden_size="dim", num_hidden_layers="n_layers", num_attention_heads="n_heads"),
    renamed(intermediate_size="hidden_dim", hidden_act="activation", classifier_dropout="seq_classif_dropout"),
    constant(position_embedding_type="learned", type_vocab_size=0, norm_eps=1e-12),
)  # fmt: skip

# The norms of RoBERTa-PreLayerNorm and Megatron-BERT are before the sublayers
ROBERTA_PRE_NORM = STACK | {"norm": "LayerNorm"}
ROBERTA_PRE_NORM |= block(LAYER, attention_norm="attention.LayerNorm", mlp_norm="intermediate.LayerNorm")
MEGATRON: Table = {name: native for name, native in STACK.items() if name != "embeddings.norm"}
MEGATRON |= block(LAYER, attention_norm="attention.ln", mlp_norm="ln") | {"norm": "encoder.ln"}
ELECTRA_HEADS = heads_of(
    predictions("generator_predictions.dense", "generator_predictions.LayerNorm", "generator_lm_head"),
    on_first(DENSE_CLASSIFIER, "gelu"),
    head_act="gelu",
)

VARIANTS = (
    roberta_like("xlm-roberta", "XLMRoberta"),  # Conneau et al. 2020
    roberta_like("camembert", "Camembert"),  # Martin et al. 2020
    roberta_like("data2vec-text", "Data2VecText", prefix="data2vec_text."),  # Baevski et al. 2022
    # fairseq's pre-LN RoBERTa (Ott et al. 2019)
    roberta_like(
        "roberta-prelayernorm", "RobertaPreLayerNorm", constant(norm_placement="pre"), prefix="roberta_prelayernorm.",
        stack=ROBERTA_PRE_NORM,
    ),
    # Megatron-BERT (Shoeybi et al. 2019): pre-LN BERT without a norm of the embeddings
    encoder(
        "megatron-bert", "MegatronBert", MEGATRON, BERT_HEADS, *SIZES, same("max_position_embeddings"),
        constant(position_embedding_type="learned", norm_placement="pre", embedding_norm=False),
        prefix="bert.", unused=UNUSED_BIAS,
    ),
    # ELECTRA (Clark et al. 2020) as a generator or classifier, if its embeddings are as wide as the model
    encoder(
        "electra", "Electra", STACK,
        {name: replace(head, ignored=("summary_last_dropout",)) for name, head in ELECTRA_HEADS.items()},
        *FIELDS, same("max_position_embeddings"),
        Field(to_native=lambda config: {"embedding_size": config.hidden_size}),
    ),
)  # fmt: skip
