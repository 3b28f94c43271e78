"""DistilBERT (Sanh et al. 2019): BERT without token types and pooler."""

from vanillaformer.configuration import VanillaEncoderConfig

from ..mapping.architecture import Architecture, Head, Part
from ..mapping.fields import ALL_KEY_VALUE_HEADS, TEXT, Field, constant, renamed, same
from ..mapping.tensors import Table

STACK: Table = {
    "embed_tokens": "embeddings.word_embeddings",
    "embeddings.positions.embed_positions": "embeddings.position_embeddings",
    "embeddings.norm": "embeddings.LayerNorm",
    "layers.{layer}.self_attn.q_proj": "transformer.layer.{layer}.attention.q_lin",
    "layers.{layer}.self_attn.k_proj": "transformer.layer.{layer}.attention.k_lin",
    "layers.{layer}.self_attn.v_proj": "transformer.layer.{layer}.attention.v_lin",
    "layers.{layer}.self_attn.o_proj": "transformer.layer.{layer}.attention.out_lin",
    "layers.{layer}.self_attn_residual.norm": "transformer.layer.{layer}.sa_layer_norm",
    "layers.{layer}.mlp.up_proj": "transformer.layer.{layer}.ffn.lin1",
    "layers.{layer}.mlp.down_proj": "transformer.layer.{layer}.ffn.lin2",
    "layers.{layer}.mlp_residual.norm": "transformer.layer.{layer}.output_layer_norm",
}
HEAD_DIM = Field(to_ours=lambda config: {"head_dim": config.dim // config.n_heads}, to_native=lambda config: {})

ARCHITECTURE = Architecture(
    name="distilbert",
    config_class=VanillaEncoderConfig,
    native_config="DistilBertConfig",
    prefix="distilbert.",
    fields=(
        TEXT,
        ALL_KEY_VALUE_HEADS,
        HEAD_DIM,
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
    parts=(Part(STACK),),
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
            {"pooler.dense": "pre_classifier", "classifier": "classifier"},
            (constant(classifier_pooling="first", classifier_act="relu", classifier_norm=False),),
        ),
        "token": Head("DistilBertForTokenClassification", {"classifier": "classifier"}),
    },
)
