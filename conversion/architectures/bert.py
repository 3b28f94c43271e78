"""BERT (Devlin et al. 2019), RoBERTa (Liu et al. 2019) and DistilBERT (Sanh et al. 2019)."""

from vanillaformer.configuration import VanillaEncoderConfig

from ..mapping.architecture import Architecture, Head, Part
from ..mapping.fields import ALL_KEY_VALUE_HEADS, PLAIN_HEADS, TEXT, Field, at_least_one, constant, renamed, same
from ..mapping.tensors import Table

LAYER = "encoder.layer.{layer}."
STACK: Table = {
    "layers.{layer}.self_attn.q_proj": f"{LAYER}attention.self.query",
    "layers.{layer}.self_attn.k_proj": f"{LAYER}attention.self.key",
    "layers.{layer}.self_attn.v_proj": f"{LAYER}attention.self.value",
    "layers.{layer}.self_attn.o_proj": f"{LAYER}attention.output.dense",
    "layers.{layer}.self_attn_residual.norm": f"{LAYER}attention.output.LayerNorm",
    "layers.{layer}.mlp.up_proj": f"{LAYER}intermediate.dense",
    "layers.{layer}.mlp.down_proj": f"{LAYER}output.dense",
    "layers.{layer}.mlp_residual.norm": f"{LAYER}output.LayerNorm",
    "embed_tokens": "embeddings.word_embeddings",
    "embeddings.positions.embed_positions": "embeddings.position_embeddings",
    "embeddings.token_types.embed_token_types": "embeddings.token_type_embeddings",
    "embeddings.norm": "embeddings.LayerNorm",
}
PREDICTIONS: Table = {
    "transform.dense": "cls.predictions.transform.dense",
    "transform.norm": "cls.predictions.transform.LayerNorm",
    "lm_head": "cls.predictions.decoder",
}
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
    # without a rate of its own a classifier has the blocks'
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
# The layer in front of the classifier
POOLER: Table = {"pooler.dense": "bert.pooler.dense"}
TANH_OF_FIRST = constant(classifier_pooling="first", classifier_act="tanh", classifier_norm=False)

BERT = Architecture(
    name="bert",
    config_class=VanillaEncoderConfig,
    prefix="bert.",
    fields=(*FIELDS, same("max_position_embeddings")),
    parts=(Part(STACK),),
    heads={
        "base": Head("BertModel", arguments=lambda config: {"add_pooling_layer": False}),
        "lm": Head("BertForMaskedLM", PREDICTIONS),
        "pretraining": Head(
            "BertForPreTraining",
            PREDICTIONS | POOLER | {"seq_relationship": "cls.seq_relationship"},
            (TANH_OF_FIRST,),
        ),
        "sequence": Head("BertForSequenceClassification", POOLER | CLASSIFIER, (TANH_OF_FIRST,)),
        "token": Head("BertForTokenClassification", CLASSIFIER),
    },
    unused={"cls.predictions.bias": "lm_head.bias"},
)

# RoBERTa numbers positions after the padding's: the table has rows up to that, too
ROBERTA_POSITIONS = Field(
    to_ours=lambda config: {
        "position_offset": config.pad_token_id + 1,
        "max_position_embeddings": config.max_position_embeddings - config.pad_token_id - 1,
    },
    to_native=lambda config: {"max_position_embeddings": config.max_position_embeddings + config.position_offset},
)
ROBERTA_PREDICTIONS: Table = {
    "transform.dense": "lm_head.dense",
    "transform.norm": "lm_head.layer_norm",
    "lm_head": "lm_head.decoder",
}


def roberta_kin(name: str, native: str, prefix: str, stack: Table = STACK, *fields: Field) -> Architecture:
    """Return an encoder with RoBERTa's positions and heads, whose classes are called `native`."""
    return Architecture(
        name,
        VanillaEncoderConfig,
        prefix=prefix,
        fields=(*FIELDS, ROBERTA_POSITIONS, *fields),
        parts=(Part(stack),),
        heads={
            "base": Head(f"{native}Model", arguments=lambda config: {"add_pooling_layer": False}),
            "lm": Head(f"{native}ForMaskedLM", ROBERTA_PREDICTIONS, (constant(head_act="gelu"),)),
            "sequence": Head(f"{native}ForSequenceClassification", DENSE_CLASSIFIER, (TANH_OF_FIRST,)),
            "token": Head(f"{native}ForTokenClassification", CLASSIFIER),
        },
        unused={"lm_head.bias": "lm_head.bias"},
    )


ROBERTA = roberta_kin("roberta", "Roberta", "roberta.")

# DistilBERT has neither token types nor a pooler
DISTILBERT_STACK: Table = {
    "embed_tokens": "embeddings.word_embeddings",
    "embeddings.positions.embed_positions": "embeddings.position_embeddings",
    "embeddings.norm": "embeddings.LayerNorm",
    **{
        f"layers.{{layer}}.self_attn.{name}_proj": f"transformer.layer.{{layer}}.attention.{native}_lin"
        for name, native in {"q": "q", "k": "k", "v": "v", "o": "out"}.items()
    },
    "layers.{layer}.self_attn_residual.norm": "transformer.layer.{layer}.sa_layer_norm",
    "layers.{layer}.mlp.up_proj": "transformer.layer.{layer}.ffn.lin1",
    "layers.{layer}.mlp.down_proj": "transformer.layer.{layer}.ffn.lin2",
    "layers.{layer}.mlp_residual.norm": "transformer.layer.{layer}.output_layer_norm",
}
DISTILBERT = Architecture(
    name="distilbert",
    config_class=VanillaEncoderConfig,
    prefix="distilbert.",
    fields=(
        TEXT,
        ALL_KEY_VALUE_HEADS,
        Field(lambda config: {"head_dim": config.dim // config.n_heads}),
        same("vocab_size", "max_position_embeddings", "initializer_range", "tie_word_embeddings"),
        same("dropout", "attention_dropout"),
        renamed(
            hidden_size="dim",
            num_hidden_layers="n_layers",
            num_attention_heads="n_heads",
            intermediate_size="hidden_dim",
            hidden_act="activation",
            classifier_dropout="seq_classif_dropout",
        ),
        constant(position_embedding_type="learned", type_vocab_size=0, norm_eps=1e-12),
    ),
    parts=(Part(DISTILBERT_STACK),),
    heads={
        "base": Head("DistilBertModel"),
        "lm": Head(
            "DistilBertForMaskedLM",
            {
                "transform.dense": "vocab_transform",
                "transform.norm": "vocab_layer_norm",
                "lm_head": "vocab_projector",
            },
        ),
        "sequence": Head(
            "DistilBertForSequenceClassification",
            CLASSIFIER | {"pooler.dense": "pre_classifier"},
            (constant(classifier_pooling="first", classifier_act="relu", classifier_norm=False),),
        ),
        "token": Head("DistilBertForTokenClassification", CLASSIFIER),
    },
)
