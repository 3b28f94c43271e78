"""Options on data, through the training programs, what the record says of them, and defaults that follow the data."""

import json
import math
from pathlib import Path

import pytest
import sacrebleu
from refusals import refused
from script_runs import ALONE, answers, record, state, stream_options, train
from transformers import AutoConfig, pipeline

from vanillaformer.training.run import parse_arguments
from vanillaformer.training.run_folder.run import BY_DATA
from vanillaformer.training.tasks.language_model import LanguageModel


def test_record_of_the_data(tmp_path: Path, capsys) -> None:
    parts = ["train"] * 81 + ["test"] * 9
    rows = [{"text": f"text {n % 40}", "label": "ab"[n % 2], "split": part} for n, part in enumerate(parts)]
    rows[3]["text"], rows[4]["label"] = None, None
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + "{\n")
    options = ["--train_file", str(tmp_path / "a.jsonl"), "--max_length", "5", "--max_steps", "2"]
    refused("a.jsonl, row 91: line 91 is not JSON", train, "classification", tmp_path / "run", *options)
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


def test_streamed_run(tmp_path: Path, capsys) -> None:
    admin = "--set", "norm_placement=admin", "num_hidden_layers=2"
    run = train("masked", tmp_path / "run", *stream_options("masked", tmp_path), *admin)
    out = capsys.readouterr().out
    assert "Admin: factors of 4 residual connections" in out  # measured on the first rows
    assert "the first 6 rows are held out for validation" in out
    assert "Streaming: the statistics of the training data are those of its first rows." in out
    assert run.details["data"]["train"]["sampled rows"] > 0
    assert run.details["rows"].keys() == {"validation"}


TIME = ["--max_steps", "-1", "--max_time", "4s", "--eval_steps", "0.5"]


@pytest.mark.parametrize(("options", "expected"), [
    ([], True), (["--max_time", "5m"], True), (["--set", "dropout=0"], True), (["--preset", "gpt-tiny"], False),
    (["--max_steps", "5"], False), (["--num_train_epochs", "1"], False), (["--objective", "masked"], False),
])  # fmt: skip
def test_a_model_or_a_length_that_was_given_keeps_the_usual_defaults(options: list[str], expected: bool) -> None:
    assert LanguageModel(parse_arguments("train-language-model", options)).uses_auto_defaults is expected


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
    refused(r"weight_decay: 0\.1 there, 0\.2 now", train, job, tmp_path, *TIME, "--weight_decay", "0.2")


def test_a_run_whose_passes_were_chosen_is_made_longer_and_an_interrupted_one_keeps_them(tmp_path, capfd) -> None:
    options = *TIME, "--max_train_samples", "16"
    train("classification", tmp_path, *options)
    more = "--max_epochs", str(2 * math.ceil(state(tmp_path)["epoch"]) + 20)
    train("classification", tmp_path, *options, *more)
    assert "is finished already" not in capfd.readouterr().out
    found = record(tmp_path)
    assert found["settings"]["training"]["max_epochs"] == float(more[1])
    assert found["finished"]
    found["finished"] = False
    next(entry for entry in found["details"]["defaults"] if entry[0] == "weight_decay")[1] = 0.07
    (tmp_path / "run.json").write_text(json.dumps(found))
    train("classification", tmp_path, *options, *more)
    assert "  --weight_decay 0.07: " in capfd.readouterr().out


