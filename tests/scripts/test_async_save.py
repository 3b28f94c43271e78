"""Checkpoints that are written while training continues are those of a run that waits for them."""

import os
import signal
import threading
from pathlib import Path

import pytest
import torch
from script_runs import arguments, assert_equal_weights, die_after_four, kill, losses, state, train, weights
from test_parallel import train_in

from vanillaformer.training.run_folder.files import SAVING, checkpoints, is_complete
from vanillaformer.training.trainer.saving import Background
from vanillaformer.training.trainer.trainer import RunTrainer

RECIPES = {
    "translation": "--joint_vocabulary False --optim muon --ema_decay 0.5 --metric_for_best_model loss",
    "causal": "--optim adamw_torch --scheduled_sampling linear --scheduled_sampling_k 9 --bf16",
    "classification": "--r_drop 1 --lora_rank 2",
}
ONE = ["--eval_steps", "1", "--save_total_limit", "9", "--async_save"]


def written_late(*rank_and_folder: object) -> None:
    """Let no checkpoint be written before the next step has been made."""
    start, step, stepped = Background.start, RunTrainer.training_step, threading.Event()

    def start_late(self, write):
        stepped.clear()
        start(self, lambda: stepped.wait(60) and write())

    def and_tell(*details, **keywords):
        loss = step(*details, **keywords)
        stepped.set()
        return loss

    Background.start, RunTrainer.training_step = start_late, and_tell


def die_while_written() -> None:
    """Let the process be killed when the checkpoint of step 3 is nearly written."""
    written_late()
    replace = os.replace

    def die(source, target):
        if str(target).endswith("checkpoint-3"):
            os.kill(os.getpid(), signal.SIGKILL)
        return replace(source, target)

    os.replace = die


@pytest.mark.parametrize("job", RECIPES)
def test_the_same_checkpoints_and_the_same_run_after_a_kill(job: str, tmp_path: Path, monkeypatch) -> None:
    options, killed = [*RECIPES[job].split(), *ONE], tmp_path / "killed"
    train(job, tmp_path / "waits", *options[:-1])
    with monkeypatch.context() as patch:
        patch.setattr(Background, "start", Background.start)
        patch.setattr(RunTrainer, "training_step", RunTrainer.training_step)
        written_late()
        train(job, tmp_path / "continues", *options)
    ours, theirs = checkpoints(tmp_path / "continues"), checkpoints(tmp_path / "waits")
    assert sorted(ours) == sorted(theirs) == [1, 2, 3, 4, 5, 6]
    assert_equal_weights(tmp_path / "continues", tmp_path / "waits")
    for step, folder in ours.items():
        files = {path.relative_to(folder) for path in folder.rglob("*")}
        assert files == {path.relative_to(theirs[step]) for path in theirs[step].rglob("*")}
        for path in (path for path in files if path.suffix == ".safetensors"):
            assert_equal_weights(folder / path, theirs[step] / path)
        one, other = (torch.load(place / "optimizer.pt", weights_only=False) for place in (folder, theirs[step]))
        torch.testing.assert_close(one["state"], other["state"], rtol=0, atol=0)
        assert one["param_groups"] == other["param_groups"]
        for name in ("scheduler.pt", "rng_state.pth"):
            one, other = (torch.load(place / name, weights_only=False) for place in (folder, theirs[step]))
            assert str(one) == str(other), name
        ours_state, theirs_state = state(folder), state(theirs[step])
        assert ours_state["stateful_callbacks"].keys() == theirs_state["stateful_callbacks"].keys()
        for entry in ("global_step", "best_global_step", "epoch", "save_steps", "total_flos"):
            assert ours_state[entry] == theirs_state[entry], entry
        assert Path(ours_state["best_model_checkpoint"]).name == Path(theirs_state["best_model_checkpoint"]).name
    kill(job, arguments(job, killed, *options), die_while_written)
    assert sorted(checkpoints(killed)) == [1, 2]
    assert not (killed / "checkpoint-3").exists()
    train(job, killed, *options)
    assert_equal_weights(killed, tmp_path / "continues")
    assert losses(killed) == losses(tmp_path / "continues")
    assert not any((tmp_path / name / SAVING).exists() for name in ("continues", "killed"))


def test_a_divided_model_whose_checkpoint_another_layout_takes_up(tmp_path: Path) -> None:
    train_in("fsdp=2", "causal", tmp_path / "whole", *ONE)
    for folder in checkpoints(tmp_path / "whole").values():
        assert is_complete(folder)
        assert (folder / "optimizer" / ".metadata").exists()
    setups = [written_late, die_after_four]
    train_in("fsdp=2", "causal", tmp_path / "killed", *ONE, setups=setups, exitcode=-signal.SIGKILL)
    assert sorted(checkpoints(tmp_path / "killed")) == [1, 2, 3]
    train("causal", tmp_path / "killed", "--set", "dropout=0", *ONE)
    assert losses(tmp_path / "killed") == pytest.approx(losses(tmp_path / "whole"), rel=1e-5)
    for name, value in weights(tmp_path / "whole").items():
        assert (value - weights(tmp_path / "killed")[name]).norm() <= 1e-4 * value.norm() + 1e-5
