"""Runs that are killed again and again, at random moments and in changing layouts, end as if nothing had happened.

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
from test_parallel import processes_of

RUNS, SEED = (int(os.environ.get(name, "0")) for name in ("VANILLAFORMER_KILLS", "VANILLAFORMER_FUZZ_SEED"))
PATIENCE = 300  # kills of one run
OPTIONS = "--max_steps 8 --eval_steps 1 --save_total_limit 2"
# Runs of one process, and without dropout, whose draws cannot agree, of changing layouts
ALONE = {
    "translation": "--joint_vocabulary False --optim muon --tokens_per_batch 400 --metric_for_best_model loss",
    "causal": "--ema_decay 0.5 --scheduled_sampling linear --scheduled_sampling_k 9",
    "masked": "--average_checkpoints 3",
    "classification": "--r_drop 1 --early_stopping_patience 5 --set layer_drop=0.2",
}
DIVIDED = {
    "translation": "--tokens_per_batch 400 --predict_with_generate False --async_save",
    "causal": "--optim muon",
    "classification": "STREAM --async_save",
}
LAYOUTS = [None, "fsdp=2", "replicate=2", "tp=2", "fsdp=2,replicate=2", "fsdp=2,tp=2"]


def own_cache(folder: Path) -> None:
    """Let a run keep what it tokenizes to itself."""
    datasets.config.HF_DATASETS_CACHE = folder.parent / f"{folder.name}_cache"


def start(layout: str | None, job: str, folder: Path, options: list[str]) -> list[Any]:
    """Start a run, in one process unless there is a layout, and return its processes."""
    if layout is None:
        argv = script_runs.arguments(job, folder, *options)
        details = own_cache, (folder,), job, argv
        alone = script_runs.processes().Process(target=script_runs.train_after, args=details)
        alone.start()
        return [alone]
    count, parts = processes_of(layout)
    options = [*options, "--parallel", layout, "--per_device_train_batch_size", str(8 // parts)]
    setups = [script_runs.as_accelerators] if "tp" in layout else []
    return script_runs.start_ranks(job, script_runs.arguments(job, folder, *options), count, setups)


def seconds(ranks: list[Any], random: Random, most: float | None = None) -> float | None:
    """Return how long a run took, None if it was killed within `most` seconds: first one process, then the rest."""
    began = time.perf_counter()
    connection.wait([process.sentinel for process in ranks], timeout=most and random.uniform(0, most))
    is_killed = all(process.exitcode is None for process in ranks)
    if is_killed:
        random.choice(ranks).kill()
        time.sleep(random.uniform(0, 0.1))
    for process in ranks:
        process.join(timeout=None if process.exitcode == 0 else 20)
        process.kill()
        process.join()
    codes = {process.exitcode for process in ranks}
    assert is_killed or 0 in codes, "it failed after it had been killed"
    return time.perf_counter() - began if codes == {0} else None


def scores(folder: Path) -> dict[str, Any]:
    metrics = script_runs.record(folder)["metrics"]
    varying = "runtime", "per_second"
    return {name: value for name, value in metrics.items() if not name.endswith(varying)}


@pytest.mark.skipif(not RUNS, reason="takes minutes: set VANILLAFORMER_KILLS")
@pytest.mark.parametrize("number", range(RUNS))
@pytest.mark.parametrize(("job", "divided"), [*((job, False) for job in ALONE), *((job, True) for job in DIVIDED)])
def test_killed_again_and_again(job: str, divided: bool, number: int, tmp_path: Path) -> None:
    whole, killed, random = tmp_path / "whole", tmp_path / "killed", Random(f"{job} {number} {SEED}")
    recipe, layouts = (DIVIDED[job], LAYOUTS) if divided else (ALONE[job], [None])
    options = [*OPTIONS.split(), *recipe.replace("STREAM", "").split(), *(script_runs.ALONE if divided else ())]
    options += script_runs.stream_options(job, tmp_path) if "STREAM" in recipe else []
    assert seconds(start(None, job, whole, options), random)  # the first process has to load the modules
    usual, kills = seconds(start("fsdp=2" if divided else None, job, tmp_path / "timed", options), random) or 0.0, 0
    slowly = 20 if divided else 50
    while not seconds(start(random.choice(layouts), job, killed, options), random, usual * (0.8 + kills / slowly)):
        kills += 1
        assert kills < PATIENCE, f"no end after {kills} kills"
    print(f"{job}: {kills} kills in a run of {usual:.1f} s")
    if divided:
        assert script_runs.logged(killed, "loss", "step") == list(range(1, 9))
        assert script_runs.losses(killed) == pytest.approx(script_runs.losses(whole), rel=1e-5)
        return
    script_runs.assert_equal_weights(whole, killed)
    assert script_runs.losses(whole) == script_runs.losses(killed)
    assert {path.name for path in killed.iterdir()} == {path.name for path in whole.iterdir()}
    assert scores(whole) == scores(killed)
    assert not list(killed.glob("*.part"))
