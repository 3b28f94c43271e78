import importlib.util
import json
from pathlib import Path

import pytest

from vanillaformer.training.tasks.language_model import LanguageModelTrainingArguments
from vanillaformer.training.trainer import sharding

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
    monkeypatch.setattr(sharding, "find_spec", lambda name: name if name == "deepspeed" else find(name))


def test_deepspeed_that_is_not_installed(config: Path, monkeypatch) -> None:
    monkeypatch.setattr(sharding, "find_spec", lambda name: None)
    with pytest.raises(
        ValueError, match=r"--deepspeed .* needs deepspeed, which is not installed: pip install deepspeed"
    ):
        settings(deepspeed=str(config))


@pytest.mark.parametrize("form", ["file", "text", "dictionary"])
def test_deepspeed_is_handed_over(form: str, config: Path, installed, monkeypatch) -> None:
    given = {"file": str(config), "text": json.dumps(CONFIG), "dictionary": CONFIG}[form]
    received = []

    class Stop(Exception):
        """Ends it where transformers would import the library."""

    def receive(content: object) -> None:
        received.append(content)
        raise Stop

    monkeypatch.setattr("transformers.integrations.deepspeed.HfTrainerDeepSpeedConfig", receive)
    with pytest.raises(Stop):
        settings(deepspeed=given, optim="radam")
    assert received == [str(config) if form == "file" else CONFIG]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optim": "muon"}, "--optim muon needs whole matrices"),
        ({"nan_loss": "skip"}, "--nan_loss skip: --deepspeed makes the step"),
        ({"ema_decay": 0.9}, "--ema_decay 0.9 needs the whole model on every process: not --deepspeed"),
        ({"average_checkpoints": 2}, "--average_checkpoints 2 needs the whole model"),
        ({"lora_rank": 2}, "--lora_rank 2 needs the whole model"),
    ],
)
def test_what_does_not_go_together_with_deepspeed(options: dict, message: str, config: Path, installed) -> None:
    with pytest.raises(ValueError, match=message):
        settings(deepspeed=str(config), **options)


def test_two_optimizers(config: Path, installed) -> None:
    config.write_text(json.dumps(CONFIG | {"optimizer": {"type": "AdamW"}}))
    with pytest.raises(ValueError, match="--optim radam and the optimizer in the --deepspeed file: give one of them"):
        settings(deepspeed=str(config), optim="radam")


@pytest.mark.parametrize(("content", "message"), [("{", "cannot be read as JSON"), ("[]", "must hold an object")])
def test_damaged_configuration(content: str, message: str, config: Path, installed) -> None:
    config.write_text(content)
    with pytest.raises(ValueError, match=f"--deepspeed .*deepspeed.json {message}"):
        settings(deepspeed=str(config))


@pytest.mark.parametrize("given", [True, "True", "full_shard"])
def test_fsdp_in_a_single_process(given: object) -> None:
    with pytest.raises(ValueError, match="--fsdp divides the model among processes, and there is one: torchrun"):
        settings(fsdp=given)


@pytest.mark.parametrize("given", [None, "", "False", "none", False])
def test_no_fsdp(given: object) -> None:
    assert not settings(fsdp=given, ema_decay=0.9).fsdp


def test_weights_that_would_not_be_saved() -> None:
    with pytest.raises(ValueError, match="--fsdp_config state_dict_type SHARDED_STATE_DICT"):
        settings(fsdp=True, fsdp_config={"state_dict_type": "SHARDED_STATE_DICT"})


@pytest.mark.parametrize("option", [{"ema_decay": 0.9}, {"average_checkpoints": 2}, {"lora_rank": 2}])
def test_what_does_not_go_together_with_fsdp(option: dict) -> None:
    with pytest.raises(ValueError, match="needs the whole model on every process: not --fsdp"):
        settings(fsdp=True, **option)
