"""What runs leave of their evaluation: predictions beside references, scores of classes, logs for TensorBoard."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sacrebleu
import transformers
from datasets import Dataset
from script_runs import json_lines as records
from script_runs import losses, state, train
from sklearn.metrics import classification_report, confusion_matrix
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer, Trainer, set_seed

from vanillaformer.training.finishing import print_samples
from vanillaformer.training.report.facts import read_samples


def results(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "all_results.json").read_text())


def test_translations_are_those_that_were_scored(trained) -> None:
    folder = trained("translation")
    rows, scores = records(folder / "predictions_test.jsonl"), results(folder)
    texts, wanted = [row["prediction"] for row in rows], [[row["reference"] for row in rows]]
    assert scores["test_bleu"] == pytest.approx(sacrebleu.corpus_bleu(texts, wanted).score)
    assert scores["test_ter"] == pytest.approx(sacrebleu.corpus_ter(texts, wanted).score)
    assert f"version:{sacrebleu.__version__}" in scores["signatures"]["ter"]
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    for row in rows:
        (output,) = model.generate(**tokenizer([row["source"]], return_tensors="pt")).tolist()
        assert tokenizer.decode(output, skip_special_tokens=True) == row["prediction"]


@pytest.mark.parametrize("streaming", [[], ["--streaming", "--max_validation_samples", "9"]])
def test_references_are_the_targets_of_the_data(streaming: list[str], tmp_path: Path, capfd) -> None:
    """In their order, and not what is left of them: words of one case, without unknown ones, cut to three tokens."""
    rows = {"source": [f"w{number} go" for number in range(40)], "target": ["Oui !  non oui", "NON"] * 20}
    held_out = {"source": ["w1 go", "w3 go on and on", "w2  Go"], "target": ["Oui !  jamais oui", "NON", "  non "]}
    for name, part in (("train", rows), ("test", held_out)):
        Dataset.from_dict(part).to_json(tmp_path / f"{name}.jsonl")
    options = [*("--train_file", str(tmp_path / "train.jsonl"), "--test_file", str(tmp_path / "test.jsonl"))]
    options += ["--tokenizer_algorithm", "word", "--lowercase", "--max_target_length", "4", "--max_steps", "2"]
    options += ["--bleu_tokenize", "none", "--bleu_lowercase", "--per_device_eval_batch_size", "2"]
    run = train("translation", tmp_path / "run", *options, "--num_beams", "1", *streaming)
    assert {"case:lc", "tok:none"} <= {*run.details["signatures"]["bleu"].split("|")}
    found = records(tmp_path / "run" / "predictions_test.jsonl")
    assert [row["source"] for row in found] == held_out["source"]
    assert [row["reference"] for row in found] == held_out["target"]
    texts = [row["prediction"] for row in found]
    assert run.metrics["test_ter"] == pytest.approx(sacrebleu.corpus_ter(texts, [held_out["target"]]).score)
    assert run.metrics["test_exact_match"] == 0
    assert run.details["data"]["test"]["references that cannot be produced exactly"] == 3
    note = "33.3% of the targets cut; 100.0% of the references cannot be produced exactly"
    assert f"Test data: {note}" in capfd.readouterr().out
    card = (tmp_path / "run" / "README.md").read_text(encoding="utf-8")
    assert f"- test data: {note}" in card
    assert "A sentence to translate." in card
    assert not re.search(r"w\d+ go", card)  # a row of the data


def test_classes_and_masked_tokens_are_those_that_were_scored(trained) -> None:
    folder = trained("classification")
    rows, scores = records(folder / "predictions_test.jsonl"), results(folder)
    labels, chosen = ([row[name] for row in rows] for name in ("reference", "prediction"))
    assert scores["test_accuracy"] == pytest.approx(np.mean([one == other for one, other in zip(labels, chosen)]))
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    names = [model.config.id2label[number] for number in range(model.config.num_labels)]
    assert scores["confusion_matrix"] == confusion_matrix(labels, chosen, labels=names).tolist()
    told = classification_report(labels, chosen, labels=names, output_dict=True, zero_division=0)
    for name, found in scores["classes"].items():
        theirs = [told[name][key] for key in ("precision", "recall", "f1-score", "support")]
        assert [found[key] for key in ("precision", "recall", "f1", "rows")] == pytest.approx(theirs), name
    of_classes = [scores["classes"][name]["f1"] for name in set(labels) | set(chosen)]
    assert scores["test_f1"] == pytest.approx(np.mean(of_classes))
    inputs = AutoTokenizer.from_pretrained(folder)([rows[0]["text"]], return_tensors="pt")
    assert rows[0]["probability"] == pytest.approx(model(**inputs).logits.softmax(-1).max().item(), abs=1e-5)
    rows, scores = records(trained("masked") / "predictions_test.jsonl"), results(trained("masked"))
    right = [one == other for row in rows for one, other in zip(row["reference"], row["prediction"], strict=True)]
    assert scores["test_accuracy"] == pytest.approx(np.mean(right))
    assert all(len(row["positions"]) == len(row["reference"]) for row in rows)


def test_continuations(tmp_path: Path, capsys) -> None:
    """Of texts of the test's own: the embedded ones depend on the version of Python."""
    draw, options = np.random.default_rng(0), []
    for name in ("train", "validation", "test"):
        texts = [" ".join(f"word{number}" for number in draw.integers(0, 90, 600)) for _ in range(3)]
        Dataset.from_dict({"text": texts}).to_json(tmp_path / f"{name}.jsonl")
        options += [f"--{name}_file", str(tmp_path / f"{name}.jsonl")]
    folder = train("causal", tmp_path / "run", *options).folder
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    rows = records(folder / "samples.jsonl")
    assert len(rows) == 8
    ids = tokenizer(rows[0]["prompt"], return_tensors="pt")
    assert (model.generation_config.do_sample, model.generation_config.temperature) == (True, 0.8)
    set_seed(42)
    new = model.generate(**ids, max_new_tokens=16, max_length=None)[0, ids["input_ids"].shape[1] :]
    assert tokenizer.decode(new, skip_special_tokens=True) == rows[0]["prediction"]
    capsys.readouterr()
    print_samples(folder)
    printed, card = capsys.readouterr().out, (folder / "README.md").read_text(encoding="utf-8")
    for row in read_samples(folder):
        assert f"after {row['prompt'][-60:]!r}:\n" in printed
        for line in row["prediction"].split("\n"):
            assert f"  | {line}\n" in printed
            assert f"    {line}\n" in card or not line.strip()


