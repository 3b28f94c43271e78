"""`--dry_run` prints what a run takes, and leaves nothing behind."""

import re
from pathlib import Path

import pytest
from script_runs import ALONE, PROGRAMS, arguments, record, train


@pytest.mark.parametrize("job", ["causal", "translation", "classification", "image_classification", "span"])
def test_a_plan_has_the_numbers_of_the_run(job: str, tmp_path: Path, capfd) -> None:
    train(job, tmp_path / "run", *ALONE)
    consumed = record(tmp_path / "run")["details"]["consumed"]
    model = re.search(r"Model: \w+, ([\d,]+) parameters", capfd.readouterr().out)
    PROGRAMS[job][0].train(arguments(job, tmp_path / "plan", *ALONE, "--dry_run"))
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    printed = capfd.readouterr().out
    assert model is not None
    assert f", {model[1]} parameters\n" in printed
    found = re.search(r"Steps: 8 rows(?:, ([\d,]+) tokens)? and (\S+) operations each, 6 steps", printed)
    assert found is not None, printed
    assert float(found[2]) == pytest.approx(consumed["flops"] / 6, rel=0.25)
    if found[1]:
        assert float(found[1].replace(",", "")) == pytest.approx(consumed["tokens"] / 6, rel=0.25)
    assert printed.count("GiB") == 1 + 4 * 4  # a checkpoint, and four layouts


def test_a_plan_of_more_processes_than_there_are(tmp_path: Path, capfd) -> None:
    PROGRAMS["causal"][0].train(
        arguments("causal", tmp_path / "plan", "--dry_run", "--parallel", "fsdp=32,replicate=2")
    )
    printed = capfd.readouterr().out
    assert "Steps: 512 rows" in printed
    assert re.search(r"fsdp=32 \(yours\)( +[\d.]+ GiB){4}\n", printed)
