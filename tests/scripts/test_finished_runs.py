"""A finished run does what a later command asks or refuses it; one that is stopped goes on as if it had not been."""

import json
import os
import shutil
import signal
from pathlib import Path
from random import Random
from typing import Any

import pytest
import script_runs
import torch
from refusals import refused
from script_runs import (
    HALVED,
    adding,
    arguments,
    assert_equal_weights,
    json_lines,
    kill,
    logged,
    losses,
    record,
    train,
    weights,
)
from transformers import AutoModelForSequenceClassification, GenerationConfig, TrainerCallback

from vanillaformer.training import finishing
from vanillaformer.training import run as runs
from vanillaformer.training.report import calibration, classes
from vanillaformer.training.run_folder.files import PREVIOUS, SAVING, checkpoints
from vanillaformer.training.run_folder.run import recover

ROWS = [(f"{'good' if n % 3 else 'bad'} text number {n}", "yes" if n % 3 else "no") for n in range(40)]
SHORT = ("--max_steps", "2", "--eval_steps", "1", "--validation_fraction", "0.2")


def write_csv(path: Path, rows: list[tuple[str, str]]) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in rows))
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("finished")
    write_csv(root / "train.csv", ROWS)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        train("classification", root / "run", "--train_file", "train.csv", *SHORT)
    return root


