import importlib.util
import json
from pathlib import Path

import pytest

from vanillaformer.configuration import preset
from vanillaformer.training.tasks.language_model import LanguageModelTrainingArguments
from vanillaformer.training.trainer import parallel
from vanillaformer.training.trainer.parallel import check_layout

CONFIG = {"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": "auto"}


def settings(**values) -> LanguageModelTrainingArguments:
    return LanguageModelTrainingArguments(use_cpu=True, **values)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "deepspeed.json"
    path.write_text(json.dumps(CONFIG))
    return path


@pytest.fixture
def installed(monkeypatch) -> None:
    """Let DeepSpeed seem to be there."""
    find = importlib.util.find_spec
    monkeypatch.setattr(parallel, "find_spec", lambda name: name if name == "deepspeed" else find(name))


def test_deepspeed_is_handed_over_where_it_is_installed(config: Path, installed, monkeypatch) -> None:
    class Received(Exception):
        """Ends it where transformers would import the library."""

    def receive(content: object) -> None:
        raise Received(content)

    monkeypatch.setattr("transformers.integrations.deepspeed.HfTrainerDeepSpeedConfig", receive)
    with pytest.raises(Received, match=str(config)):
        settings(deepspeed=str(config), optim="radam")
    monkeypatch.setattr(parallel, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"--deepspeed needs deepspeed, .*: pip install deepspeed"):
        settings(deepspeed=str(config))


@pytest.mark.parametrize(
    "options",
    [{"optim": "muon"}, {"ema_decay": 0.9}, {"average_checkpoints": 2}, {"lora_rank": 2}],
)
def test_what_does_not_go_together_with_deepspeed(options: dict, config: Path, installed) -> None:
    name, value = next(iter(options.items()))
    with pytest.raises(ValueError, match=f"--{name} {value} .*--deepspeed"):
        settings(deepspeed=str(config), **options)


@pytest.mark.parametrize(("options", "message"), [
    ({"parallel": "fsdp=2"}, "--parallel fsdp=2 is for 2 processes, and there are 1: torchrun --nproc_per_node 2"),
    ({"parallel": "fsdp=0"}, "--parallel fsdp=0: 'fsdp=0' is not one of replicate, fsdp, tp and a number"),
    ({"parallel": "fsdp=1,fsdp=1"}, "'fsdp=1' is not one of"),
    ({"parallel": "cp=2"}, "--parallel cp=2: 'cp=2' is not one of"),
    ({"parallel": "pp=2"}, "--parallel pp=2: pipeline parallelism of transformers computes no gradients"),
    *(({"parallel": "fsdp=1", **option}, "needs the whole model on every process: not --parallel")
      for option in ({"ema_decay": 0.9}, {"average_checkpoints": 2}, {"lora_rank": 2})),
])  # fmt: skip
def test_what_a_layout_cannot_be(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        settings(**options)


@pytest.mark.parametrize(("name", "fields", "message"), [
    ("gpt-tiny", {"num_attention_heads": 3, "hidden_size": 48}, "num_attention_heads=3 cannot be divided by tp=2"),
    ("gpt-tiny", {"num_key_value_heads": 1}, "num_key_value_heads=1 cannot be divided by tp=2"),
    ("swin-tiny", {}, "num_attention_heads=3 cannot be divided by tp=2"),
    ("gru-tiny", {}, "there is no plan for tensor parallel models of 'vanilla_recurrent_encoder_decoder'"),
])  # fmt: skip
def test_models_that_a_layout_cannot_divide(name: str, fields: dict, message: str) -> None:
    check_layout(preset(name, **fields), "fsdp=2")
    with pytest.raises(ValueError, match=f"--parallel tp=2: {message}"):
        check_layout(preset(name, **fields), "tp=2")


def test_settings_of_accelerate_are_refused(monkeypatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(ValueError, match="accelerate's settings of FSDP are not supported: use --parallel fsdp=N"):
        settings()
