"""Encoders near BERT and RoBERTa: the same tensors by other names, or norms in front of the sublayers."""

from vanillaformer.configuration import VanillaEncoderConfig

from ..mapping.architecture import Architecture, Head, Part
from ..mapping.fields import Field, constant, same
from ..mapping.tensors import Table
from .bert import CLASSIFIER, DENSE_CLASSIFIER, FIELDS, POOLER, PREDICTIONS, SIZES, STACK, TANH_OF_FIRST, roberta_kin

# The norms of RoBERTa-PreLayerNorm and Megatron-BERT, in front of the sublayers
PRE_NORM_STACKS: dict[str, Table] = {
    "roberta": STACK | {
        "layers.{layer}.self_attn_residual.norm": "encoder.layer.{layer}.attention.LayerNorm",
        "layers.{layer}.mlp_residual.norm": "encoder.layer.{layer}.intermediate.LayerNorm",
        "norm": "LayerNorm",
    },
    "megatron": {name: native for name, native in STACK.items() if name != "embeddings.norm"} | {
        "layers.{layer}.self_attn_residual.norm": "encoder.layer.{layer}.attention.ln",
        "layers.{layer}.mlp_residual.norm": "encoder.layer.{layer}.ln",
        "norm": "encoder.ln",
    },
}  # fmt: skip


ALL = (
    roberta_kin("xlm-roberta", "XLMRoberta", "roberta."),  # Conneau et al. 2020
    roberta_kin("camembert", "Camembert", "roberta."),  # Martin et al. 2020
    roberta_kin("data2vec-text", "Data2VecText", "data2vec_text."),  # Baevski et al. 2022
    # fairseq's pre-LN RoBERTa (Ott et al. 2019)
    roberta_kin(
        "roberta-prelayernorm", "RobertaPreLayerNorm", "roberta_prelayernorm.", PRE_NORM_STACKS["roberta"],
        constant(norm_placement="pre"),
    ),
    # Megatron-BERT (Shoeybi et al. 2019): pre-LN BERT without a norm of the embeddings
    Architecture(
        name="megatron-bert",
        config_class=VanillaEncoderConfig,
        prefix="bert.",
        fields=(*SIZES, same("max_position_embeddings"),
                constant(position_embedding_type="learned", norm_placement="pre", embedding_norm=False)),
        parts=(Part(PRE_NORM_STACKS["megatron"]),),
        heads={
            "base": Head("MegatronBertModel", arguments=lambda config: {"add_pooling_layer": False}),
            "lm": Head("MegatronBertForMaskedLM", PREDICTIONS),
            "sequence": Head(
                "MegatronBertForSequenceClassification",
                POOLER | CLASSIFIER,
                (TANH_OF_FIRST,),
            ),
            "token": Head("MegatronBertForTokenClassification", CLASSIFIER),
        },
        unused={"cls.predictions.bias": "lm_head.bias"},
    ),
    # ELECTRA (Clark et al. 2020) as a generator or classifier, where its embeddings are as wide as the model
    Architecture(
        name="electra",
        config_class=VanillaEncoderConfig,
        prefix="electra.",
        fields=(*FIELDS, same("max_position_embeddings"),
                Field(to_native=lambda config: {"embedding_size": config.hidden_size})),
        parts=(Part(STACK),),
        heads={
            "base": Head("ElectraModel", ignored=("summary_last_dropout",)),
            "lm": Head(
                "ElectraForMaskedLM",
                {
                    "transform.dense": "generator_predictions.dense",
                    "transform.norm": "generator_predictions.LayerNorm",
                    "lm_head": "generator_lm_head",
                },
                (constant(head_act="gelu"),),
                ("summary_last_dropout",),
            ),
            "sequence": Head(
                "ElectraForSequenceClassification",
                DENSE_CLASSIFIER,
                (constant(classifier_pooling="first", classifier_act="gelu", classifier_norm=False),),
                ("summary_last_dropout",),
            ),
            "token": Head(
                "ElectraForTokenClassification", CLASSIFIER, ignored=("summary_last_dropout",)
            ),
        },
    ),
)  # fmt: skip
