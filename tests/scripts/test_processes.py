"""Several processes do together what one does alone, and only the first of them speaks and writes."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from script_runs import arguments, losses, processes, train, train_as_rank, weights

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


def test_torchrun(tmp_path: Path) -> None:
    train("translation", tmp_path / "alone", *ALONE)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    program = ["-m", "vanillaformer.scripts.train_translation", *arguments("translation", tmp_path / "two", *HALVED)]
    done = subprocess.run([*launcher, *program], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert_same_training(tmp_path / "alone", tmp_path / "two")
    for line in ("Run ", "Tokenizer: ", "Data: ", "step 6/6", "Test: ", "The model is in "):
        assert sum(printed.startswith(line) for printed in done.stdout.splitlines()) == (2 if "step" in line else 1)
    record = json.loads((tmp_path / "two" / "run.json").read_text())
    assert record["finished"]
    assert record["metrics"]["test_loss"] == pytest.approx(
        json.loads((tmp_path / "alone" / "run.json").read_text())["metrics"]["test_loss"], rel=1e-2
    )


@pytest.mark.parametrize("job", ["causal", "masked", "classification"])
def test_two_processes(job: str, tmp_path: Path) -> None:
    train(job, tmp_path / "alone", *ALONE)
    port, argv = free_port(), arguments(job, tmp_path / "two", *HALVED)
    ranks = [processes().Process(target=train_as_rank, args=(job, rank, 2, port, argv)) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(timeout=200)
    assert [process.exitcode for process in ranks] == [0, 0]
    assert_same_training(tmp_path / "alone", tmp_path / "two")
