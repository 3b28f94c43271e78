"""BERT (Devlin et al. 2019), and what the encoders that follow it share."""

from vanillaformer.configuration import BlockConfig, VanillaEncoderConfig

from ..mapping.architecture import Architecture, Head, Part
from ..mapping.fields import ALL_KEY_VALUE_HEADS, DERIVED_HEAD_DIM, TEXT, Field, Values, constant, renamed, same
from ..mapping.tensors import Table

BLOCK: Table = {
    "layers.{layer}.self_attn.q_proj": "encoder.layer.{layer}.attention.self.query",
    "layers.{layer}.self_attn.k_proj": "encoder.layer.{layer}.attention.self.key",
    "layers.{layer}.self_attn.v_proj": "encoder.layer.{layer}.attention.self.value",
    "layers.{layer}.self_attn.o_proj": "encoder.layer.{layer}.attention.output.dense",
    "layers.{layer}.self_attn_residual.norm": "encoder.layer.{layer}.attention.output.LayerNorm",
    "layers.{layer}.mlp.up_proj": "encoder.layer.{layer}.intermediate.dense",
    "layers.{layer}.mlp.down_proj": "encoder.layer.{layer}.output.dense",
    "layers.{layer}.mlp_residual.norm": "encoder.layer.{layer}.output.LayerNorm",
}
STACK: Table = BLOCK | {
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

ENCODER: tuple[Field, ...] = (
    TEXT,
    ALL_KEY_VALUE_HEADS,
    DERIVED_HEAD_DIM,
    same(
        "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act",
        "type_vocab_size", "initializer_range", "tie_word_embeddings",
    ),
    renamed(
        norm_eps="layer_norm_eps", dropout="hidden_dropout_prob", attention_dropout="attention_probs_dropout_prob"
    ),
    # without a rate of its own a classifier has the blocks'
    Field(
        to_ours=lambda config: {"classifier_dropout": config.classifier_dropout},
        to_native=lambda config: {
            "classifier_dropout": None if config.classifier_dropout == config.dropout else config.classifier_dropout
        },
    ),
    constant(position_embedding_type="learned"),
)  # fmt: skip
# The layer in front of the classifier
TANH_OF_FIRST = constant(classifier_pooling="first", classifier_act="tanh", classifier_norm=False)


def no_pooler(config: BlockConfig) -> Values:
    """Return the arguments of a bare stack without the layer that pools."""
    return {"add_pooling_layer": False}


ARCHITECTURE = Architecture(
    name="bert",
    config_class=VanillaEncoderConfig,
    native_config="BertConfig",
    prefix="bert.",
    fields=(*ENCODER, same("max_position_embeddings")),
    parts=(Part(STACK),),
    heads={
        "base": Head("BertModel", arguments=no_pooler),
        "lm": Head("BertForMaskedLM", PREDICTIONS),
        "pretraining": Head(
            "BertForPreTraining",
            PREDICTIONS | {"pooler.dense": "bert.pooler.dense", "seq_relationship": "cls.seq_relationship"},
            (TANH_OF_FIRST,),
        ),
        "sequence": Head(
            "BertForSequenceClassification",
            {"pooler.dense": "bert.pooler.dense", "classifier": "classifier"},
            (TANH_OF_FIRST,),
        ),
        "token": Head("BertForTokenClassification", {"classifier": "classifier"}),
    },
    unused={"cls.predictions.bias": "lm_head.bias"},
)