def test_tensorboard(tmp_path: Path) -> None:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    folder = tmp_path / "run"
    run = train("classification", folder, "--report_to", "tensorboard")
    (logs,) = {path.parent for path in folder.rglob("events.out.tfevents.*")}
    log = reader.EventAccumulator(str(logs)).Reload()
    drawn = {event.step: event.value for event in log.Scalars("train/loss")}
    assert (list(drawn.values()), list(drawn)) == (pytest.approx(losses(folder), rel=1e-6), [1, 2, 3, 4, 5, 6])
    assert log.Scalars("eval/accuracy")[-1].value == pytest.approx(run.metrics["eval_accuracy"])


@pytest.mark.parametrize(("job", "options", "again"), [
    ("translation", "", 0), ("classification", "--ema_decay 0.9", 0),
    ("classification", "--load_best_model_at_end false", 0),
    ("classification", "--average_checkpoints 2", 1),  # weights that were not scored before
    ("classification", "--calibrate true --max_validation_samples 60", 1),
])  # fmt: skip
def test_the_validation_data_is_scored_once_with_the_same_weights(
    job, options, again, tmp_path: Path, monkeypatch
) -> None:
    loop, calls = Trainer.evaluation_loop, []

    def noted(trainer: Any, *details: Any, **keywords: Any) -> Any:
        if not trainer.is_in_train and trainer.evaluated is trainer.eval_dataset:
            calls.append(keywords)
        return loop(trainer, *details, **keywords)

    monkeypatch.setattr(Trainer, "evaluation_loop", noted)
    run = train(job, tmp_path, *options.split())
    assert len(calls) == again
    history = state(tmp_path)
    best = history["global_step" if "false" in options else "best_global_step"]
    scored = next(entry for entry in history["log_history"] if entry["step"] == best and "eval_loss" in entry)
    assert (run.metrics["eval_loss"] == scored["eval_loss"]) == (not again)
