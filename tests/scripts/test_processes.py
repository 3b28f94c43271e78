"""Several processes, or accumulated batches, train as one process does; only the first one speaks and writes."""

import json
import os
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import sacrebleu
import script_runs
import torch
from script_runs import ALONE, HALVED, arguments, assert_same_training, losses, record, train, train_together, weights


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory):
    """Return a function (job, options) -> folder of a run by one process, trained once, and all its options."""

    @cache
    def run(job: str, text: str) -> tuple[Path, list[str]]:
        folder = tmp_path_factory.mktemp(job)
        options = [*text.split(), *(script_runs.stream_options(job, folder) if "--streaming" in text else [])]
        return train(job, folder / "run", *ALONE, *options).folder, options

    return run


def torchrun(*words: str, **environment: str) -> list[str]:
    """Run a program in two processes, and return the lines that it prints."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", *words]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


# Trains, but the second process is killed in step 4 of the first attempt.
DIES_ONCE = """
import os
import sys

from script_runs import die_in_step
from vanillaformer.scripts import train_translation

if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    die_in_step(4)
train_translation.main(sys.argv[1:])
"""


def test_torchrun_starts_a_killed_process_again(alone, tmp_path: Path) -> None:
    whole, _ = alone("translation", "")
    (tmp_path / "program.py").write_text(DIES_ONCE)
    options = arguments("translation", tmp_path / "two", *HALVED)
    options.remove("--use_cpu")  # which nobody has to know
    # torch 2.13 may give new processes the addresses of dead ones where these share its own store
    more = {"PYTHONPATH": str(Path(__file__).parent), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    lines = torchrun("--max-restarts", "1", str(tmp_path / "program.py"), *options, **more)
    for line in ("Run ", "Tokenizer: ", "Data: "):
        assert sum(printed.startswith(line) for printed in lines) == 2, "by one process of each attempt"
    for line in ("step 6/6", "Test: ", "The model is in "):
        assert sum(printed.startswith(line) for printed in lines) == (2 if "step" in line else 1)
    assert_same_training(whole, tmp_path / "two")
    one, two = (record(folder)["metrics"] for folder in (whole, tmp_path / "two"))
    assert two["test_loss"] == pytest.approx(one["test_loss"], rel=1e-4)
    # Every row is scored once, though a process gets some twice.
    rows, found = (script_runs.json_lines(folder / "predictions_test.jsonl") for folder in (whole, tmp_path / "two"))
    assert [row["source"] for row in found] == [row["source"] for row in rows]
    predictions, references = ([row[name] for row in found] for name in ("prediction", "reference"))
    assert two["test_chrf"] == pytest.approx(sacrebleu.corpus_chrf(predictions, [references]).score)


# The last batch of an epoch is divided without repeating rows: 19 rows are batches of 8, 8 and 3, and 17 of 8, 8 and 1
CASES = {
    "translation by tokens": ("translation", "--tokens_per_batch 400 --predict_with_generate False"),
    "causal by tokens, frozen, averaged": ("causal", "--tokens_per_batch 400 --ema_decay 0.5 --freeze embed_tokens"),
    "masked by tokens, averaged": ("masked", "--tokens_per_batch 400 --average_checkpoints 2"),
    "uneven classification": ("classification", "--max_train_samples 19 --r_drop 1"),
    "idle": ("classification", "--max_train_samples 17 --preset gpt-tiny"),
    "idle, read ahead": ("classification", "--max_train_samples 17 --max_steps -1 --max_epochs 2 --max_tokens 1e6"),
    "uneven tags by tokens": ("token_classification", "--max_train_samples 19 --tokens_per_batch 200"),
    "uneven images": ("image_classification", "--max_train_samples 17"),
    "uneven masked images": ("masked_image", "--max_train_samples 19"),
    "streamed texts": ("causal", "--streaming"),
    "streamed pairs": ("translation", "--streaming --predict_with_generate False"),
}


@pytest.mark.parametrize("case", CASES)
def test_two_processes_train_as_one(case: str, alone, tmp_path: Path) -> None:
    job, text = CASES[case]
    folder, options = alone(job, text)
    train_together(job, tmp_path, *options)
    assert_same_training(folder, tmp_path, error=1e-5)
    for name, value in weights(folder).items():
        assert (value - weights(tmp_path)[name]).norm() <= 1e-3 * value.norm() + 1e-4, name
    one, two = (json.loads((path / "all_results.json").read_text()) for path in (folder, tmp_path))
    assert two["eval_loss"] == pytest.approx(one["eval_loss"], rel=1e-5), "rows that a process gets twice count once"
    one, two = (record(path)["details"]["consumed"] for path in (folder, tmp_path))
    assert two == one


def test_the_held_out_loss_of_numbers_is_that_of_one_process(tmp_path: Path) -> None:
    rows = [{"text": text, "score": number % 7} for number, text in enumerate(script_runs.SENTENCES[:23])]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ["--train_file", str(tmp_path / "rows.jsonl"), "--score_column", "score", "--validation_fraction", "0.2"]
    script_runs.train("classification", tmp_path / "one", *script_runs.ALONE, *options)
    train_together("classification", tmp_path / "two", *options)
    one, two = (script_runs.logged(tmp_path / name, "eval_loss") for name in ("one", "two"))
    assert two == pytest.approx(one, rel=1e-5)


ACCUMULATED = "--per_device_train_batch_size 2 --gradient_accumulation_steps 4"
SMOOTHED = "--label_smoothing_factor 0.1 --train_sampling_strategy random"
# Options of both runs, and of the one whose batches are divided
DIVIDED_BATCHES = {
    **{case: (*CASES[case], "--gradient_accumulation_steps 3") for case in [*CASES][:3]},
    "classification by tokens": ("classification", "--tokens_per_batch 400", "--gradient_accumulation_steps 3"),
    "translation, smoothed": ("translation", f"{SMOOTHED} --predict_with_generate False", ACCUMULATED),
    "causal, smoothed": ("causal", SMOOTHED, ACCUMULATED),
    "a second loss of pairs": ("mlm+nsp", f"--max_train_samples 40 --block_size 24 {SMOOTHED}", ACCUMULATED),
}


@pytest.mark.parametrize("case", DIVIDED_BATCHES)
def test_accumulated_batches_are_the_large_batch(case: str, alone, tmp_path: Path) -> None:
    job, options, divided = DIVIDED_BATCHES[case]
    folder, _ = alone(job, options)
    train(job, tmp_path, *ALONE, *options.split(), *divided.split())
    if "second loss" in case:
        assert losses(tmp_path) == pytest.approx(losses(folder), rel=1e-5)
    else:
        assert_same_training(folder, tmp_path)


ELASTIC = {
    "pairs": ("translation", "--predict_with_generate False"),
    "rows by length, streamed": ("causal", "--streaming"),
    "uneven": ("classification", "--max_train_samples 19"),
    "by tokens": ("span", "--tokens_per_batch 400"),
}


@pytest.mark.parametrize("more", [False, True])
@pytest.mark.parametrize("case", ELASTIC)
def test_a_run_resumes_with_other_processes(case: str, more: bool, alone, tmp_path: Path, capfd) -> None:
    """Killed on two and resumed on one, or killed on one and resumed on two: the batches stay, each row once."""
    job, text = ELASTIC[case]
    whole, options = alone(job, text)
    if more:
        script_runs.kill_in_step(job, 4, arguments(job, tmp_path, *ALONE, *options))
        batch = "--per_device_train_batch_size", "8"
        train_together(job, tmp_path, *batch, *options, setups=[script_runs.read_by_first])
    else:
        train_together(job, tmp_path, *options, setups=[script_runs.die_after_four], exitcode=-signal.SIGKILL)
        train(job, tmp_path, *HALVED, *options)
    assert_same_training(whole, tmp_path, error=1e-5)
    assert record(tmp_path)["details"]["consumed"] == record(whole)["details"]["consumed"]
    if not more:  # other processes print elsewhere
        said = "8 rows per step, as on 2 processes: 1 x 4 rows x 2 batches."
        assert (said in capfd.readouterr().out) == ("tokens" not in text)


@pytest.mark.parametrize("options", [[], ["--gradient_checkpointing"]])
def test_layer_drop_of_two_processes(options: list[str], tmp_path: Path) -> None:
    """Each leaves out layers of its own: gradients that one lacks the other one has. They wait as long as asked."""
    options = [*options, "--set", "layer_drop=0.5", "num_hidden_layers=3", "--ddp_timeout", "77"]
    train_together("causal", tmp_path, *options, setups=[script_runs.note_dropped_layers])
    first, second = (torch.load(tmp_path / f"rank_{rank}.pt") for rank in range(2))
    assert len(first["passed"]) == len(second["passed"]) == 6
    assert (first["passed"] != second["passed"], first["wait"]) == (True, 77)
    for name, value in first["weights"].items():
        assert torch.equal(value, second["weights"][name]), name
    assert record(tmp_path)["finished"]


def test_all_processes_stop_at_the_step_that_one_cannot_take(tmp_path: Path) -> None:
    options = ["--eval_steps", "1", "--max_steps", "4", "--save_total_limit", "9"]
    train_together("causal", tmp_path, *options, setups=[script_runs.nan_in_second], exitcode=1)
    assert all(value.isfinite().all() for value in weights(tmp_path / "checkpoint-2").values())
    assert not (tmp_path / "checkpoint-3").exists()


@pytest.mark.parametrize("setup", [script_runs.other_seed, script_runs.other_rows])
def test_processes_that_were_not_started_alike_stop_before_training(setup, tmp_path: Path) -> None:
    train_together("classification", tmp_path / "run", setups=[setup], exitcode=1)
    assert not list((tmp_path / "run").glob("checkpoint-*"))
