"""Every option of transformers' training arguments works or is refused by name, before anything is done."""

import dataclasses
import json
from pathlib import Path

import pytest
from transformers import Seq2SeqTrainingArguments
from transformers.trainer_utils import SchedulerType

from vanillaformer.scripts import train_classifier, train_translation
from vanillaformer.training.trainer.optimizers import OPTIMIZERS
from vanillaformer.training.transformers_options import HERE, REFUSED, WORKS, options_table

FIELDS = {entry.name: entry for entry in dataclasses.fields(Seq2SeqTrainingArguments)}
DOCS = Path(__file__).parents[2] / "docs" / "training.md"
OF_TRANSLATION = ("sortish_sampler", "generation_config")
VALUES = {
    "include_for_metrics": "inputs",
    "label_names": "text",
    "length_column_name": "size",
    "liger_kernel_config": '{"rope": true}',
    "accelerator_config": '{"split_batches": true}',
    "parallelism_config": "2",
    "generation_config": "folder",
    **dict.fromkeys(("do_train", "do_eval", "do_predict"), "False"),
}
"""Values of refused options, of others the opposite of their default."""


def refusal(words: list[str], capsys, program=train_classifier) -> str:
    """Return the line that a program ends with; its data does not exist, which it would say if it came to it."""
    with pytest.raises(SystemExit) as ended:
        program.main([*words, "--train_file", "nowhere.csv", "--use_cpu", "--max_steps", "2"])
    return ended.value.code if isinstance(ended.value.code, str) else capsys.readouterr().err.splitlines()[-1]


def test_every_option_is_decided_once() -> None:
    decided = [*WORKS, *HERE, *REFUSED]
    assert sorted(decided) == sorted(FIELDS)


def test_the_table_of_the_documentation() -> None:
    assert options_table() in DOCS.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", REFUSED)
def test_refused_options(name: str, capsys) -> None:
    value = VALUES.get(name) or str(not FIELDS[name].default)
    line = refusal([f"--{name}", value], capsys, train_translation if name in OF_TRANSLATION else train_classifier)
    assert f"--{name}" in line
    if name not in ("parallelism_config", "liger_kernel_config"):  # whose values the parser cannot read
        assert line.endswith(f"is not supported: {REFUSED[name]}")
        assert str(next(iter(json.loads(value))) if value[0] == "{" else value) in line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "--dataloader_persistent_workers true",
            "--dataloader_persistent_workers True needs --dataloader_num_workers",
        ),
        ("--dataloader_prefetch_factor 2", "--dataloader_prefetch_factor 2 needs --dataloader_num_workers"),
        (
            "--dataloader_multiprocessing_context spawn",
            "--dataloader_multiprocessing_context spawn needs --dataloader",
        ),
        ("--hub_strategy all_checkpoints", "--hub_strategy all_checkpoints is not supported: the model is pushed at"),
        ("--hub_strategy every_save", "--hub_strategy every_save is not supported: the model is pushed at"),
        ("--debug tpu_metrics_debug", "is not supported: choose underflow_overflow"),
        ("--torch_compile_mode fast", "--torch_compile_mode fast: choose from default, "),
        ("--torch_compile_backend best", "--torch_compile_backend best: choose from no, eager, "),
        ("--optim adamw_8bit", "--optim adamw_8bit: You need to install `bitsandbytes`"),
        ("--optim galore_adamw", "--optim galore_adamw needs --optim_target_modules, such as all-linear"),
        ("--optim_target_modules q_proj", "it is for the optimizers GaLore and APOLLO, not for --optim adamw_torch"),
        ("--optim muon --optim_args a=1", "--optim_args a=1: --optim muon takes no options"),
        ("--attn_implementation flex_attention", "--attn_implementation flex_attention cannot train on a CPU"),
        (
            "--lr_scheduler_type cosine_with_min_lr",
            "--lr_scheduler_type cosine_with_min_lr: One of min_lr or min_lr_rate",
        ),
        ('--lr_scheduler_kwargs {"cycles":2}', '--lr_scheduler_type linear --lr_scheduler_kwargs {"cycles": 2}: '),
        ("--hidden_size 64", ": hidden_size is a field of the model's configuration, --set hidden_size=64"),
        (
            "--num-hidden-layers=2",
            ": num_hidden_layers is a field of the model's configuration, --set num_hidden_layers=2",
        ),
    ],
)
def test_what_cannot_work_is_said_before_data_is_read(words: str, said: str, capsys) -> None:
    assert said in refusal(words.split(), capsys)


NEEDS = {"cosine_with_min_lr": '{"min_lr": 1e-5}', "cosine_warmup_with_min_lr": '{"min_lr": 1e-5}'}


@pytest.mark.parametrize("name", [each.value for each in SchedulerType])
def test_schedules(name: str, capsys) -> None:
    options = ["--lr_scheduler_kwargs", NEEDS[name]] if name in NEEDS else []
    assert "nowhere.csv" in refusal(["--lr_scheduler_type", name, *options], capsys)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_that_transformers_does_not_have(name: str, capsys) -> None:
    assert "nowhere.csv" in refusal(["--optim", name], capsys)
