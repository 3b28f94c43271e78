"""Registration of the model types with transformers' Auto classes."""

from typing import Any

import transformers

from . import decoder, encoder, encoder_decoder, image_encoder, recurrent_encoder_decoder
from .base import VanillaPreTrainedModel

SEQ2SEQ: list[type[VanillaPreTrainedModel]] = [
    encoder_decoder.VanillaEncoderDecoderForConditionalGeneration,
    recurrent_encoder_decoder.VanillaRecurrentEncoderDecoderForConditionalGeneration,
]
AUTO_CLASSES: dict[Any, list[type[VanillaPreTrainedModel]]] = {
    transformers.AutoModel: [
        encoder_decoder.VanillaEncoderDecoderModel,
        decoder.VanillaDecoderModel,
        encoder.VanillaEncoderModel,
        image_encoder.VanillaImageEncoderModel,
        recurrent_encoder_decoder.VanillaRecurrentEncoderDecoderModel,
    ],
    transformers.AutoModelForSeq2SeqLM: SEQ2SEQ,
    transformers.AutoModelForCausalLM: [decoder.VanillaDecoderForCausalLM],
    transformers.AutoModelForMaskedLM: [encoder.VanillaEncoderForMaskedLM],
    transformers.AutoModelForPreTraining: [
        *SEQ2SEQ,
        decoder.VanillaDecoderForCausalLM,
        encoder.VanillaEncoderForPreTraining,
    ],
    transformers.AutoModelForSequenceClassification: [
        decoder.VanillaDecoderForSequenceClassification,
        encoder.VanillaEncoderForSequenceClassification,
    ],
    transformers.AutoModelForTokenClassification: [encoder.VanillaEncoderForTokenClassification],
    transformers.AutoModelForQuestionAnswering: [encoder.VanillaEncoderForQuestionAnswering],
    transformers.AutoModelForMultipleChoice: [encoder.VanillaEncoderForMultipleChoice],
    transformers.AutoModelForImageClassification: [image_encoder.VanillaImageEncoderForImageClassification],
    transformers.AutoModelForMaskedImageModeling: [image_encoder.VanillaImageEncoderForMaskedImageModeling],
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
