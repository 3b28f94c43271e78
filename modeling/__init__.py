"""Parts, blocks and the models."""

from .auto import AUTO_CLASSES, register
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

__all__ = [
    "AUTO_CLASSES", "VanillaDecoderForCausalLM", "VanillaDecoderForSequenceClassification", "VanillaDecoderModel",
    "VanillaEncoderDecoderForConditionalGeneration", "VanillaEncoderDecoderModel", "VanillaEncoderForMaskedLM",
    "VanillaEncoderForMultipleChoice", "VanillaEncoderForPreTraining", "VanillaEncoderForQuestionAnswering",
    "VanillaEncoderForSequenceClassification", "VanillaEncoderForTokenClassification", "VanillaEncoderModel",
    "VanillaImageEncoderForImageClassification", "VanillaImageEncoderForMaskedImageModeling",
    "VanillaImageEncoderModel", "VanillaRecurrentEncoderDecoderForConditionalGeneration",
    "VanillaRecurrentEncoderDecoderModel", "register",
]  # fmt: skip
