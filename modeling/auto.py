"""Registration of the three model types with transformers' Auto classes."""

from typing import Any

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from vanillaformer.configuration import VanillaDecoderConfig, VanillaEncoderConfig, VanillaEncoderDecoderConfig

from .base import VanillaPreTrainedModel
from .decoder import VanillaDecoderForCausalLM, VanillaDecoderForSequenceClassification, VanillaDecoderModel
from .encoder import (
    VanillaEncoderForMaskedLM,
    VanillaEncoderForPreTraining,
    VanillaEncoderForSequenceClassification,
    VanillaEncoderForTokenClassification,
    VanillaEncoderModel,
)
from .encoder_decoder import VanillaEncoderDecoderForConditionalGeneration, VanillaEncoderDecoderModel

AUTO_CLASSES: dict[Any, list[type[VanillaPreTrainedModel]]] = {
    AutoModel: [VanillaEncoderDecoderModel, VanillaDecoderModel, VanillaEncoderModel],
    AutoModelForSeq2SeqLM: [VanillaEncoderDecoderForConditionalGeneration],
    AutoModelForCausalLM: [VanillaDecoderForCausalLM],
    AutoModelForMaskedLM: [VanillaEncoderForMaskedLM],
    AutoModelForPreTraining: [
        VanillaEncoderDecoderForConditionalGeneration,
        VanillaDecoderForCausalLM,
        VanillaEncoderForPreTraining,
    ],
    AutoModelForSequenceClassification: [
        VanillaDecoderForSequenceClassification,
        VanillaEncoderForSequenceClassification,
    ],
    AutoModelForTokenClassification: [VanillaEncoderForTokenClassification],
}


def register() -> None:
    """Register all configs and models; `import vanillaformer` calls this."""
    for config_class in (VanillaEncoderDecoderConfig, VanillaDecoderConfig, VanillaEncoderConfig):
        AutoConfig.register(config_class.model_type, config_class, exist_ok=True)
    for auto_class, model_classes in AUTO_CLASSES.items():
        for model_class in model_classes:
            auto_class.register(model_class.config_class, model_class, exist_ok=True)
