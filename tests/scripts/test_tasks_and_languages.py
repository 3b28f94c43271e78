"""Translators of several tasks and languages, and of one prefix: trained, scored by task, and used as trained."""

import json
from pathlib import Path

import pytest
from script_runs import ALONE, answers, assert_same_training, kill_in_step, logged, record, train, train_together
from script_runs import arguments as command
from transformers import AutoConfig, pipeline

WORDS = {"de": ["eins", "zwei", "drei", "vier", "fünf"], "fr": ["un", "deux", "trois", "quatre", "cinq"]}
ENGLISH = ["one", "two", "three", "four", "five"]


def options_of(folder: Path, *more: str) -> list[str]:
    """Return options of 60 rows of numbers into German, and 12 into French."""
    rows = [(number, "fr" if number % 6 == 0 else "de") for number in range(72)]
    digits = [([number // 25, number // 5 % 5, number % 5], language) for number, language in rows]
    lines = [
        {"source": " ".join(ENGLISH[d] for d in row), "target": " ".join(WORDS[language][d] for d in row),
         "lang": language, "task": "count"}
        for row, language in digits
    ]  # fmt: skip
    (folder / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return ["--train_file", str(folder / "rows.jsonl"), "--validation_file", str(folder / "rows.jsonl"), *more]


def test_languages_and_tasks_have_scores_of_their_own(tmp_path, capsys):
    marks = ["--target_lang_column", "lang", "--task_column", "task", "--task_temperature", "5"]
    options = [*ALONE, *options_of(tmp_path, *marks), "--metrics", "rougeL"]
    run = train("translation", tmp_path / "run", *options)
    metrics, details = run.metrics, record(tmp_path / "run")["details"]
    assert details["groups"] == ["count_de", "count_fr"]
    assert details["data"]["train"]["rows"] == 60 + round(60 * (12 / 60) ** (1 / 5))
    for score in ("bleu", "chrf", "exact_match", "rougeL"):
        assert {f"eval_{score}_count_de", f"eval_{score}_count_fr"} <= metrics.keys()
    together = metrics["eval_exact_match_count_de"] * 60 + metrics["eval_exact_match_count_fr"] * 12
    assert together / 72 == pytest.approx(metrics["eval_exact_match"])
    assert "Validation, count_fr: " in capsys.readouterr().out
    assert "| BLEU, count_fr |" in (tmp_path / "run" / "README.md").read_text()
    tokens = json.loads((tmp_path / "run" / "tokenizer.json").read_text())["added_tokens"]
    assert {"<2de>", "<2fr>"} <= {token["content"] for token in tokens}
    kill_in_step("translation", 4, command("translation", tmp_path / "two", *options))
    train("translation", tmp_path / "two", *options)
    assert_same_training(tmp_path / "run", tmp_path / "two", error=0)
    train_together("translation", tmp_path / "three", *options)
    assert_same_training(tmp_path / "run", tmp_path / "three")
    assert logged(tmp_path / "three", "eval_loss") == pytest.approx(logged(tmp_path / "run", "eval_loss"), rel=1e-4)


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
    with pytest.raises(ValueError, match=message):
        train("translation", tmp_path / "run", *options_of(tmp_path), *options.split())


def test_a_language_of_held_out_rows_is_one_of_training(tmp_path):
    options = options_of(tmp_path, "--target_lang_column", "lang")
    text = (tmp_path / "rows.jsonl").read_text().replace('"lang": "fr"', '"lang": "it"')
    (tmp_path / "held_out.jsonl").write_text(text)
    options[options.index("--validation_file") + 1] = str(tmp_path / "held_out.jsonl")
    with pytest.raises(ValueError, match="validation data: the task or language 'it' does not occur in the training"):
        train("translation", tmp_path / "run", *options)
