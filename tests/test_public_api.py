"""The public names, pinned: taking one away or adding one is a decision that shows here."""

import importlib
from types import FunctionType

import pytest

CONFIGS = {
    "VanillaDecoderConfig", "VanillaEncoderConfig", "VanillaEncoderDecoderConfig", "VanillaImageEncoderConfig",
    "VanillaRecurrentEncoderDecoderConfig",
}  # fmt: skip
MODELS = {
    "VanillaDecoderForCausalLM", "VanillaDecoderForSequenceClassification", "VanillaDecoderModel",
    "VanillaEncoderDecoderForConditionalGeneration", "VanillaEncoderDecoderModel", "VanillaEncoderForMaskedLM",
    "VanillaEncoderForMultipleChoice", "VanillaEncoderForPreTraining", "VanillaEncoderForQuestionAnswering",
    "VanillaEncoderForSequenceClassification", "VanillaEncoderForTokenClassification",
    "VanillaEncoderModel", "VanillaImageEncoderForImageClassification", "VanillaImageEncoderForMaskedImageModeling",
    "VanillaImageEncoderModel", "VanillaRecurrentEncoderDecoderForConditionalGeneration",
    "VanillaRecurrentEncoderDecoderModel",
}  # fmt: skip
PUBLIC = {
    "vanillaformer": {*CONFIGS, *MODELS, "PRESETS", "BlockConfig", "SpeedUp", "__version__", "preset", "speed_up",
     "to_int8"},
    "vanillaformer.configuration": {*CONFIGS, "ACTIVATION_ALIASES", "PRESETS", "BlockConfig", "ConfigView", "Preset",
     "Stage", "VanillaConfig", "layer_types", "preset"},
    "vanillaformer.conversion": {"ARCHITECTURES", "Architecture", "from_native", "from_state_dict",
     "native_architectures", "to_native"},
    "vanillaformer.tokenization": {"ModelKind", "SPECIAL_TOKENS", "SpecialTokens", "TokenizerAlgorithm", "load_pair",
     "save_pair", "train", "train_pair"},
    "vanillaformer.modeling": {*MODELS, "AUTO_CLASSES", "register"},
}  # fmt: skip


@pytest.mark.parametrize("package", PUBLIC)
def test_the_public_names_have_docstrings_of_their_own(package):
    module = importlib.import_module(package)
    assert set(module.__all__) == PUBLIC[package]
    assert len(module.__all__) == len(PUBLIC[package]), "a name stands twice"
    for name in module.__all__:
        value = getattr(module, name)
        if isinstance(value, type | FunctionType):
            text = vars(value).get("__doc__") if isinstance(value, type) else value.__doc__
            assert text, f"{package}.{name} has no docstring of its own"
