"""Pairs of texts, several labels and numbers: losses, scores, rows and whole runs of `train-classifier`."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import Dataset, DatasetDict
from scipy import stats
from sklearn import metrics as sklearn_metrics
from transformers import AutoModelForSequenceClassification, AutoTokenizer, EvalPrediction, pipeline

from vanillaformer.data.arguments import ClassifierDataArguments
from vanillaformer.data.loading import load_data
from vanillaformer.data.preprocessing.tokenizing import classification_rows
from vanillaformer.scripts import generate, train_classifier
from vanillaformer.tokenization import train as train_tokenizer
from vanillaformer.tokenization.passages import PAIR
from vanillaformer.training.report.baselines import BaselineData
from vanillaformer.training.tasks.problems import Numbers, Several

TINY = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 30, "intermediate_size": 32}
RUN = """--set hidden_size=16 num_hidden_layers=1 num_attention_heads=2 --tokenizer_vocab_size 300 --use_cpu
    --max_steps 8 --eval_steps 4 --max_length 32 --baseline true --learning_rate 0.01"""
WORDS = ("red", "green", "blue", "small", "large", "old", "new")


def test_scores_are_scipys_and_scikit_learns_and_baselines_by_hand() -> None:
    rng = np.random.default_rng(0)
    numbers = rng.normal(size=(2, 40)).astype(np.float32)
    scores = Numbers("x").metrics()(EvalPrediction(numbers[0][:, None], numbers[1]))
    assert scores == {
        "pearson": pytest.approx(stats.pearsonr(*numbers).statistic),
        "spearman": pytest.approx(stats.spearmanr(*numbers).statistic),
        "mse": pytest.approx(np.mean((numbers[0] - numbers[1]) ** 2), rel=1e-5),
    }
    assert Numbers("x").metrics()(EvalPrediction(np.ones((40, 1)), numbers[1]))["pearson"] == 0
    logits, wanted = rng.normal(size=(40, 5)), rng.integers(0, 2, (40, 5))
    found = Several().metrics()(EvalPrediction(logits, wanted.astype(np.float32)))
    micro, macro = (sklearn_metrics.f1_score(wanted, logits > 0, average=each) for each in ("micro", "macro"))
    assert found == {"micro_f1": micro, "macro_f1": macro, "accuracy": np.mean((wanted == (logits > 0)).all(axis=1))}
    train = Dataset.from_dict({"text": ["a", "b", "c"], "score": ["1", "2", "6"]})
    held_out = Dataset.from_dict({"label_ids": [3.0, 5.0]})
    assert Numbers("x").baselines[0].fit(BaselineData(train))(held_out) == {"pearson": 0, "spearman": 0, "mse": 2}
    several = Several()
    train = Dataset.from_dict({"text": ["a"] * 3, "labels": ['["x"]', '["x", "y"]', '["z"]']})
    test = Dataset.from_dict({"labels": ['["x"]', "[]"]})
    scores = several.baselines[0].fit(BaselineData(train))(test)
    assert scores == {"micro_f1": pytest.approx(2 / 3), "macro_f1": pytest.approx(2 / 9), "accuracy": 0.5}


def test_pairs_are_what_the_tokenizer_makes_of_them() -> None:
    tokenizer = train_tokenizer(["a b c d"], kind="encoder", vocab_size=300)
    pairs = [("a b c", "d"), ("a " * 40, "b"), ("c", "d " * 40), ("a " * 30, "b " * 30)]
    rows = Dataset.from_dict({"text": [PAIR.join(pair) for pair in pairs], "label_ids": [0.0] * 4})
    found = classification_rows(DatasetDict(train=rows, test=rows), tokenizer, max_length=20)
    expected = tokenizer(*map(list, zip(*pairs)), truncation="longest_first", max_length=20)
    for name in expected:
        assert found["train"][name][:] == expected[name]
    assert found.stats["train"] == {"texts cut": 3}
    assert max(expected["token_type_ids"][0]) == 1


ROW = {"text": "a", "pair": "b", "topics": ["x", "y"], "score": 0.5, "label": "l"}
REFUSED = {
    "no number": ({"score": "half"}, {"score_column": "score"}, "row 2: the score 'half' is not a number"),
    "not finite": ({"score": "nan"}, {"score_column": "score"}, "row 2: the score 'nan' is not a number"),
    "no list": ({"topics": "x"}, {"labels_column": "topics"}, "row 2: --labels_column must name lists of labels"),
    "no pair": ({"pair": " "}, {"text_pair_column": "pair"}, "row 2: the column 'pair' is empty"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_rows_that_cannot_be(case: str, tmp_path: Path) -> None:
    change, columns, message = REFUSED[case]
    (tmp_path / "a.jsonl").write_text(f"{json.dumps(ROW)}\n{json.dumps(ROW | change)}\n{json.dumps(ROW)}")
    options: dict[str, Any] = {name: [str(tmp_path / "a.jsonl")] for name in ("train_file", "validation_file")}
    names = {"score_column": "regression", "labels_column": "multi_label_classification"}
    task: Any = names.get(*columns, "classification")
    with pytest.raises(ValueError, match=message):
        load_data(ClassifierDataArguments(**options, **columns), task)


@pytest.mark.parametrize(("options", "message"), [
    ("--score_column s --labels_column t", "--labels_column and --score_column"),
    ("--score_column s --r_drop 1", "--r_drop 1.* not for --score_column"),
    ("--score_column s --metric_for_best_model f1", "choose from loss, pearson, spearman, mse"),
    ("--labels_column s --streaming", "--streaming does not go with --labels_column s"),
    ("--text_pair_column s --packing true", "--packing does not go with --text_pair_column s"),
    ("--text_pair_column s --dataset embedded", "--text_pair_column s needs --train_file"),
    ("--text_pair_column pair --preset gpt-tiny", "no token to put between"),
    ("--text_pair_column pair --set type_vocab_size=1", "the model has type_vocab_size=1"),
])  # fmt: skip
def test_options_that_do_not_go_together(options: str, message: str, tmp_path: Path, capsys) -> None:
    rows = [ROW | {"text": f"a {n}", "label": "lm"[n % 2]} for n in range(40)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    file = [] if "embedded" in options else ["--train_file", str(tmp_path / "a.jsonl")]
    with pytest.raises(ValueError, match=message):
        train_classifier.train([*RUN.split(), *file, *options.split(), "--output_dir", str(tmp_path / "run")])


def rows_of(count: int, seed: int) -> list[dict[str, Any]]:
    rng, rows = random.Random(seed), []
    for number in range(count):
        words = rng.sample(WORDS, 3)
        second = words[0] if number % 2 else rng.choice([word for word in WORDS if word not in words])
        rows.append(
            {"text": f"{' '.join(words)} {number}", "second": second, "in": "yes" if second in words else "no",
             "topics": sorted(set(words) & {"red", "old"}), "number": words.count("red") + 0.5}
        )  # fmt: skip
    return rows


RUNS = {
    "pairs": ("--text_pair_column second --label_column in", "majority class", "accuracy"),
    "several": ("--labels_column topics", "usual labels", "micro_f1"),
    "number": ("--score_column number", "mean", "pearson"),
}


@pytest.mark.parametrize("kind", RUNS)
def test_a_run(kind: str, tmp_path: Path, capsys) -> None:
    options, baseline, score = RUNS[kind]
    for name, count in (("train", 120), ("validation", 30), ("test", 30)):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows_of(count, count + len(name)))))
    files = [f"--{name}_file={tmp_path / name}.jsonl" for name in ("train", "validation", "test")]
    folder = tmp_path / "run"
    run = train_classifier.train([*RUN.split(), *files, *options.split(), "--output_dir", str(folder)])
    assert f"test_{score}" in run.metrics
    first, linear = run.details["baselines"]
    assert first == baseline
    starts = "Test: loss ", f"Test, {baseline}: ", f"Test, {linear}: ", run.details["diagnosis"][0], "Try it: "
    lines = capsys.readouterr().out.splitlines()
    places = [next(place for place, line in enumerate(lines) if line.startswith(start)) for start in starts]
    assert places == sorted(places)
    records = [json.loads(line) for line in (folder / "predictions_test.jsonl").read_text("utf-8").splitlines()]
    assert len(records) == 30
    if kind == "number":
        both = [[record[side] for record in records] for side in ("prediction", "reference")]
        assert run.metrics["test_pearson"] == pytest.approx(stats.pearsonr(*both).statistic, abs=1e-3)
    model, tokenizer = (auto.from_pretrained(folder) for auto in (AutoModelForSequenceClassification, AutoTokenizer))
    text, second = "red small old", ("new",) if kind == "pairs" else ()
    logits = model(**tokenizer(text, *second, return_tensors="pt")).logits[0].detach()
    capsys.readouterr()
    pair = ["--text_pair", *second] if second else []
    generate.main(["--model", str(folder), "--text", text, *pair])
    printed = capsys.readouterr().out.strip("\n")
    names = model.config.id2label
    expected = {
        "pairs": f"{names[logits.argmax().item()]}\t{logits.softmax(0).max():.4f}",
        "several": "\t".join(f"{names[n]}\t{value:.4f}" for n, value in enumerate(logits.sigmoid()) if value > 0.5),
        "number": f"{logits.item():.4f}" if kind == "number" else "",
    }
    assert printed == expected[kind]
    classify = pipeline("text-classification", str(folder), device="cpu")
    asked = {"text": text, "text_pair": second[0]} if second else text
    found = classify(asked, top_k=None, **({"function_to_apply": "none"} if kind == "number" else {}))
    wanted = {"pairs": logits.softmax(0), "several": logits.sigmoid(), "number": logits}[kind]
    assert {each["label"]: each["score"] for each in found} == {
        names[n]: pytest.approx(value.item(), abs=1e-4) for n, value in enumerate(wanted)
    }
    card = (folder / "README.md").read_text("utf-8")
    assert f"of the baseline ({baseline}) |" in card
    exec(card.split("```python\n")[1].split("```")[0], {})
    assert capsys.readouterr().out.strip()
