"""Options on data, through the training programs: packing, splits, bad rows, and what the record says of them."""

import json
from pathlib import Path
from typing import Any

import pytest
from script_runs import SENTENCES, assert_equal_weights, record, stream_options, text_file, train

from vanillaformer.data import caching

PACKED = "--max_train_samples", "80", "--packing", "--block_size", "24"


@pytest.mark.parametrize("job", ["causal", "masked"])
def test_packed_run(job: str, tmp_path: Path, capsys) -> None:
    run = train(job, tmp_path / "run", *text_file(tmp_path), *PACKED)
    assert run.metrics["eval_loss"] > 0
    facts = run.details["data"]
    assert facts["train"]["longest"] <= 24
    assert facts["train"]["padding"] < 0.15  # 80 rows of 4 to 14 tokens padded to 24 would be over half
    assert facts["validation"]["rows"] < 10 <= facts["train"]["rows"] < 80
    assert "80 texts packed into" in capsys.readouterr().out


def test_record_of_the_data(tmp_path: Path, capsys) -> None:
    rows = [
        {"text": f"text {n % 40}", "label": "ab"[n % 2], "split": "test" if n > 80 else "train"} for n in range(90)
    ]
    rows[3]["text"], rows[4]["label"] = None, None
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + "{\n")
    options = ["--train_file", str(tmp_path / "a.jsonl"), "--max_length", "5", "--max_steps", "2"]
    with pytest.raises(ValueError, match=r"a.jsonl, row 91: line 91 is not JSON"):
        train("classification", tmp_path / "run", *options)
    options += ["--split_column", "split", "--bad_rows", "skip", "--drop_leaked_rows"]
    run = train("classification", tmp_path / "run", *options)
    facts = record(tmp_path / "run")["details"]["data"]
    assert facts == run.details["data"]
    assert not [name for part in facts.values() for name in part if name.startswith("also in")]
    assert facts["train"]["leaked rows left out"] > 0
    assert "rows are in the training data too" not in (tmp_path / "run" / "README.md").read_text()
    assert facts["train"]["rows"] == run.details["rows"]["train"]
    assert facts["train"]["vocabulary used"] <= facts["train"]["vocabulary"]
    assert 0 <= facts["train"]["padding"] < 1
    out = capsys.readouterr().out
    assert "Vocabulary: " in out
    assert "test data: the text of 9 of 9 rows also occurs in the training data." in out
    assert "also occurs in the validation data" not in out  # for which none of them is held out


def test_a_second_run_finds_the_tokens_of_the_first(tmp_path: Path, monkeypatch) -> None:
    batches: list[Any] = []
    apply = caching._counted

    def counted(function, advance, batch):
        batches.append(batch)
        return apply(function, advance, batch)

    monkeypatch.setattr(caching, "_counted", counted)
    options = [*text_file(tmp_path), *["--max_train_samples", "80", "--max_steps", "1", "--block_size", "16"]]
    options += ["--eval_strategy", "no"]
    train("causal", tmp_path / "first", *options)
    assert batches
    batches.clear()
    train("causal", tmp_path / "second", *options)
    assert not batches


# ------------------------------------------------------------------------------------------------------- streams
def test_streamed_run(tmp_path: Path, capsys) -> None:
    run = train("masked", tmp_path / "run", *stream_options("masked", tmp_path))
    out = capsys.readouterr().out
    assert "the first 6 rows are held out for validation" in out
    assert "Streaming: what is said of the training data is true of its first rows." in out
    assert run.details["data"]["train"]["sampled rows"] > 0
    assert run.details["rows"].keys() == {"validation"}


def test_record_of_what_a_stream_shares_with_the_test(tmp_path: Path, capsys) -> None:
    options = stream_options("classification", tmp_path)
    late = [{"text": SENTENCES[n].upper(), "label": "ab"[n % 2]} for n in (20, 21, 34)]
    (tmp_path / "test.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in [*late, {"text": "-", "label": "a"}])
    )
    options += ["--test_file", str(tmp_path / "test.jsonl"), "--tokenizer_samples", "9"]
    run = train("classification", tmp_path / "run", *options)
    facts = record(tmp_path / "run")["details"]["data"]
    assert facts == run.details["data"]
    assert facts["test"]["also in train"] == 3
    assert "test data: the text of 3 of 4 rows also occurs in the training data" in capsys.readouterr().out
    assert "- 3 of the 4 test rows are in the training data too." in (tmp_path / "run" / "README.md").read_text()


def test_streamed_without_shuffling_equals_loaded(tmp_path: Path) -> None:
    options = [*text_file(tmp_path), "--validation_file", str(tmp_path / "text.txt")]
    options += ["--sample_by", "line", "--block_size", "16", "--train_sampling_strategy", "sequential"]
    options += ["--max_train_samples", "90", "--max_validation_samples", "90", "--max_steps", "4"]
    train("causal", tmp_path / "loaded", *options)
    train("causal", tmp_path / "streamed", *options, "--streaming", "--streaming_buffer", "0")
    assert_equal_weights(tmp_path / "loaded" / "checkpoint-4", tmp_path / "streamed" / "checkpoint-4")


def test_admin_measures_the_first_rows_of_a_stream(tmp_path: Path, capsys) -> None:
    options = [*stream_options("causal", tmp_path), "--set", "norm_placement=admin", "num_hidden_layers=2"]
    train("causal", tmp_path / "run", *options, "--max_steps", "1")
    assert "Admin: factors of 4 residual connections" in capsys.readouterr().out
