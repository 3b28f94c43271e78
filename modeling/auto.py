"""Registration of the model types with transformers' Auto classes."""

from typing import Any

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForMaskedImageModeling,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForPreTraining,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from vanillaformer.configuration import (
    VanillaDecoderConfig,
    VanillaEncoderConfig,
    VanillaEncoderDecoderConfig,
    VanillaImageEncoderConfig,
    VanillaRecurrentEncoderDecoderConfig,
)

from .base import VanillaPreTrainedModel
from .decoder import VanillaDecoderForCausalLM, VanillaDecoderForSequenceClassification, VanillaDecoderModel
from .encoder import (
    VanillaEncoderForMaskedLM,
    VanillaEncoderForMultipleChoice,
    VanillaEncoderForPreTraining,
    VanillaEncoderForQuestionAnswering,
    VanillaEncoderForSequenceClassification,
    VanillaEncoderForTokenClassification,
    VanillaEncoderModel,
)
from .encoder_decoder import VanillaEncoderDecoderForConditionalGeneration, VanillaEncoderDecoderModel
from .image_encoder import (
    VanillaImageEncoderForImageClassification,
    VanillaImageEncoderForMaskedImageModeling,
    VanillaImageEncoderModel,
)
from .recurrent_encoder_decoder import (
    VanillaRecurrentEncoderDecoderForConditionalGeneration,
    VanillaRecurrentEncoderDecoderModel,
)

AUTO_CLASSES: dict[Any, list[type[VanillaPreTrainedModel]]] = {
    AutoModel: [
        VanillaEncoderDecoderModel,
        VanillaDecoderModel,
        VanillaEncoderModel,
        VanillaImageEncoderModel,
        VanillaRecurrentEncoderDecoderModel,
    ],
    AutoModelForSeq2SeqLM: [
        VanillaEncoderDecoderForConditionalGeneration,
        VanillaRecurrentEncoderDecoderForConditionalGeneration,
    ],
    AutoModelForCausalLM: [VanillaDecoderForCausalLM],
    AutoModelForMaskedLM: [VanillaEncoderForMaskedLM],
    AutoModelForPreTraining: [
        VanillaEncoderDecoderForConditionalGeneration,
        VanillaDecoderForCausalLM,
        VanillaEncoderForPreTraining,
        VanillaRecurrentEncoderDecoderForConditionalGeneration,
    ],
    AutoModelForSequenceClassification: [
        VanillaDecoderForSequenceClassification,
        VanillaEncoderForSequenceClassification,
    ],
    AutoModelForTokenClassification: [VanillaEncoderForTokenClassification],
    AutoModelForQuestionAnswering: [VanillaEncoderForQuestionAnswering],
    AutoModelForMultipleChoice: [VanillaEncoderForMultipleChoice],
    AutoModelForImageClassification: [VanillaImageEncoderForImageClassification],
    AutoModelForMaskedImageModeling: [VanillaImageEncoderForMaskedImageModeling],
}

CONFIGS = (
    VanillaEncoderDecoderConfig,
    VanillaDecoderConfig,
    VanillaEncoderConfig,
    VanillaImageEncoderConfig,
    VanillaRecurrentEncoderDecoderConfig,
)


def register() -> None:
    """Register all configs and models; `import vanillaformer` calls this."""
    for config_class in CONFIGS:
        AutoConfig.register(config_class.model_type, config_class, exist_ok=True)
    for auto_class, model_classes in AUTO_CLASSES.items():
        for model_class in model_classes:
            auto_class.register(model_class.config_class, model_class, exist_ok=True)
            model_class.enter_name(auto_class.__name__)
