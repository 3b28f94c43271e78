"""Options on data, through the training programs: packing, splits, bad rows, and what the record says of them."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import Dataset, Features, Image, Value
from PIL import Image as Pillow
from script_runs import arguments, assert_equal_weights, kill_in_step, losses, processes, train, train_as_rank
from test_processes import ALONE, HALVED, assert_same_training, free_port

from vanillaformer.data import fingerprints as caching

SENTENCES = [" ".join(["word", "other", "third"][: n % 3 + 1]) + f" {n}" for n in range(90)]


def text_file(folder: Path) -> list[str]:
    (folder / "text.txt").write_text("\n".join(SENTENCES))
    return ["--train_file", str(folder / "text.txt"), "--max_train_samples", "80"]


@pytest.mark.parametrize("job", ["causal", "masked"])
def test_packed_run(job: str, tmp_path: Path, capsys) -> None:
    run = train(job, tmp_path / "run", *text_file(tmp_path), "--packing", "--block_size", "24")
    assert run.metrics["eval_loss"] > 0
    facts = run.details["data"]
    assert facts["train"]["longest"] <= 24
    assert facts["train"]["padding"] < 0.15  # 80 rows of 4 to 14 tokens padded to 24 would be over half
    assert facts["validation"]["rows"] < 10 <= facts["train"]["rows"] < 80
    assert "80 texts packed into" in capsys.readouterr().out


@pytest.mark.parametrize("job", ["causal", "masked"])
def test_packed_run_that_is_killed(job: str, tmp_path: Path) -> None:
    options = [*text_file(tmp_path), "--packing", "--block_size", "24", "--eval_steps", "1"]
    train(job, tmp_path / "whole", *options)
    kill_in_step(job, 5, arguments(job, tmp_path / "killed", *options))
    train(job, tmp_path / "killed", *options)
    assert_equal_weights(tmp_path / "whole" / "checkpoint-6", tmp_path / "killed" / "checkpoint-6")


@pytest.mark.parametrize(
    ("job", "options", "message"),
    [
        ("mlm+nsp", ["--packing"], "--packing is for --objective causal and masked"),
        ("causal", ["--packing", "--block_stride", "8"], "--block_stride .* not for --packing"),
        ("mlm+nsp", ["--block_stride", "8"], "--block_stride .* not for --objective mlm"),
        ("causal", ["--block_stride", "33"], "block_stride=33: from 1 to the 32 tokens"),
        ("translation", ["--test_fraction", "0.1"], "there is test data already"),
        (
            "causal",
            ["--packing", "--long_texts", "error"],
            r"train data, row \d+ .*: the text has more than 32 tokens",
        ),
        ("classification", ["--split_column", "split"], "--split_column split needs --train_file"),
    ],
)
def test_options_that_do_not_fit(job: str, options: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        train(job, tmp_path, *options)


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
    facts = json.loads((tmp_path / "run" / "run.json").read_text())["details"]["data"]
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
    options = [*text_file(tmp_path), "--max_steps", "1", "--block_size", "16", "--eval_strategy", "no"]
    train("causal", tmp_path / "first", *options)
    assert batches
    batches.clear()
    train("causal", tmp_path / "second", *options)
    assert not batches


# ------------------------------------------------------------------------------------------------------- streams
def picture(number: int) -> bytes:
    """An image in a file: dark or bright, and no two the same."""
    pixels = np.random.default_rng(number).integers(0, 100, (8, 8, 3)) + 150 * (number % 2)
    stream = io.BytesIO()
    Pillow.fromarray(pixels.astype(np.uint8)).save(stream, "PNG")
    return stream.getvalue()


def stream_options(job: str, folder: Path) -> list[str]:
    """A stream that ends and begins anew within six steps of eight rows."""
    rows: list[dict[str, Any]] = [
        {"source": text, "target": text[::-1], "text": text, "label": "ab"[n % 2]} for n, text in enumerate(SENTENCES)
    ]
    if job == "image_classification":
        path, features = folder / "rows.parquet", Features({"image": Image(), "label": Value("string")})
        pictures = [{"image": {"bytes": picture(n), "path": None}, "label": "ab"[n % 2]} for n in range(36)]
        Dataset.from_list(pictures, features=features).to_parquet(path)
    else:
        path = folder / "rows.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows[:36]))
    options = ["--train_file", str(path), "--streaming", "--streaming_buffer", "16"]
    options += ["--max_validation_samples", "6", "--max_train_samples", "30", "--eval_steps", "1"]
    return [*options, "--block_size", "24"] if job in ("causal", "masked") else options


STREAMED = ("translation", "causal", "masked", "classification", "image_classification")


@pytest.mark.parametrize("job", STREAMED)
def test_streamed_run_that_is_killed(job: str, tmp_path: Path, capsys) -> None:
    options = stream_options(job, tmp_path)
    run = train(job, tmp_path / "whole", *options)
    out = capsys.readouterr().out
    assert "the first 6 rows are held out for validation" in out
    assert "Streaming: what is said of the training data is true of its first rows." in out
    assert run.details["data"]["train"]["sampled rows"] > 0
    assert run.details["rows"].keys() == {"validation"}
    kill_in_step(job, 5, arguments(job, tmp_path / "killed", *options))
    train(job, tmp_path / "killed", *options)
    assert_equal_weights(tmp_path / "whole" / "checkpoint-6", tmp_path / "killed" / "checkpoint-6")
    assert losses(tmp_path / "killed") == losses(tmp_path / "whole")


def test_record_of_what_a_stream_shares_with_the_test(tmp_path: Path, capsys) -> None:
    options = stream_options("classification", tmp_path)
    late = [{"text": SENTENCES[n].upper(), "label": "ab"[n % 2]} for n in (20, 21, 34)]
    (tmp_path / "test.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in [*late, {"text": "-", "label": "a"}])
    )
    options += ["--test_file", str(tmp_path / "test.jsonl"), "--tokenizer_samples", "9"]
    run = train("classification", tmp_path / "run", *options)
    facts = json.loads((tmp_path / "run" / "run.json").read_text())["details"]["data"]
    assert facts == run.details["data"]
    assert facts["test"]["also in train"] == 3
    assert "test data: the text of 3 of 4 rows also occurs in the training data" in capsys.readouterr().out
    assert "- 3 of the 4 test rows are in the training data too." in (tmp_path / "run" / "README.md").read_text()


@pytest.mark.parametrize("job", ["causal", "translation"])
def test_two_processes_that_stream(job: str, tmp_path: Path) -> None:
    options = stream_options(job, tmp_path)
    train(job, tmp_path / "alone", *options, *ALONE)
    port, argv = free_port(), arguments(job, tmp_path / "two", *options, *HALVED)
    ranks = [processes().Process(target=train_as_rank, args=(job, rank, 2, port, argv)) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(timeout=200)
    assert [process.exitcode for process in ranks] == [0, 0]
    assert_same_training(tmp_path / "alone", tmp_path / "two")


def test_streamed_without_shuffling_equals_loaded(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("\n".join(SENTENCES))
    options = ["--train_file", str(tmp_path / "text.txt"), "--validation_file", str(tmp_path / "text.txt")]
    options += [
        "--sample_by",
        "line",
        "--block_size",
        "16",
        "--train_sampling_strategy",
        "sequential",
        "--max_steps",
        "4",
    ]
    options += ["--max_train_samples", "90", "--max_validation_samples", "90"]
    train("causal", tmp_path / "loaded", *options)
    train("causal", tmp_path / "streamed", *options, "--streaming", "--streaming_buffer", "0")
    assert_equal_weights(tmp_path / "loaded" / "checkpoint-4", tmp_path / "streamed" / "checkpoint-4")


def test_admin_measures_the_first_rows_of_a_stream(tmp_path: Path, capsys) -> None:
    options = [*stream_options("causal", tmp_path), "--set", "norm_placement=admin", "num_hidden_layers=2"]
    train("causal", tmp_path / "run", *options, "--max_steps", "1")
    assert "Admin: factors of 4 residual connections" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("job", "options", "message"),
    [
        ("causal", ["--max_steps", "-1", "--num_train_epochs", "1"], "--streaming needs --max_steps or a budget"),
        ("mlm+nsp", [], "--streaming is for --objective causal and masked"),
        ("causal", ["--packing"], "--packing True needs all data at once"),
    ],
)
def test_what_cannot_be_streamed(job: str, options: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        train(job, tmp_path / "run", *stream_options(job, tmp_path), *options)
