import pytest
from refusals import refused

from vanillaformer.configuration import preset
from vanillaformer.training.tasks.language_model import LanguageModelTrainingArguments
from vanillaformer.training.trainer.parallel import check_layout


def settings(**values) -> LanguageModelTrainingArguments:
    return LanguageModelTrainingArguments(use_cpu=True, **values)


@pytest.mark.parametrize(("options", "message"), [
    ({"parallel": "fsdp=2"}, "--parallel fsdp=2 is for 2 processes, and there are 1: torchrun --nproc_per_node 2"),
    ({"parallel": "fsdp=0"}, "--parallel fsdp=0: 'fsdp=0' is not one of replicate, fsdp, tp and a number"),
    ({"parallel": "fsdp=1,fsdp=1"}, "'fsdp=1' is not one of"),
    ({"parallel": "cp=2"}, "--parallel cp=2: 'cp=2' is not one of"),
    ({"parallel": "fsdp=2", "optim": "adafactor"}, "--optim adafactor does not go together with --parallel fsdp=2"),
    ({"parallel": "pp=2"}, "--parallel pp=2: pipeline parallelism of transformers computes no gradients"),
])  # fmt: skip
def test_what_a_layout_cannot_be(options: dict, message: str) -> None:
    refused(message, settings, **options)


@pytest.mark.parametrize(("name", "fields", "message"), [
    ("gpt-tiny", {"num_attention_heads": 3, "hidden_size": 48}, "num_attention_heads=3 cannot be divided by tp=2"),
    ("gpt-tiny", {"num_key_value_heads": 1}, "num_key_value_heads=1 cannot be divided by tp=2"),
    ("swin-tiny", {}, "num_attention_heads=3 cannot be divided by tp=2"),
    ("gru-tiny", {}, "'vanilla_recurrent_encoder_decoder' has no tensor parallel plan"),
])  # fmt: skip
def test_models_that_a_layout_cannot_divide(name: str, fields: dict, message: str) -> None:
    check_layout(preset(name, **fields), "fsdp=2")
    refused(f"--parallel tp=2: {message}", check_layout, preset(name, **fields), "tp=2")


def test_settings_of_accelerate_are_refused(monkeypatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    refused("accelerate's settings of FSDP are not supported: use --parallel fsdp=N", settings)
