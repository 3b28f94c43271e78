"""SIGINT and SIGTERM end a run so that the same command finishes it as if it had never been stopped."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import script_runs
import torch
from script_runs import HALVED, adding, arguments, assert_equal_weights, kill, logged, losses, record, train, weights
from transformers import AutoModelForSequenceClassification, TrainerCallback

from vanillaformer.training import run as runs
from vanillaformer.training.run_folder.files import checkpoints


class SendSignals(TrainerCallback):
    """Sends signals to this process in the middle of a step, or while it evaluates."""

    def __init__(self, step: int, *numbers: int, evaluating: bool = False):
        self.step, self.numbers, self.evaluating = step, numbers, evaluating

    def send(self, state: Any, evaluating: bool) -> None:
        if state.global_step == self.step and evaluating is self.evaluating:
            for number in self.numbers:
                os.kill(os.getpid(), number)

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.send(state, evaluating=False)

    on_step_begin = on_substep_end

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.send(state, evaluating=True)


def stop(monkeypatch: pytest.MonkeyPatch, callback: TrainerCallback, code: int, *details: Any) -> None:
    """Train until a signal ends that, with this exit code."""
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with monkeypatch.context() as patch:
        patch.setattr(runs, "replace_callbacks", adding(callback))
        with pytest.raises(SystemExit) as error:
            train(*details)
    assert error.value.code == code
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_stopped_between_checkpoints(trained, tmp_path: Path, monkeypatch, capfd) -> None:
    stop(monkeypatch, SendSignals(2, signal.SIGINT), 130, "causal", tmp_path)
    out = capfd.readouterr().out
    assert out.splitlines()[-1] == (
        f"Stopped by SIGINT: the last checkpoint is {tmp_path / 'checkpoint-3'}; the same command resumes the run."
    )
    stop(monkeypatch, SendSignals(4, signal.SIGTERM), 143, "causal", tmp_path)
    assert f"resuming from {tmp_path / 'checkpoint-3'}" in capfd.readouterr().out
    assert sorted(checkpoints(tmp_path)) == [2, 4, 5]
    train("causal", tmp_path)
    assert_equal_weights(trained("causal"), tmp_path)
    assert losses(tmp_path) == losses(trained("causal"))
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in trained("causal").iterdir()}


def test_stopped_while_evaluating_and_averaging(tmp_path: Path, monkeypatch, capfd) -> None:
    options, whole = ["--average_checkpoints", "2", "--save_total_limit", "1"], tmp_path / "whole"
    train("classification", whole, *options)
    assert "The model is the average of 2 checkpoints: steps 4, 6." in capfd.readouterr().out
    before, after = weights(whole / "checkpoint-4"), weights(whole / "checkpoint-6")
    for name, value in weights(whole).items():
        assert torch.equal(value, ((before[name].double() + after[name].double()) / 2).float()), name
    AutoModelForSequenceClassification.from_pretrained(whole)
    assert record(whole)["metrics"]["eval_loss"] not in logged(whole, "eval_loss")[:-1]  # scored again
    stop(monkeypatch, SendSignals(4, signal.SIGINT, evaluating=True), 130, "classification", tmp_path / "a", *options)
    assert sorted(checkpoints(tmp_path / "a")) == [2, 4]
    stop(monkeypatch, SendSignals(4, signal.SIGINT), 130, "classification", tmp_path / "a", *options)
    train("classification", tmp_path / "a", *options)
    assert_equal_weights(tmp_path / "whole", tmp_path / "a")
    assert checkpoints(tmp_path / "a").keys() == checkpoints(tmp_path / "whole").keys()


def test_extra_checkpoint_is_no_candidate_for_the_best(tmp_path: Path, monkeypatch) -> None:
    options = ["--save_steps", "6", "--eval_steps", "3", "--learning_rate", "0.01", "--metric_for_best_model", "loss"]
    train("causal", tmp_path / "whole", *options)
    stop(monkeypatch, SendSignals(2, signal.SIGINT), 130, "causal", tmp_path / "a", *options)
    assert sorted(checkpoints(tmp_path / "a")) == [3]
    train("causal", tmp_path / "a", *options)
    assert sorted(checkpoints(tmp_path / "a")) == [6]
    assert_equal_weights(tmp_path / "whole", tmp_path / "a")


def test_stopped_before_training(tmp_path: Path, monkeypatch, capfd) -> None:
    def load(*details: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("it went on")

    monkeypatch.setattr(runs, "load_data", load)
    with pytest.raises(SystemExit) as error:
        train("causal", tmp_path / "run")
    assert error.value.code == 143
    assert capfd.readouterr().out.splitlines()[-1] == (
        "Stopped by SIGTERM: there is no checkpoint yet; the same command resumes the run."
    )
    assert not (tmp_path / "run").exists()


def send(*numbers: int) -> None:
    runs.replace_callbacks = adding(SendSignals(2, *numbers))


def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    kill("causal", arguments("causal", tmp_path), send, *[signal.SIGINT] * 2, code=-signal.SIGINT)
    assert sorted(checkpoints(tmp_path)) == [2]


def stop_second(rank: int, folder: Path) -> None:
    if rank == 1:
        send(signal.SIGTERM)


def test_processes_stop_together(tmp_path: Path) -> None:
    script_runs.train_together("causal", tmp_path, setups=[stop_second], exitcode=143)
    assert sorted(checkpoints(tmp_path)) == [2, 3]
    run = train("causal", tmp_path, *HALVED)  # by one process, with other batches: it says so, and continues
    assert run.details["steps"] == 6
