"""Several processes do together what one does alone, and only the first of them speaks and writes."""

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sacrebleu
import torch
from script_runs import (
    arguments,
    losses,
    processes,
    train,
    train_as_rank,
    train_as_rank_that_drops_its_own,
    train_as_spoiled_rank,
    weights,
)

# Half the rows per process; without dropout, whose draws cannot agree.
ALONE = "--set", "dropout=0"
HALVED = *ALONE, "--per_device_train_batch_size", "4"


def assert_same_training(alone: Path, together: Path) -> None:
    assert losses(together) == pytest.approx(losses(alone), rel=1e-4)
    ours, theirs = weights(alone / "checkpoint-6"), weights(together / "checkpoint-6")
    for name, value in ours.items():
        assert (value - theirs[name]).norm() <= 1e-3 * value.norm() + 1e-4, name


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def train_together(job: str, folder: Path, *options: str, target: Any = train_as_rank, exitcode: int = 0) -> None:
    port, argv = free_port(), arguments(job, folder, *HALVED, *options)
    ranks = [processes().Process(target=target, args=(job, rank, 2, port, argv)) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(timeout=200)
    assert [process.exitcode for process in ranks] == [exitcode] * 2


def test_torchrun(tmp_path: Path) -> None:
    train("translation", tmp_path / "alone", *ALONE)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    options = arguments("translation", tmp_path / "two", *HALVED)
    options.remove("--use_cpu")  # which nobody has to know
    program = ["-m", "vanillaformer.scripts.train_translation", *options]
    done = subprocess.run([*launcher, *program], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert_same_training(tmp_path / "alone", tmp_path / "two")
    for line in ("Run ", "Tokenizer: ", "Data: ", "step 6/6", "Test: ", "The model is in "):
        assert sum(printed.startswith(line) for printed in done.stdout.splitlines()) == (2 if "step" in line else 1)
    record = json.loads((tmp_path / "two" / "run.json").read_text())
    assert record["finished"]
    assert record["metrics"]["test_loss"] == pytest.approx(
        json.loads((tmp_path / "alone" / "run.json").read_text())["metrics"]["test_loss"], rel=1e-4
    )
    # Every row is scored once, though a process gets some twice.
    alone, two = (
        [json.loads(line) for line in (tmp_path / name / "predictions_test.jsonl").read_text("utf-8").splitlines()]
        for name in ("alone", "two")
    )
    assert [row["source"] for row in two] == [row["source"] for row in alone]
    predictions, references = ([row[name] for row in two] for name in ("prediction", "reference"))
    assert record["metrics"]["test_chrf"] == pytest.approx(sacrebleu.corpus_chrf(predictions, [references]).score)


@pytest.mark.parametrize(
    ("job", "options"),
    [
        ("causal", []),
        ("masked", []),
        ("classification", []),
        ("image_classification", ["--mixup", "0", "--ensemble", "2"]),  # each process draws images to mix of its own
    ],
)
def test_two_processes(job: str, options: list[str], tmp_path: Path) -> None:
    train(job, tmp_path / "alone", *ALONE, *options)
    train_together(job, tmp_path / "two", *options)
    assert_same_training(tmp_path / "alone", tmp_path / "two")
    alone, two = (json.loads((tmp_path / name / "all_results.json").read_text()) for name in ("alone", "two"))
    assert two["eval_loss"] == pytest.approx(alone["eval_loss"], rel=1e-5), "rows that a process gets twice count once"


@pytest.mark.parametrize("technique", ["--ema_decay 0.5", "--average_checkpoints 2", "--freeze embed_tokens"])
def test_techniques_of_two_processes(technique: str, tmp_path: Path) -> None:
    train("causal", tmp_path / "alone", *ALONE, *technique.split())
    train_together("causal", tmp_path / "two", *technique.split())
    for part in ("", "checkpoint-6"):
        ours, theirs = weights(tmp_path / "alone" / part), weights(tmp_path / "two" / part)
        for name, value in ours.items():
            assert (value - theirs[name]).norm() <= 1e-3 * value.norm() + 1e-4, name


@pytest.mark.parametrize("options", [[], ["--gradient_checkpointing"]])
def test_layer_drop_of_two_processes(options: list[str], tmp_path: Path) -> None:
    """Each leaves out layers of its own: gradients that one lacks the other one has."""
    options = [*options, "--set", "layer_drop=0.5", "num_hidden_layers=3"]
    train_together("causal", tmp_path, *options, target=train_as_rank_that_drops_its_own)
    first, second = (torch.load(tmp_path / f"rank_{rank}.pt") for rank in range(2))
    assert len(first["passed"]) == len(second["passed"]) == 6
    assert first["passed"] != second["passed"]
    for name, value in first["weights"].items():
        assert torch.equal(value, second["weights"][name]), name
    assert json.loads((tmp_path / "run.json").read_text())["finished"]


def test_all_processes_skip_the_step_that_one_cannot_take(tmp_path: Path) -> None:
    options = ["--nan_loss", "skip", "--eval_steps", "1", "--max_steps", "4", "--save_total_limit", "9"]
    train_together("causal", tmp_path, *options, target=train_as_spoiled_rank)
    steps = [weights(tmp_path / f"checkpoint-{step}") for step in (2, 3, 4)]
    assert all((steps[1][name] == value).all() for name, value in steps[0].items())
    assert any((steps[2][name] != value).any() for name, value in steps[1].items())
