import importlib.util
import json
from pathlib import Path

import pytest

from vanillaformer.training.tasks.language_model import LanguageModelTrainingArguments
from vanillaformer.training.trainer import saving

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
    monkeypatch.setattr(saving, "find_spec", lambda name: name if name == "deepspeed" else find(name))


def test_deepspeed_is_handed_over_where_it_is_installed(config: Path, installed, monkeypatch) -> None:
    class Received(Exception):
        """Ends it where transformers would import the library."""

    def receive(content: object) -> None:
        raise Received(content)

    monkeypatch.setattr("transformers.integrations.deepspeed.HfTrainerDeepSpeedConfig", receive)
    with pytest.raises(Received, match=str(config)):
        settings(deepspeed=str(config), optim="radam")
    monkeypatch.setattr(saving, "find_spec", lambda name: None)
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


@pytest.mark.parametrize(("content", "message"), [("{", "cannot be read as JSON"), ("[]", "must hold an object")])
def test_damaged_configuration(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "fsdp.json").write_text(content)
    with pytest.raises(ValueError, match=f"--fsdp_config .*fsdp.json {message}"):
        settings(fsdp=True, fsdp_config=str(tmp_path / "fsdp.json"))


@pytest.mark.parametrize("given", [None, "", "False", "none", False])
def test_no_fsdp(given: object) -> None:
    assert not settings(fsdp=given, ema_decay=0.9).fsdp


ALONE = "--fsdp divides the model among processes, and there is one: torchrun"
WHOLE = "needs the whole model on every process: not --fsdp"


@pytest.mark.parametrize(("options", "message"), [
    *(({"fsdp": given}, ALONE) for given in (True, "True", "full_shard")),
    ({"fsdp_config": {"state_dict_type": "SHARDED_STATE_DICT"}}, "--fsdp_config state_dict_type SHARDED_STATE_D"),
    *((option, WHOLE) for option in ({"ema_decay": 0.9}, {"average_checkpoints": 2}, {"lora_rank": 2})),
])  # fmt: skip
def test_what_cannot_be_with_fsdp(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        settings(**{"fsdp": True, **options})