@pytest.fixture
def run(finished: Path, tmp_path: Path, monkeypatch) -> Path:
    """The folder of a finished run, beside its data in the working directory."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run" / "mine.png").write_text("mine")
    (tmp_path / "run" / "model_backup.safetensors").write_text("mine")
    return tmp_path / "run"


def again(folder: Path, *more: str, data: str = "train.csv") -> Any:
    options = dict(zip(SHORT[::2], SHORT[1::2])) | dict(zip(more[::2], more[1::2]))
    words = [word for pair in options.items() for word in pair if word]
    return train("classification", folder, "--train_file", data, *words)


@pytest.mark.parametrize(("more", "message"), [
    ("--train_file nothere.csv --overwrite_output_dir True", "nothere.csv"),
    ("--overwrite_output_dir True --set hidden_size=abc", "hidden_size"),
    ("--train_file nothere.csv --max_steps 5", "nothere.csv"),
    ("--learning_rate 0.1", r"holds a finished run with other settings .*\(learning_rate: 0.001 there, 0.1 now"),
])  # fmt: skip
def test_what_cannot_work_changes_nothing(more: str, message: str, run: Path) -> None:
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    refused(message, again, run, *more.split())
    refused("other settings", train, "translation", run)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("overwrite", [True, False])
def test_a_full_disk_leaves_the_finished_run(overwrite: bool, run: Path, monkeypatch) -> None:
    save, old, made = torch.save, weights(run), record(run)

    def full(content: Any, path: Any, **options: Any) -> None:
        if "optimizer" in str(path):
            raise OSError(28, "No space left on device")
        save(content, path, **options)

    monkeypatch.setattr(torch, "save", full)
    more = ("--overwrite_output_dir", "True") if overwrite else ("--max_steps", "4")
    point = "no checkpoint yet, so the same command starts over" if overwrite else "from which the same command"
    refused(rf"could not be written to .*; .*{point}", again, run, *more, error=OSError)
    assert record(run) == made
    assert all(torch.equal(value, old[name]) for name, value in weights(run).items())
    AutoModelForSequenceClassification.from_pretrained(run)
    assert sorted(path.name for path in run.glob("checkpoint-*")) == ["checkpoint-1", "checkpoint-2"]
    assert not (run / PREVIOUS).exists()


def test_overwriting_deletes_only_what_a_run_has_written(run: Path, tmp_path: Path) -> None:
    card = run / "README.md"
    card.write_text(card.read_text().replace("\n# ", "\nFrom Ann.\n\n# ", 1))
    again(run, "--overwrite_output_dir", "True", "--seed", "7")
    again(tmp_path / "anew", "--seed", "7")
    assert_equal_weights(tmp_path / "anew", run)
    left = {path.name for path in run.iterdir()} - {path.name for path in (tmp_path / "anew").iterdir()}
    assert left == {"README.edited.md", "mine.png", "model_backup.safetensors"}
    assert ["From Ann." in path.read_text() for path in (run / "README.edited.md", card)] == [True, False]


def test_data_is_known_by_content(run: Path) -> None:
    os.mkdir("d")
    assert again(run, data="d/../train.csv").finished
    write_csv(Path("train.csv"), [(text, {"yes": "aaa", "no": "zzz"}[label]) for text, label in ROWS])
    for more in ((), ("--max_steps", "4")):
        refused(r"train: label names \['no', 'yes'\] then, \['aaa', 'zzz'\] now", again, run, *more)
    write_csv(Path("train.csv"), [*ROWS, ("another", "yes")])
    refused("a run on other data", again, run)


def test_new_test_data_is_scored(run: Path, tmp_path: Path, capfd) -> None:
    before, old = record(run), (run / "model.safetensors").read_bytes()
    rows = json_lines(run / "predictions_validation.jsonl")  # where there is no test
    assert len(rows) == before["details"]["rows"]["validation"]
    write_csv(Path("test.csv"), ROWS[:9])
    assert again(run, "--test_file", "test.csv").metrics["test_loss"] > 0
    again(tmp_path / "anew", "--test_file", "test.csv")
    found, anew = record(run), record(tmp_path / "anew")
    assert found["metrics"]["test_loss"] == pytest.approx(anew["metrics"]["test_loss"], rel=1e-5)
    assert found["metrics"]["eval_loss"] == before["metrics"]["eval_loss"]
    assert found["details"]["rows"] == anew["details"]["rows"]
    assert (run / "predictions_test.jsonl").read_text() == (tmp_path / "anew" / "predictions_test.jsonl").read_text()
    assert (run / "README.md").read_text().lower().count("test") > 1
    assert (run / "model.safetensors").read_bytes() == old
    names = "predictions_test.jsonl", "model.safetensors"
    made = [(run / name).stat().st_mtime_ns for name in names]
    assert again(run, "--test_file", "test.csv").metrics == found["metrics"]
    assert [(run / name).stat().st_mtime_ns for name in names] == made
    assert "nothing to train" in capfd.readouterr().out


def test_card_is_written_anew(run: Path) -> None:
    again(run, "--license", "mit", "--data_description", "Texts about numbers.")
    card = (run / "README.md").read_text()
    assert "license: mit\n" in card
    assert "Texts about numbers." in card
    again(run)
    assert (run / "README.md").read_text() == card
    (run / "README.md").write_text(card.replace("\n# ", "\nFrom Ann.\n\n# ", 1))
    again(run, "--license", "apache-2.0")
    card = (run / "README.md").read_text()
    assert all(text in card for text in ("Texts about numbers.", "license: apache-2.0\n", "\nFrom Ann.\n"))
    words = "caf\u00e9".encode("latin-1")  # no text: it cannot be merged
    (run / "README.md").write_bytes(words)
    again(run, "--license", "mit")
    assert (run / "README.edited.md").read_bytes() == words


def test_search_is_saved_and_scored(trained, tmp_path: Path) -> None:
    shutil.copytree(trained("translation"), tmp_path / "run")
    train("translation", tmp_path / "run", "--num_beams", "2", "--length_penalty", "2.0", "--early_stopping", "True")
    saved = GenerationConfig.from_pretrained(tmp_path / "run")
    assert (saved.num_beams, saved.length_penalty, saved.early_stopping) == (2, 2.0, True)
    assert_equal_weights(trained("translation"), tmp_path / "run")
    before, after = (record(folder)["metrics"] for folder in (trained("translation"), tmp_path / "run"))
    assert before["eval_loss"] == after["eval_loss"]
    assert before["test_samples_per_second"] != after["test_samples_per_second"]


AFTER_TRAINING = {
    "confusion_matrix.png": (classes, "confusion_picture"),
    "loss_curve.png": (finishing, "loss_curve"), "The calibration": (calibration, "calibrate"),
    "Scores and predictions": (finishing, "score_and_predict"),
    "predictions_test.jsonl": (finishing, "write_lines"),
    "Scores of training rows": (finishing, "training_scores"),
    "Baselines": (finishing, "baseline_scores"), "The diagnosis": (finishing, "diagnose"),
    "README.md": (finishing, "run_facts"),
}  # fmt: skip


def test_what_comes_after_training_cannot_cost_the_model(trained, tmp_path: Path, monkeypatch, capfd) -> None:
    """All of it fails, then each by itself: the run is finished, and the same command makes what is missing."""

    def fail(*details: Any, **options: Any) -> None:
        assert (tmp_path / "model.safetensors").exists()
        raise (MemoryError if len(patched) == 1 and ".png" in patched[0] else RuntimeError)("not today")

    options = "--max_validation_samples", "60"  # enough to calibrate
    trained_once = {}
    for patched in ([*AFTER_TRAINING], *([name] for name in AFTER_TRAINING)):
        with monkeypatch.context() as patch:
            for name in patched:
                patch.setattr(*AFTER_TRAINING[name], fail)
            run = train("classification", tmp_path, *options)
        assert run.finished
        assert record(tmp_path)["finished"]
        printed = capfd.readouterr().err
        trained_once = trained_once or {key: run.metrics[key] for key in ("train_loss", "train_runtime")}
        if len(patched) > 1:
            assert not list(tmp_path.glob("*.png"))
            continue
        assert run.failed == record(tmp_path)["failed"] == patched
        assert f"Warning: {patched[0]} could not be created: not today" in printed
    whole = train("classification", tmp_path, *options)
    assert "Repeated, because it failed: README.md." in capfd.readouterr().out
    assert not whole.failed
    assert whole.details["calibration"]["temperature"] > 0
    assert "test_accuracy" in whole.metrics
    assert whole.metrics | trained_once == whole.metrics  # of the training, of which no step was repeated
    train("classification", tmp_path, *options)
    assert "nothing to train" in capfd.readouterr().out


def test_intervals_of_a_longer_run_are_its_own(tmp_path: Path, capfd) -> None:
    options = "--eval_steps", "0.5", "--logging_steps", "0.5"
    train("causal", tmp_path, *options, "--max_steps", "4")
    assert train("causal", tmp_path, *options, "--max_steps", "12").details["steps"] == 12
    assert (tmp_path / "checkpoint-4").exists()
    assert logged(tmp_path, "eval_loss", "step")[:4] == [2, 4, 6, 12]
    assert logged(tmp_path, "loss", "step") == [2, 4, 6, 12]
    printed = capfd.readouterr()
    assert "trainer_state.json" not in printed.err
    assert "mtime" not in printed.err


OVER = ("--overwrite_output_dir", "--seed", "7")
LONGER = ("--max_steps", "4")
RUNS, SEED = (int(os.environ.get(name, "0")) for name in ("VANILLAFORMER_KILLS", "VANILLAFORMER_FUZZ_SEED"))
# Of the writes and moves in the folder of a run: 174 for a run that replaces it, 131 for a longer one
RANDOM = [(OVER, "", number) for number in Random(SEED).sample(range(1, 174), 10 * RUNS)]
RANDOM += [(LONGER, "", number) for number in Random(SEED).sample(range(1, 131), 10 * RUNS)]


@pytest.mark.parametrize(("more", "file", "number"), [
    *RANDOM, (OVER, f"{PREVIOUS}/", 4),  # while it is moved aside
    (OVER, f"{SAVING}/checkpoint-1/", 3),  # before the first checkpoint
    (OVER, "model.safetensors", 1),  # in the last save
    (LONGER, "tokenizer_config.json", 1),
])  # fmt: skip
def test_killed_over_a_finished_run(more: tuple[str, ...], file: str, number: int, run: Path, tmp_path: Path) -> None:
    options = ["--train_file", "train.csv", *SHORT, *more]
    shutil.copytree(run, tmp_path / "whole")
    train("classification", tmp_path / "whole", *options)
    argv = arguments("classification", run, *options)
    kill("classification", argv, script_runs.die_while_saving, f"{run}/{file}", number)
    made = run / "run.json"
    replaced = not (run / PREVIOUS).exists() and json.loads(made.read_text())["settings"]["training"]["seed"] == 7
    if not replaced:  # by a run with a checkpoint, with which the next one goes on
        shutil.copytree(run, tmp_path / "seen")
        recover(tmp_path / "seen")
        AutoModelForSequenceClassification.from_pretrained(tmp_path / "seen")
        assert record(tmp_path / "seen")["settings"]["training"]["seed"] == 42
    train("classification", run, *(word for word in options if not replaced or word != "--overwrite_output_dir"))
    assert_equal_weights(tmp_path / "whole", run)
    assert {path.name for path in run.iterdir()} == {path.name for path in (tmp_path / "whole").iterdir()}


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
        refused(f"^{code}$", train, *details, error=SystemExit)
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
    stop(monkeypatch, SendSignals(4, signal.SIGINT, evaluating=True), 130, "classification", tmp_path / "a", *options)
    assert sorted(checkpoints(tmp_path / "a")) == [2, 4]
    stop(monkeypatch, SendSignals(4, signal.SIGINT), 130, "classification", tmp_path / "a", *options)
    train("classification", tmp_path / "a", *options)
    assert_equal_weights(tmp_path / "whole", tmp_path / "a")
    assert checkpoints(tmp_path / "a").keys() == checkpoints(tmp_path / "whole").keys()


@pytest.mark.parametrize(("job", "words", "last"), [
    ("causal", "--save_steps 6 --eval_steps 3 --learning_rate 0.01 --metric_for_best_model loss", [6]),
    ("classification", "--max_train_samples 24 --eval_strategy epoch --logging_strategy epoch", [3, 6]),
])  # fmt: skip
def test_a_stopped_run_evaluates_and_chooses_as_a_whole_one(job, words, last, tmp_path: Path, monkeypatch) -> None:
    options, whole, stopped = words.split(), tmp_path / "whole", tmp_path / "stopped"
    train(job, whole, *options)
    stop(monkeypatch, SendSignals(2, signal.SIGINT), 130, job, stopped, *options)
    assert sorted(checkpoints(stopped)) == [3]
    train(job, stopped, *options)
    assert sorted(checkpoints(stopped)) == last
    assert_equal_weights(whole, stopped)
    assert logged(stopped, "loss", "step") == logged(whole, "loss", "step")
    assert logged(stopped, "eval_loss", "step") == logged(whole, "eval_loss", "step") == [3, 6]


def test_stopped_before_training(tmp_path: Path, monkeypatch, capfd) -> None:
    def load(*details: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("it went on")

    monkeypatch.setattr(runs, "load_data", load)
    refused("^143$", train, "causal", tmp_path / "run", error=SystemExit)
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
