"""Admin's profiling pass, as a training program makes it."""

import pytest
import torch
from datasets import Dataset

from vanillaformer.data.preprocessing.batching import RowMasking
from vanillaformer.modeling.admin import profile_admin
from vanillaformer.training.arguments import ModelArguments
from vanillaformer.training.models import build_model
from vanillaformer.training.run_folder.run import Run
from vanillaformer.training.tasks.classification import ClassifierTrainingArguments
from vanillaformer.training.tasks.language_model import LanguageModelTrainingArguments
from vanillaformer.training.trainer.adaptation import first_batches, measure_new_model
from vanillaformer.training.trainer.trainer import RunTrainer

SMALL = ["hidden_size=16", "num_hidden_layers=2", "num_attention_heads=2", "dropout=0.1"]


def trainer_of(tokenizer, folder, *overrides: str, arguments=LanguageModelTrainingArguments, **settings) -> RunTrainer:
    model = build_model("masked", ModelArguments(overrides=[*SMALL, *overrides]), tokenizer, length=16, seed=0)
    texts = [f"text number {number} {'x' * (number % 5)}"[:14] for number in range(30)]
    rows = Dataset.from_dict({"input_ids": tokenizer(texts)["input_ids"]})
    settings = {"per_device_train_batch_size": 8, "output_dir": str(folder), "use_cpu": True, **settings}
    return RunTrainer(
        model=model, args=arguments(**settings), train_dataset=rows, eval_dataset=rows,
        data_collator=RowMasking(tokenizer, mlm_probability=0.15),
    )  # fmt: skip


def run_of(folder, checkpoint=None, started_from=None) -> Run:
    return Run(folder, "", {"model": {"model_name_or_path": started_from}}, checkpoint=checkpoint)


def test_a_new_admin_model_gets_the_factors_of_its_first_batch(encoder_tokenizer, tmp_path, capsys):
    trainer = trainer_of(encoder_tokenizer, tmp_path, "norm_placement=admin")
    states = torch.get_rng_state()
    factors = measure_new_model(run_of(tmp_path), trainer)
    assert torch.equal(torch.get_rng_state(), states), "later draws would be others than those of a resumed run"
    assert (len(factors), min(factors.values())) == (4, 1)
    assert max(factors.values()) > 1.2
    for name, value in factors.items():
        assert torch.equal(trainer.model.get_parameter(f"{name}.omega"), torch.full((16,), value))
    largest = f"{max(factors.values()):.2f}"
    reported = f"Admin: factors of 4 residual connections from 1.00 to {largest}, measured on 8 rows."
    assert capsys.readouterr().out.splitlines() == [reported]
    # the same as by hand, from the rows that training begins with
    again = trainer_of(encoder_tokenizer, tmp_path, "norm_placement=admin")
    assert profile_admin(again.model, **next(iter(again.get_train_dataloader()))) == pytest.approx(factors)
    trainer = trainer_of(
        encoder_tokenizer, tmp_path, "norm_placement=admin", arguments=ClassifierTrainingArguments
    )  # rows grouped by length
    assert max(measure_new_model(run_of(tmp_path), trainer).values()) > 1.2


@pytest.mark.parametrize("strategy", ["random", "group_by_length", "sequential"])
def test_the_first_batch_is_that_of_the_training(strategy, encoder_tokenizer, tmp_path):
    trainer = trainer_of(encoder_tokenizer, tmp_path, train_sampling_strategy=strategy)
    (batch,) = first_batches(trainer, 1)
    trained = next(iter(trainer.get_train_dataloader()))
    assert batch.keys() == trained.keys()
    assert all(torch.equal(batch[name], value) for name, value in trained.items())


@pytest.mark.parametrize(
    ("overrides", "run"),
    [((), {}), (("norm_placement=admin", "initialization=xavier"), {}),
     (("norm_placement=admin",), {"checkpoint": "checkpoint-2"}),
     (("norm_placement=admin",), {"started_from": "runs/model"})],
    ids=["another placement", "another initialization", "going on", "from a saved model"],
)  # fmt: skip
def test_no_other_model_is_touched(overrides, run, encoder_tokenizer, tmp_path, capsys):
    trainer = trainer_of(encoder_tokenizer, tmp_path, *overrides)
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    assert measure_new_model(run_of(tmp_path, **run), trainer) == {}
    assert all(torch.equal(value, before[name]) for name, value in trainer.model.state_dict().items())
    assert "Admin" not in capsys.readouterr().out
