"""One set of Transformer parts, composed by configuration, as first-class Hugging Face models.

Importing this package makes transformers' Auto classes know `vanilla_encoder_decoder`, `vanilla_decoder`,
`vanilla_encoder`, `vanilla_image_encoder` and `vanilla_recurrent_encoder_decoder`, and its `pipeline` know the tasks
"translation", "summarization" and "text2text-generation" again.
"""

from importlib.metadata import version

from vanillaformer.hub.remote_code import write_code
from vanillaformer.hub.seq2seq_pipelines import register_pipelines

from .acceleration import plug_in, speed_up
from .configuration import (
    PRESETS,
    BlockConfig,
    VanillaConfig,
    VanillaDecoderConfig,
    VanillaEncoderConfig,
    VanillaEncoderDecoderConfig,
    VanillaImageEncoderConfig,
    VanillaRecurrentEncoderDecoderConfig,
    preset,
)
from .modeling import (
    VanillaDecoderForCausalLM,
    VanillaDecoderForSequenceClassification,
    VanillaDecoderModel,
    VanillaEncoderDecoderForConditionalGeneration,
    VanillaEncoderDecoderModel,
    VanillaEncoderForMaskedLM,
    VanillaEncoderForMultipleChoice,
    VanillaEncoderForPreTraining,
    VanillaEncoderForQuestionAnswering,
    VanillaEncoderForSequenceClassification,
    VanillaEncoderForTokenClassification,
    VanillaEncoderModel,
    VanillaImageEncoderForImageClassification,
    VanillaImageEncoderForMaskedImageModeling,
    VanillaImageEncoderModel,
    VanillaRecurrentEncoderDecoderForConditionalGeneration,
    VanillaRecurrentEncoderDecoderModel,
    register,
)

__version__ = version("vanillaformer")

__all__ = [
    "PRESETS",
    "BlockConfig",
    "VanillaDecoderConfig",
    "VanillaDecoderForCausalLM",
    "VanillaDecoderForSequenceClassification",
    "VanillaDecoderModel",
    "VanillaEncoderConfig",
    "VanillaEncoderDecoderConfig",
    "VanillaEncoderDecoderForConditionalGeneration",
    "VanillaEncoderDecoderModel",
    "VanillaEncoderForMaskedLM",
    "VanillaEncoderForMultipleChoice",
    "VanillaEncoderForPreTraining",
    "VanillaEncoderForQuestionAnswering",
    "VanillaEncoderForSequenceClassification",
    "VanillaEncoderForTokenClassification",
    "VanillaEncoderModel",
    "VanillaImageEncoderConfig",
    "VanillaImageEncoderForImageClassification",
    "VanillaImageEncoderForMaskedImageModeling",
    "VanillaImageEncoderModel",
    "VanillaRecurrentEncoderDecoderConfig",
    "VanillaRecurrentEncoderDecoderForConditionalGeneration",
    "VanillaRecurrentEncoderDecoderModel",
    "__version__",
    "preset",
    "speed_up",
]

register()
register_pipelines()
plug_in()
VanillaConfig.code_version, VanillaConfig.write_remote_code = __version__, write_code
