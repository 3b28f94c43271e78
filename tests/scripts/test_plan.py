"""`--dry_run` prints what a run takes, and leaves nothing behind."""

import re
from pathlib import Path

import pytest
from script_runs import ALONE, PROGRAMS, arguments, record, train
from transformers import GPT2Config, GPT2LMHeadModel

from vanillaformer.training import run as runs


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


@pytest.mark.parametrize("length", [["--num_train_epochs", "2.5"], ["--max_tokens", "1e6", "--max_epochs", "2"]])
def test_a_plan_has_the_steps_of_whole_epochs(length: list[str], tmp_path: Path, capfd) -> None:
    options = arguments("classification", tmp_path, *ALONE, *length)
    del options[options.index("--max_steps") : options.index("--max_steps") + 2]
    assert "--max_train_samples" in options  # 60, of which the last batch of an epoch has 4
    PROGRAMS["classification"][0].train([*options, "--dry_run"])
    PROGRAMS["classification"][0].train(options)
    steps = record(tmp_path)["details"]["consumed"]["steps"]
    assert f" operations each, {steps} steps\n" in capfd.readouterr().out


def test_a_plan_of_more_processes_than_there_are(tmp_path: Path, capfd) -> None:
    PROGRAMS["causal"][0].train(
        arguments("causal", tmp_path / "plan", "--dry_run", "--parallel", "fsdp=32,replicate=2")
    )
    printed = capfd.readouterr().out
    assert "Steps: 512 rows" in printed
    assert re.search(r"fsdp=32 \(yours\)( +[\d.]+ GiB){4}\n", printed)


def test_a_model_whose_memory_is_not_counted_is_refused_before_the_data_is_read(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(runs, "load_data", None)
    recurrent = "--dry_run", "--preset", "gru-tiny", "--output_dir", str(tmp_path / "plan")
    with pytest.raises(
        ValueError, match="--dry_run: the memory of models of type 'vanilla_recurrent_encoder_decoder'"
    ):
        PROGRAMS["translation"][0].train(recurrent)
    GPT2LMHeadModel(GPT2Config(vocab_size=300, n_embd=16, n_layer=1, n_head=2)).save_pretrained(tmp_path / "gpt2")
    with pytest.raises(ValueError, match="--dry_run: the memory of models of type 'gpt2' is not counted"):
        PROGRAMS["causal"][0].train(
            ["--dry_run", "--model_name_or_path", str(tmp_path / "gpt2"), "--output_dir", str(tmp_path / "plan")]
        )
