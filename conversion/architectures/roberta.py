"""RoBERTa (Liu et al. 2019): BERT whose positions are numbered after the padding's."""

from vanillaformer.configuration import VanillaEncoderConfig

from ..mapping.architecture import Architecture, Head, Part
from ..mapping.fields import Field, constant
from ..mapping.tensors import Table
from .bert import ENCODER, STACK, TANH_OF_FIRST, no_pooler

PREDICTIONS: Table = {
    "transform.dense": "lm_head.dense",
    "transform.norm": "lm_head.layer_norm",
    "lm_head": "lm_head.decoder",
}

# The table has rows up to the padding's, too
POSITIONS = Field(
    to_ours=lambda config: {
        "position_offset": config.pad_token_id + 1,
        "max_position_embeddings": config.max_position_embeddings - config.pad_token_id - 1,
    },
    to_native=lambda config: {"max_position_embeddings": config.max_position_embeddings + config.position_offset},
)

ARCHITECTURE = Architecture(
    name="roberta",
    config_class=VanillaEncoderConfig,
    native_config="RobertaConfig",
    prefix="roberta.",
    fields=(*ENCODER, POSITIONS),
    parts=(Part(STACK),),
    heads={
        "base": Head("RobertaModel", arguments=no_pooler),
        "lm": Head("RobertaForMaskedLM", PREDICTIONS, (constant(head_act="gelu"),)),
        "sequence": Head(
            "RobertaForSequenceClassification",
            {"pooler.dense": "classifier.dense", "classifier": "classifier.out_proj"},
            (TANH_OF_FIRST,),
        ),
        "token": Head("RobertaForTokenClassification", {"classifier": "classifier"}),
    },
    unused={"lm_head.bias": "lm_head.bias"},
)
