"""Whether and how defaults follow the data, in runs of the programs."""

import json
import math
from pathlib import Path

import pytest
from script_runs import record, state, train

from vanillaformer.training.run import parse_arguments
from vanillaformer.training.run_folder.run import BY_DATA
from vanillaformer.training.tasks.language_model import LanguageModel

TIME = ["--max_steps", "-1", "--max_time", "4s", "--eval_steps", "0.5"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], True),
        (["--max_time", "5m"], True),
        (["--set", "dropout=0"], True),
        (["--preset", "gpt-tiny"], False),
        (["--max_steps", "5"], False),
        (["--num_train_epochs", "1"], False),
        (["--objective", "masked"], False),
    ],
)
def test_a_model_or_a_length_that_was_given_keeps_the_usual_defaults(options: list[str], expected: bool) -> None:
    args = parse_arguments("train-language-model", options)
    assert LanguageModel(args).uses_auto_defaults is expected


@pytest.mark.parametrize("job", ["causal", "classification"])
def test_what_is_chosen_is_printed_recorded_and_kept(job: str, tmp_path: Path, capfd) -> None:
    train(job, tmp_path, *TIME)
    printed, found = capfd.readouterr().out, record(tmp_path)
    chosen = {option: (value, reason) for option, value, reason in found["details"]["defaults"]}
    assert f"  --weight_decay 0.1: {chosen['weight_decay'][1]}\n" in printed
    assert found["settings"]["training"]["weight_decay"] == BY_DATA
    assert found["settings"]["training"]["warmup_steps"] == 2  # given
    assert {"per_device_train_batch_size", "tokenizer_vocab_size"}.isdisjoint(chosen)  # given
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["hidden_size"], config["dropout"]) == (16, 0.1)  # given
    assert "0.1" in (tmp_path / "README.md").read_text()
    train(job, tmp_path, *TIME)
    assert "is finished already" in capfd.readouterr().out
    train(job, tmp_path, *TIME, "--weight_decay", "0.1")  # which is what was chosen
    assert "is finished already" in capfd.readouterr().out
    with pytest.raises(ValueError, match=r"weight_decay: 0\.1 there, 0\.2 now"):
        train(job, tmp_path, *TIME, "--weight_decay", "0.2")


def test_a_run_whose_passes_were_chosen_is_made_longer(tmp_path: Path, capfd) -> None:
    train("classification", tmp_path, *TIME, "--max_train_samples", "16")
    before = state(tmp_path)
    more = str(2 * math.ceil(before["epoch"]) + 20)
    train("classification", tmp_path, *TIME, "--max_train_samples", "16", "--max_epochs", more)
    assert "is finished already" not in capfd.readouterr().out
    assert record(tmp_path)["settings"]["training"]["max_epochs"] == float(more)
    assert record(tmp_path)["finished"]


def test_an_interrupted_run_keeps_its_defaults(tmp_path: Path, capfd, monkeypatch) -> None:
    train("classification", tmp_path, *TIME)
    found = record(tmp_path)
    found["finished"] = False
    next(entry for entry in found["details"]["defaults"] if entry[0] == "weight_decay")[1] = 0.07
    (tmp_path / "run.json").write_text(json.dumps(found))
    capfd.readouterr()
    train("classification", tmp_path, *TIME)
    assert "  --weight_decay 0.07: " in capfd.readouterr().out
