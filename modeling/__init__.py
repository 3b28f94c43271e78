"""Parts, blocks and the models, and the registration of their types with transformers' Auto classes."""

from typing import Any

import transformers

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

SEQ2SEQ: list[type[VanillaPreTrainedModel]] = [
    VanillaEncoderDecoderForConditionalGeneration,
    VanillaRecurrentEncoderDecoderForConditionalGeneration,
]
AUTO_CLASSES: dict[Any, list[type[VanillaPreTrainedModel]]] = {
    transformers.AutoModel: [
        VanillaEncoderDecoderModel,
        VanillaDecoderModel,
        VanillaEncoderModel,
        VanillaImageEncoderModel,
        VanillaRecurrentEncoderDecoderModel,
    ],
    transformers.AutoModelForSeq2SeqLM: SEQ2SEQ,
    transformers.AutoModelForCausalLM: [VanillaDecoderForCausalLM],
    transformers.AutoModelForMaskedLM: [VanillaEncoderForMaskedLM],
    transformers.AutoModelForPreTraining: [
        *SEQ2SEQ,
        VanillaDecoderForCausalLM,
        VanillaEncoderForPreTraining,
    ],
    transformers.AutoModelForSequenceClassification: [
        VanillaDecoderForSequenceClassification,
        VanillaEncoderForSequenceClassification,
    ],
    transformers.AutoModelForTokenClassification: [VanillaEncoderForTokenClassification],
    transformers.AutoModelForQuestionAnswering: [VanillaEncoderForQuestionAnswering],
    transformers.AutoModelForMultipleChoice: [VanillaEncoderForMultipleChoice],
    transformers.AutoModelForImageClassification: [VanillaImageEncoderForImageClassification],
    transformers.AutoModelForMaskedImageModeling: [VanillaImageEncoderForMaskedImageModeling],
}


def register() -> None:
    """Register all configs and models; `import vanillaformer` calls this."""
    for model_class in AUTO_CLASSES[transformers.AutoModel]:
        config_class: Any = model_class.config_class
        transformers.AutoConfig.register(config_class.model_type, config_class, exist_ok=True)
    for auto_class, model_classes in AUTO_CLASSES.items():
        for model_class in model_classes:
            auto_class.register(model_class.config_class, model_class, exist_ok=True)
            model_class.enter_name(auto_class.__name__)


__all__ = [
    "AUTO_CLASSES", "VanillaDecoderForCausalLM", "VanillaDecoderForSequenceClassification", "VanillaDecoderModel",
    "VanillaEncoderDecoderForConditionalGeneration", "VanillaEncoderDecoderModel", "VanillaEncoderForMaskedLM",
    "VanillaEncoderForMultipleChoice", "VanillaEncoderForPreTraining", "VanillaEncoderForQuestionAnswering",
    "VanillaEncoderForSequenceClassification", "VanillaEncoderForTokenClassification", "VanillaEncoderModel",
    "VanillaImageEncoderForImageClassification", "VanillaImageEncoderForMaskedImageModeling",
    "VanillaImageEncoderModel", "VanillaRecurrentEncoderDecoderForConditionalGeneration",
    "VanillaRecurrentEncoderDecoderModel", "register",
]  # fmt: skip
