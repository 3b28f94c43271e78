"""Programs with a time budget, on a clock that each of their steps moves by a second."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from script_runs import (
    adding,
    arguments,
    clock_of_its_own,
    die_in_step,
    kill,
    logged,
    losses,
    record,
    state,
    stream_options,
    train,
    train_together,
)
from transformers import TrainerCallback

from vanillaformer import VanillaEncoderDecoderForConditionalGeneration
from vanillaformer.training import run as runs

TIME = "--max_steps", "-1", "--eval_steps", "0.25", "--warmup_steps", "0.1", "--max_time"


@pytest.fixture
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "replace_callbacks", adding(clock=1.0))


@pytest.mark.usefixtures("_clock")
def test_ends_in_time_and_is_extended_by_more(tmp_path: Path, capfd) -> None:
    train("classification", tmp_path / "run", *TIME, "20s")
    printed = capfd.readouterr().out
    first, second, *_ = printed.splitlines()
    assert first == f"Run {tmp_path / 'run'}: from the beginning"
    assert second == "Training for up to 20 seconds (--max_time)"
    assert "step 20/20 · 20 s · 0 s left · validation: loss" in printed
    assert "tokens/s · loss" in printed
    assert "Trained to step 20; this took" in printed
    assert logged(tmp_path / "run", "eval_loss", "step") == [5, 10, 15, 20]
    assert record(tmp_path / "run")["settings"]["training"]["max_time"] == 20
    assert "| time budget | 20 s |" in (tmp_path / "run" / "README.md").read_text()
    train("classification", tmp_path / "run", *TIME, "0m20s")
    assert "is finished already: nothing to train" in capfd.readouterr().out
    train("classification", tmp_path / "run", *TIME, "40s")
    printed = capfd.readouterr().out
    assert f"resuming from {tmp_path / 'run' / 'checkpoint-20'}" in printed
    assert "\nTraining for up to 40 seconds (--max_time); 20 s of it were spent before\n" in printed
    assert "Trained to step 40; this took" in printed
    assert state(tmp_path / "run")["max_steps"] == state(tmp_path / "run")["global_step"] == 40
    with pytest.raises(ValueError, match=r"max_time: 40.0 there, 30.0 now\); a run can be made longer, not shorter"):
        train("classification", tmp_path / "run", *TIME, "30s")


@pytest.mark.usefixtures("_clock")
def test_a_killed_run_gets_the_time_that_is_left(tmp_path: Path, capfd) -> None:
    kill("translation", arguments("translation", tmp_path, *TIME, "20s"), die_in_step, 12, 1.0)
    train("translation", tmp_path, *TIME, "20s")
    assert f"resuming from {tmp_path / 'checkpoint-10'}" in capfd.readouterr().out
    assert state(tmp_path)["global_step"] == 20
    attributes = state(tmp_path)["stateful_callbacks"]["TimeBudget"]["attributes"]
    assert attributes["spent"] == attributes["ended"] == 20


@pytest.mark.usefixtures("_clock")
def test_epochs_end_a_run_before_its_time(tmp_path: Path, capfd) -> None:
    """60 rows in batches of 8 are 8 steps."""
    train("classification", tmp_path, *TIME, "10m", "--max_epochs", "1.5")
    assert "step 12/12 · 12 s · " in capfd.readouterr().out
    rates = logged(tmp_path, "learning_rate")
    assert rates[-1] < 0.2 * max(rates)
    assert logged(tmp_path, "eval_loss", "step")[-1] == 12
    train("classification", tmp_path, *TIME, "10m", "--max_epochs", "2")
    assert "step 16/16 · 16 s · " in capfd.readouterr().out


@pytest.mark.usefixtures("_clock")
def test_a_stream_needs_no_steps(tmp_path: Path) -> None:
    train("causal", tmp_path / "run", *stream_options("causal", tmp_path), *TIME, "9")
    assert state(tmp_path / "run")["global_step"] == 9
    assert len(losses(tmp_path / "run")) == 9


@pytest.mark.usefixtures("_clock")
def test_patience_ends_a_run_before_its_time(tmp_path: Path, capfd) -> None:
    never = "--learning_rate", "0", "--early_stopping_patience", "2", "--metric_for_best_model", "loss"
    train("classification", tmp_path, *TIME, "100", "--max_epochs", "100", "--eval_steps", "0.1", *never)
    assert "Stopped early at step 3" in capfd.readouterr().out
    assert state(tmp_path)["global_step"] == pytest.approx(30, abs=1)


@pytest.mark.parametrize(("written", "growth"), [(1, (3.0, 24.0)), (24, (1.0, 1.0))])
def test_a_translators_evaluations_get_longer_with_its_outputs(written, growth, tmp_path: Path, monkeypatch) -> None:
    """Outputs of a token are far shorter than the references, those of 24 tokens as long as they can be."""
    found = []

    class Growth(TrainerCallback):
        def on_evaluate(self, *details: Any, model: Any = None, **kwargs: Any) -> None:
            found.append(budget.growth)

    def generate(model: Any, *details: Any, input_ids: torch.Tensor, **options: Any) -> torch.Tensor:
        return torch.full((len(input_ids), written), 7)

    monkeypatch.setattr(VanillaEncoderDecoderForConditionalGeneration, "generate", generate)
    replace = adding(Growth(), clock=1.0)

    def and_keep(trainer: Any) -> None:
        nonlocal budget
        budget = trainer.budget
        replace(trainer)

    budget: Any = None
    monkeypatch.setattr(runs, "replace_callbacks", and_keep)
    train("translation", tmp_path, *TIME, "4s")
    assert growth[0] <= found[0] <= growth[1]


def test_the_clock_of_the_first_process_counts(tmp_path: Path) -> None:
    train_together("classification", tmp_path, *TIME, "20", setups=[clock_of_its_own])
    rates = [json.loads((tmp_path / f"rates_{rank}.json").read_text()) for rank in range(2)]
    assert rates[0] == rates[1]
    assert len(rates[0]) == 20
    assert rates[0][-1] == 0