def test_a_baseline_knows_only_the_labels_of_the_texts_that_are_left(tmp_path: Path) -> None:
    short = [{"text": f"b {number}", "label": "b"} for number in range(20)]
    rows = [*short, *({"text": "a long text " * 5 + str(number), "label": "a"} for number in range(40))]
    for name, part in (("train", rows), ("validation", [*short[:10], {"text": "a", "label": "a"}])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    files = (f"--{name}_file={tmp_path / name}.jsonl" for name in ("train", "validation"))
    train("classification", tmp_path / "run", *ALONE, *files, "--max_length", "8", "--long_texts", "skip")
    details = record(tmp_path / "run")["details"]
    assert details["data"]["train"]["texts left out as too long"] == 40
    assert details["baselines"]["majority class"]["eval_accuracy"] == pytest.approx(10 / 11)


WORDS = {"de": ["eins", "zwei", "drei", "vier", "fünf"], "fr": ["un", "deux", "trois", "quatre", "cinq"]}
ENGLISH = ["one", "two", "three", "four", "five"]


def options_of(folder: Path, *more: str) -> list[str]:
    """Return options of 60 rows of numbers into German, and 12 into French."""
    lines = []
    for number in range(72):
        language, digits = "fr" if number % 6 == 0 else "de", (number // 25, number // 5 % 5, number % 5)
        source, target = (" ".join(words[digit] for digit in digits) for words in (ENGLISH, WORDS[language]))
        lines.append(json.dumps({"source": source, "target": target, "lang": language, "task": "count"}))
    (folder / "rows.jsonl").write_text("\n".join(lines))
    return ["--train_file", str(folder / "rows.jsonl"), "--validation_file", str(folder / "rows.jsonl"), *more]


def test_languages_and_tasks_have_scores_of_their_own(tmp_path, capsys):
    marks = ["--target_lang_column", "lang", "--task_column", "task", "--task_temperature", "5"]
    options = [*ALONE, *options_of(tmp_path, *marks), "--metrics", "rougeL"]
    metrics, details = train("translation", tmp_path / "run", *options).metrics, record(tmp_path / "run")["details"]
    assert details["groups"] == ["count_de", "count_fr"]
    assert details["data"]["train"]["rows"] == 60 + round(60 * (12 / 60) ** (1 / 5))
    for score in ("bleu", "chrf", "exact_match", "rougeL"):
        assert {f"eval_{score}_count_de", f"eval_{score}_count_fr"} <= metrics.keys()
    together = metrics["eval_exact_match_count_de"] * 60 + metrics["eval_exact_match_count_fr"] * 12
    assert together / 72 == pytest.approx(metrics["eval_exact_match"])
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    copied = sacrebleu.corpus_chrf([row["source"] for row in rows], [[row["target"] for row in rows]]).score
    assert details["baselines"]["copied source"]["eval_chrf"] == pytest.approx(copied), "without task and language"
    assert "Validation, count_fr: " in capsys.readouterr().out
    assert "| BLEU, count_fr |" in (tmp_path / "run" / "README.md").read_text()
    tokens = json.loads((tmp_path / "run" / "tokenizer.json").read_text())["added_tokens"]
    assert {"<2de>", "<2fr>"} <= {token["content"] for token in tokens}


def test_a_prefix_is_read_in_training_and_use(tmp_path, capsys):
    run = train("translation", tmp_path / "run", *ALONE, *options_of(tmp_path, "--source_prefix", "count: "))
    assert AutoConfig.from_pretrained(run.folder).prefix == "count: "
    predicted = [json.loads(line) for line in (run.folder / "predictions_validation.jsonl").read_text().splitlines()]
    sources = [row["source"].removeprefix("count: ") for row in predicted]
    assert all(row["source"].startswith("count: ") for row in predicted)
    options = ["--num_beams", "1"]
    printed = answers(capsys, "--model", run.folder, "--text", *sources, *options)
    assert printed == [row["prediction"] for row in predicted]
    found = pipeline("translation", str(run.folder), device="cpu")(sources, num_beams=1, max_new_tokens=24)
    assert [row["translation_text"] for row in found] == [row["prediction"] for row in predicted]
    for name, more, kept in (("again", [], "count: "), ("without", ["--source_prefix", ""], None)):
        options = [*ALONE, *options_of(tmp_path, *more), "--model_name_or_path", str(run.folder), "--max_steps", "1"]
        again = train("translation", tmp_path / name, *options)
        assert getattr(AutoConfig.from_pretrained(again.folder), "prefix", None) == kept, "a model keeps its prefix"


@pytest.mark.parametrize(("options", "message"), [
    ("--task_temperature 2", "--task_temperature 2 needs --task_column or --target_lang_column"),
    ("--task_temperature 0.5 --task_column task", "--task_temperature 0.5: it must be at least 1"),
    ("--task_column kind", "has no column 'kind'"),
    ("--task_column task --streaming", "--task_column task needs all data at once: not with --streaming"),
])  # fmt: skip
def test_refusals(options, message, tmp_path):
    refused(message, train, "translation", tmp_path / "run", *options_of(tmp_path), *options.split())


def test_a_language_of_held_out_rows_is_one_of_training(tmp_path):
    options = options_of(tmp_path, "--target_lang_column", "lang")
    text = (tmp_path / "rows.jsonl").read_text().replace('"lang": "fr"', '"lang": "it"')
    (tmp_path / "held_out.jsonl").write_text(text)
    options[options.index("--validation_file") + 1] = str(tmp_path / "held_out.jsonl")
    message = "validation data: the task or language 'it' does not occur in the training"
    refused(message, train, "translation", tmp_path / "run", *options)
