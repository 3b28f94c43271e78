"""Runs that are killed again and again, at random moments, end as if nothing had happened.

`VANILLAFORMER_KILLS` is how many times each is trained so, `VANILLAFORMER_FUZZ_SEED` the seed of the moments.
"""

import os
import time
from multiprocessing import connection
from pathlib import Path
from random import Random
from typing import Any

import datasets
import pytest
import script_runs
import torch
from test_parallel import processes_of

RUNS, SEED = (int(os.environ.get(name, "0")) for name in ("VANILLAFORMER_KILLS", "VANILLAFORMER_FUZZ_SEED"))
PATIENCE = 300  # kills of one run
OPTIONS = "--max_steps 8 --eval_steps 1 --save_total_limit 2"
RECIPES = {
    "translation": "--joint_vocabulary False --optim muon --tokens_per_batch 400 --metric_for_best_model loss",
    "causal": "--ema_decay 0.5 --scheduled_sampling linear --scheduled_sampling_k 9",
    "masked": "--average_checkpoints 3",
    "classification": "--r_drop 1 --early_stopping_patience 5 --set layer_drop=0.2",
}


def train_alone(job: str, folder: Path) -> None:
    """Run a training program, in a process of its own, that keeps what it tokenizes to itself."""
    torch.set_num_threads(1)
    datasets.config.HF_DATASETS_CACHE = folder.parent / f"{folder.name}_cache"
    script_runs.PROGRAMS[job][0].train(script_runs.arguments(job, folder, *OPTIONS.split(), *RECIPES[job].split()))


def seconds(job: str, folder: Path, most: float | None = None) -> float | None:
    """Return how long a run took to its end; None if it was killed because it took longer than allowed."""
    began = time.perf_counter()
    process = script_runs.processes().Process(target=train_alone, args=(job, folder))
    process.start()
    process.join(timeout=most)
    if process.exitcode is None:
        process.kill()
        process.join()
        return None
    assert process.exitcode == 0, f"it failed after it had been killed; the folder is {folder}"
    return time.perf_counter() - began


def scores(folder: Path) -> dict[str, Any]:
    metrics = script_runs.record(folder)["metrics"]
    varying = "runtime", "per_second", "train_loss"
    return {name: value for name, value in metrics.items() if not name.endswith(varying)}


@pytest.mark.skipif(not RUNS, reason="takes minutes: set VANILLAFORMER_KILLS")
@pytest.mark.parametrize("number", range(RUNS))
@pytest.mark.parametrize("job", RECIPES)
def test_killed_again_and_again(job: str, number: int, tmp_path: Path) -> None:
    whole, killed, random = tmp_path / "whole", tmp_path / "killed", Random(f"{job} {number} {SEED}")
    seconds(job, whole)  # the first process has to load the modules
    usual = seconds(job, tmp_path / "timed") or 0.0
    kills = 0
    while seconds(job, killed, random.uniform(0, usual * (0.8 + kills / 50))) is None:
        kills += 1
        assert kills < PATIENCE, f"no end after {kills} kills"
    print(f"{job}: {kills} kills in a run of {usual:.1f} s")
    script_runs.assert_equal_weights(whole, killed)
    assert script_runs.losses(whole) == script_runs.losses(killed)
    assert {path.name for path in killed.iterdir()} == {path.name for path in whole.iterdir()}
    assert scores(whole) == scores(killed)
    assert not list(killed.glob("*.part"))


EVERY_STEP = "--eval_steps 1 --save_total_limit 2"
LAYOUTS = [None, "fsdp=2", "replicate=2", "tp=2", "fsdp=2,replicate=2", "fsdp=2,tp=2"]
DIVIDED = {
    "translation": f"--tokens_per_batch 400 --predict_with_generate False --async_save {EVERY_STEP}",
    "causal": f"--optim muon {EVERY_STEP}",
    "classification": f"STREAM --async_save {EVERY_STEP}",
}


def together(layout: str | None, job: str, folder: Path, options: list[str], most: float, random: Random) -> bool:
    """Train in a layout, and kill one of the processes after some time, and then the rest; return whether it ended."""
    count, parts = processes_of(layout) if layout else (1, 1)
    options = [*options, "--per_device_train_batch_size", str(8 // parts)]
    argv = script_runs.arguments(job, folder, *options, *(["--parallel", layout] if layout else []))
    ranks = script_runs.start_ranks(job, argv, count, [script_runs.as_accelerators] if "tp" in str(layout) else [])
    connection.wait([process.sentinel for process in ranks], timeout=most)
    if all(process.exitcode is None for process in ranks):
        random.choice(ranks).kill()
        time.sleep(random.uniform(0, 0.1))
    for process in ranks:
        process.join(timeout=None if process.exitcode == 0 else 20)
        process.kill()
        process.join()
    codes = {process.exitcode for process in ranks}
    return codes == {0}


@pytest.mark.skipif(not RUNS, reason="takes minutes: set VANILLAFORMER_KILLS")
@pytest.mark.parametrize("number", range(RUNS))
@pytest.mark.parametrize("job", DIVIDED)
def test_killed_in_other_layouts(job: str, number: int, tmp_path: Path) -> None:
    whole, killed, random = tmp_path / "whole", tmp_path / "killed", Random(f"{job} {number} {SEED}")
    options = [*script_runs.ALONE, "--max_steps", "8", *DIVIDED[job].replace("STREAM", "").split()]
    options += script_runs.stream_options(job, tmp_path) if "STREAM" in DIVIDED[job] else []
    assert together(None, job, whole, options, 600, random)  # the first process has to load the modules
    began, kills = time.perf_counter(), 0
    assert together("fsdp=2", job, tmp_path / "timed", options, 600, random)
    usual = time.perf_counter() - began
    while not together(
        random.choice(LAYOUTS), job, killed, options, random.uniform(0, usual * (0.8 + kills / 20)), random
    ):
        kills += 1
        assert kills < PATIENCE, f"no end after {kills} kills"
    print(f"{job}: {kills} kills in a run of {usual:.1f} s")
    assert script_runs.logged(killed, "loss", "step") == list(range(1, 9))
    assert script_runs.losses(killed) == pytest.approx(script_runs.losses(whole), rel=1e-5)
