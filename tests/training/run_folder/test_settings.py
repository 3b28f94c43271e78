"""All settings are compared but those that are named as without influence."""

import json
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import pytest
from refusals import refused

from vanillaformer.data.arguments import TranslationDataArguments
from vanillaformer.training.arguments import ModelArguments, TokenizerArguments
from vanillaformer.training.run_folder import run
from vanillaformer.training.run_folder.run import NOT_COMPARED, changed_settings, is_longer, keep_rows_per_step, listed
from vanillaformer.training.tasks.classification import ClassifierTrainingArguments
from vanillaformer.training.tasks.language_model import LanguageModelTrainingArguments
from vanillaformer.training.tasks.translation import TranslationTrainingArguments

GROUPS = {"model": ModelArguments(), "data": TranslationDataArguments(), "tokenizer": TokenizerArguments()}


def settings(kind=TranslationTrainingArguments, groups=GROUPS, **given) -> dict:
    return run.compared_settings("train", kind(use_cpu=True, **given), groups)


def test_every_field_is_compared_or_named() -> None:
    names = set()
    for kind in (TranslationTrainingArguments, LanguageModelTrainingArguments, ClassifierTrainingArguments):
        found = settings(kind)
        for group, arguments in {**GROUPS, "training": kind}.items():
            declared = {entry.name for entry in fields(arguments)}
            assert declared - found[group].keys() <= NOT_COMPARED
            assert not declared & found[group].keys() & NOT_COMPARED
            names |= declared
    assert names | {"processes"} >= NOT_COMPARED, "a name that no argument has any more"


@pytest.mark.parametrize(("given", "change"), [
    ({"eval_steps": 0.2}, "eval_steps: 0.1 there, 0.2 now, save_steps: 0.1 there, 0.2 now"),
    ({"optim": "sgd", "optim_args": "a=1"},
     "optim: 'adamw_torch_fused' there, 'sgd' now, optim_args: None there, 'a=1' now"),
    ({"optim": "adamw_torch"}, ""),
    ({"neftune_noise_alpha": 5.0}, "neftune_noise_alpha: None there, 5.0 now"),
    ({"generation_num_beams": 2}, "generation_num_beams: 1 there, 2 now"),
    ({"per_device_train_batch_size": 32}, "rows_per_step: 64 there, 32 now"),
    ({"per_device_train_batch_size": 32, "gradient_accumulation_steps": 2}, ""),
    ({"logging_steps": 5, "run_name": "b", "license": "mit", "num_beams": 2, "output_dir": "b"}, ""),
])  # fmt: skip
def test_changes(given: dict, change: str) -> None:
    assert listed(changed_settings(settings(), settings(**given))) == change


def test_paths_are_compared_by_where_they_lead_and_what_an_earlier_record_lacks_is_not(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def changes(new: str, old: str = "d/c.csv") -> str:
        one, other = (
            settings(groups=GROUPS | {"data": TranslationDataArguments(train_file=name)}) for name in (old, new)
        )
        return listed(changed_settings(one, other))

    for same in ("./d/c.csv", "d/../d/c.csv", str(tmp_path / "d" / "c.csv")):
        assert changes(same) == ""
    assert changes("c.csv") == "train_file: 'd/c.csv' there, 'c.csv' now"
    old, new = {"data": {"train_file": "a.csv"}}, {"data": {"train_file": ["a.csv"]}}  # as one file was recorded
    assert changed_settings(old, new) == {}
    new["data"]["train_file"].append("b.csv")
    assert changed_settings(old, new) == {"data.train_file": ("a.csv", ["a.csv", "b.csv"])}
    old, new = settings(), settings(r_drop=1.0, seed=1)
    del old["training"]["r_drop"]
    assert listed(changed_settings(old, new)) == "seed: 42 there, 1 now"


@pytest.mark.parametrize(("old", "new", "longer"), [
    ({"max_steps": 5}, {"max_steps": 6}, True), ({"num_train_epochs": 1.0}, {"num_train_epochs": 1.5}, True),
    ({"max_steps": 5}, {"max_steps": 4}, False), ({"num_train_epochs": 2.0}, {"num_train_epochs": 1.0}, False),
    ({"max_steps": 5}, {"num_train_epochs": 9.0}, False), ({"max_steps": 5}, {"max_steps": 6, "seed": 1}, False),
    ({"max_steps": 5, "num_train_epochs": 9.0}, {"max_steps": 6, "num_train_epochs": 1.0}, True),
    ({"num_train_epochs": 1.0}, {"num_train_epochs": 1.0, "max_steps": 5}, False),
    ({"max_time": "10m"}, {"max_time": "20m"}, True), ({"max_time": "20m"}, {"max_time": "1200.5"}, True),
    ({"max_time": "20m"}, {"max_time": "1200"}, False), ({"max_time": "10m"}, {"max_time": "9m"}, False),
    ({"max_time": "10m", "max_epochs": 2}, {"max_time": "20m", "max_epochs": 3}, True),
    ({"max_time": "10m", "max_epochs": 2}, {"max_time": "10m", "max_epochs": 3}, True),
    ({"max_time": "10m", "max_epochs": 2}, {"max_time": "20m", "max_epochs": 1}, False),
    ({"max_time": "10m"}, {"max_steps": 5}, False),
    ({"num_train_epochs": 1.0}, {"num_train_epochs": 1.0, "max_time": "10m"}, False),
])  # fmt: skip
def test_longer(old: dict, new: dict, longer: bool) -> None:
    assert is_longer(changed_settings(settings(**old), settings(**new))) is longer


@pytest.mark.parametrize(
    ("processes", "size", "divided"),
    [(4, 8, (8, 1)), (1, 8, (8, 4)), (2, 8, (8, 2)), (8, 8, (4, 1)), (32, 8, (1, 1)), (2, 16, (16, 1))],
)
def test_rows_of_a_step_on_other_processes(processes: int, size: int, divided: tuple, tmp_path: Path) -> None:
    """A run of 4 x 8 rows; who asks for 16 rows per process asks for other batches."""
    record = {"settings": {"training": {"rows_per_step": 32, "processes": 4}}, "finished": False}
    (tmp_path / "run.json").write_text(json.dumps(record))
    sizes = dict.fromkeys(("train_batch_size", "per_device_train_batch_size"), size)
    training = SimpleNamespace(**sizes, data_processes=processes, gradient_accumulation_steps=1)
    training.overwrite_output_dir = False
    keep_rows_per_step(tmp_path, training)
    assert (training.per_device_train_batch_size, training.gradient_accumulation_steps) == divided
    training.data_processes, training.train_batch_size, training.gradient_accumulation_steps = 3, 8, 1
    refused("has 32 rows per step, which 3 processes cannot divide among them", keep_rows_per_step, tmp_path, training)
