"""Where a classifier errs, what is said of it beside its scores, and baselines against counts by hand."""

import json
import math
import random
import warnings
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from data.test_loading import write
from datasets import ClassLabel, Dataset
from matplotlib.figure import Figure
from sklearn.svm import LinearSVC
from transformers import EvalPrediction
from transformers.trainer_utils import PredictionOutput

from vanillaformer.data.preprocessing.batching import BlockCollator, RowMasking
from vanillaformer.data.preprocessing.denoising import DENOISING
from vanillaformer.modeling.heads import IGNORE_INDEX
from vanillaformer.scripts import train_classifier
from vanillaformer.tokenization import train
from vanillaformer.training.metrics import compute as m
from vanillaformer.training.metrics.compute import language_model_metrics, token_scores
from vanillaformer.training.report import baselines
from vanillaformer.training.report.baselines import LINEAR, MAJORITY, UNIGRAM, Baseline, BaselineData, baseline_scores
from vanillaformer.training.report.classes import accuracy_intervals, class_records, report_classes
from vanillaformer.training.report.plots import confusion_picture, loss_curve

SMALL = """--preset bert-tiny --set hidden_size=16 num_hidden_layers=1 num_attention_heads=2 --tokenizer_vocab_size 300
    --use_cpu --max_steps 1 --card_example text"""


@pytest.mark.parametrize(
    ("right", "count", "expected"),  # Wilson's intervals, from Brown, Cai and DasGupta (2001)
    [(1, 1, "20.7% to 100.0% (of 1)"), (8, 10, "49.0% to 94.3% (of 10)"), (0, 50, "0.0% to 7.1% (of 50)")],
)
def test_intervals(right: int, count: int, expected: str) -> None:
    metrics = {"eval_accuracy": right / count, "eval_loss": 1.0}
    assert accuracy_intervals(metrics, {"validation": count, "train": 5}) == {"validation": expected}


def test_the_surest_errors_and_the_worst_classes(tmp_path: Path, capsys) -> None:
    scores = {"precision": 0.5, "recall": 0.25, "rows": 3}
    classes = {name: {**scores, "f1": f1} for name, f1 in zip("abcde", (0.9, 0.2, 1.0, 0.3, 0.4))}
    classes["none"] = {"precision": 0.0, "recall": 0.0, "f1": 0.0, "rows": 0}
    rows = [
        {"text": f"text\u2028{n}", "reference": "a", "prediction": "ab"[n > 0], "probability": n / 10}
        for n in range(8)
    ]
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (tmp_path / "predictions_test.jsonl").write_text(lines, encoding="utf-8")
    run: Any = SimpleNamespace(folder=tmp_path, metrics={"test_accuracy": 0.125}, details={"classes": classes})
    report_classes(run)
    assert capsys.readouterr().out.splitlines() == [
        "Test, lowest F1 of a class: b 20.0% (precision 50.0%, recall 25.0%, rows 3), "
        "d 30.0% (precision 50.0%, recall 25.0%, rows 3), e 40.0% (precision 50.0%, recall 25.0%, rows 3)",
        "Test, most confident of 7 errors (all predictions are in predictions_test.jsonl):",
        *(f"  b {n}0.0%, labeled a: text {n}" for n in (7, 6, 5, 4, 3)),
    ]


def test_a_run_says_which_classes_have_no_rows_and_how_sure_its_accuracy_is(tmp_path: Path, capsys) -> None:
    rows = [{"text": f"word{n} {('bad', 'good')[n % 2]}", "label": ("neg", "pos")[n % 2]} for n in range(60)]
    file = write(tmp_path / "a.csv", [*rows, {"text": "so so", "label": "rare"}])
    options = f"--train_file {file} --validation_fraction 0.2 --output_dir {tmp_path}/run"
    run = train_classifier.train([*SMALL.split(), *options.split()])
    lines = capsys.readouterr().out.splitlines()
    counts = run.details["data"]["train"]
    assert (counts["classes"], counts["rows of the rarest class"], counts["rows"]) == (3, 1, 49)
    unscored = "1 of 3 classes without rows: rare"
    assert any(line.startswith("Train data: ") and "; 3 classes: neg 24, pos 24, rare 1." in line for line in lines)
    assert any(line.startswith("Validation data: 12 rows; ") and f"; {unscored}." in line for line in lines)
    assert f"Validation data: {unscored}" in lines
    interval = accuracy_intervals(run.metrics, {"validation": 12})["validation"]
    assert f"Validation, 95 % interval of the accuracy: {interval}" in lines
    card = (tmp_path / "run/README.md").read_text()
    assert f"- validation accuracy: 95 % interval {interval}\n" in card
    assert f"- validation data: {unscored}\n" in card
    for name, found in run.details["classes"].items():
        cells = (f"{found[key]:.1%}" for key in ("precision", "recall", "f1"))
        assert (f"| {name} | {' | '.join(cells)} | 6 |\n" in card) is (name != "rare")


def test_classes_that_the_first_rows_of_a_stream_lack(tmp_path: Path, capsys) -> None:
    names = "abcdefghijklmnopqrstuv"
    rows = [{"text": f"text {n}", "label": names[max(0, n - 9) % len(names)]} for n in range(100)]
    file = write(tmp_path / "a.csv", rows)
    options = f"--train_file {file} --streaming --max_validation_samples 10 --output_dir {tmp_path}/run"
    run = train_classifier.train([*SMALL.split(), *options.split()])
    assert len(run.details["data"]["validation"]["classes without rows"]) == 21
    lines = capsys.readouterr().out.splitlines()
    listed = "b, c, d, e, f, g, h, i, j, k, l, m, ..."
    assert any(line.endswith(f"; 1 class: a 10; 21 of 22 classes without rows: {listed}.") for line in lines)
    assert f"Validation data: 21 of 22 classes without rows: {listed}" in lines
    assert sum("21 of" in line for line in lines) == 2


@pytest.mark.parametrize(("classes", "numbers"), [(40, 1600), (41, 0), (150, 0)])
def test_size_of_the_picture(classes: int, numbers: int, tmp_path: Path, drawn: list[Figure]) -> None:
    confusion_picture(np.eye(classes, dtype=int), [f"c{i}" for i in range(classes)], tmp_path / "c.png")
    assert (len(drawn[0].axes[0].texts), drawn[0].get_size_inches().tolist()) == (numbers, [21.5, 20.5])


def test_names_that_the_font_lacks(tmp_path: Path, drawn: list[Figure]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        confusion_picture(np.eye(3), ["体育", "x" * 99, "財經"], tmp_path / "c.png")
    ticks = [tick.get_text() for tick in drawn[0].axes[0].get_yticklabels()]
    assert (ticks[0], ticks[2]) == ("class 0", "class 2")
    assert len(ticks[1]) <= 40


@pytest.mark.parametrize(("count", "kept"), [(3, True), (1_000, False)])
def test_record_of_many_classes_stays_small(count: int, kept: bool, tmp_path: Path) -> None:
    labels = np.arange(12) % count
    logits = np.zeros((12, count))
    logits[:, 1] = 1
    run = SimpleNamespace(folder=tmp_path, details={}, failed=[])
    names, texts = {i: str(i) for i in range(count)}, [f"Text {number} " for number in range(12)]
    records = list(class_records(run, names, ("text", texts), PredictionOutput(logits, labels, {}), "test"))
    assert [record["text"] for record in records] == texts
    assert ("confusion_matrix" in run.details) is kept
    assert len(json.dumps(run.details)) < 100 * count + 1_000
    assert (tmp_path / "confusion_matrix.png").exists() is kept


HISTORY = [
    {"step": 1, "loss": 4.0},
    {"step": 2, "loss": 2.0},
    {"step": 2, "eval_loss": 2.5, "eval_bleu": 10.0, "eval_exact_match": 40.0},
    {"step": 2, "train_runtime": 1.0},
]


@pytest.fixture
def drawn(monkeypatch) -> list[Figure]:
    """Collect the figures that are saved."""
    figures: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (figures.append(self), save(self, *a, **k))[1])
    return figures


def test_pictures_of_losses_and_of_classes(tmp_path: Path, drawn: list[Figure]) -> None:
    path = loss_curve(HISTORY, tmp_path / "loss.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    left, right = drawn[0].axes
    assert [list(curve.get_ydata()) for curve in left.lines] == [[4.0, 2.0], [2.5]]
    assert [list(curve.get_ydata()) for curve in right.lines] == [[40.0]]
    assert right.get_ylabel() == "exact match (%)"
    loss_curve(HISTORY[:2], tmp_path / "loss.png")
    assert len(drawn[1].axes) == 1
    assert loss_curve([], tmp_path / "empty.png").exists()
    path = confusion_picture(np.array([[3, 1], [0, 0]]), ["yes", "no $"], tmp_path / "confusion.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    axes = drawn[-1].axes[0]
    np.testing.assert_allclose(axes.images[0].get_array(), [[0.75, 0.25], [0, 0]])
    assert [text.get_text() for text in axes.texts] == ["3", "1", "0", "0"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["yes", r"no \$"]


def data(texts: Any = None, rows: Any = None, tokenizer: Any = None, **more: Any) -> BaselineData:
    return BaselineData(texts, rows, (tokenizer, tokenizer), **{"collator": None, **more})


def labelled(texts: list[str], labels: list[int], column: str = "label") -> Dataset:
    rows = Dataset.from_dict({"text": texts, column: labels})
    return rows.cast_column(column, ClassLabel(names=["no", "yes", "maybe"]))


def test_majority_class_and_linear_classifier_by_hand() -> None:
    train = labelled(["a"] * 5, [1, 1, 1, 0, 0], "labels")
    held_out = labelled(["a"] * 4, [1, 0, 2, 1], "labels")
    scores = MAJORITY.fit(data(rows=train))(held_out)
    shares = [3 / 8, 4 / 8, 1 / 8]
    assert scores == {
        "loss": pytest.approx(-sum(math.log(shares[label]) for label in (1, 0, 2, 1)) / 4),
        "accuracy": 0.5,
        "f1": pytest.approx((2 / 3) / 3),
    }
    texts, labels = ["good film", "bad film", "good book", "bad book"] * 3, [1, 0, 1, 0] * 3
    held_out = labelled(["a good one", "a bad one", "bad bad"], [1, 0, 1], "labels")
    scores = LINEAR.fit(data(labelled(texts, labels)))(held_out)
    assert scores["accuracy"] == pytest.approx(2 / 3)
    assert baselines.fit_on_texts(LinearSVC(), texts, labels).predict(["good", "bad"]).tolist() == [1, 0]


@pytest.mark.parametrize("letters", ["的一是不了人我在有他这中大来上", "กขคงจชซญดตถทธน", "កខគឃងចឆជឈញ"])
def test_linear_svm_learns_characters_where_no_spaces_separate_words(letters: str) -> None:
    rng = random.Random(0)
    neutral, words = letters[:-4], (letters[-4:-2], letters[-2:])

    def reviews(count: int) -> Dataset:
        labels = [n % 2 for n in range(count)]
        texts = ["".join([*rng.choices(neutral, k=20), words[n], *rng.choices(neutral, k=20)]) for n in labels]
        return labelled(texts, labels)

    assert LINEAR.fit(data(reviews(400)))(reviews(50))["accuracy"] == 1.0


def test_scores_are_named_by_split_and_what_cannot_be_trained_is_left_out(capsys) -> None:
    train, rows = (labelled(["one", "two"], [0, 1], name) for name in ("label", "labels"))  # no word occurs twice
    held_out = {"eval": labelled(["one"], [0], "labels")}
    assert list(baseline_scores((MAJORITY, LINEAR), data(train, rows), held_out)) == ["majority class"]
    assert "Warning: The baseline (linear classifier) could not be created: " in capsys.readouterr().err
    baseline = Baseline("constant", lambda data: lambda rows: {"loss": float(len(rows))})
    held_out = {"eval": labelled(["a"], [0]), "test": labelled(["a", "b"], [0, 1])}
    assert baseline_scores((baseline,), data(), held_out) == {"constant": {"eval_loss": 1.0, "test_loss": 2.0}}


def unigram_logits(ids: list[list[int]], size: int, special: list[int]) -> torch.Tensor:
    """Return the logits of a model that knows only how often tokens occur."""
    counts = np.bincount(np.concatenate([np.array(row) for row in ids]), minlength=size)
    counts[special] = 0
    return torch.tensor(np.log((counts + 1) / (counts.sum() + size)))


MASKING = partial(RowMasking, mlm_probability=0.5, mask_seed=1)
TEXTS = (["abcabca", "aab"], ["abba", "cab a", "b"])
UNIGRAMS = {
    "causal": (BlockCollator, language_model_metrics, token_scores(causal=True)),
    "masked": (MASKING, lambda _: language_model_metrics(), token_scores(causal=False)),
    "pairs": (MASKING, lambda _: m.pretraining_metrics, m.pretraining_scores),
}


@pytest.mark.parametrize("kind", UNIGRAMS)
def test_unigram_has_the_scores_of_a_model_with_these_probabilities(
    kind, decoder_tokenizer, encoder_tokenizer
) -> None:
    tokenizer = decoder_tokenizer if kind == "causal" else encoder_tokenizer
    make, metrics, score = UNIGRAMS[kind]
    collator, compute = make(tokenizer), metrics(tokenizer)
    train, held_out = ([list(tokenizer(text)["input_ids"]) for text in texts] for texts in TEXTS)
    rows = Dataset.from_dict({"input_ids": train})
    fitted = data(rows=rows, tokenizer=tokenizer, collator=collator, compute_metrics=compute)
    columns = {"input_ids": held_out} | ({"next_sentence_label": [0, 1, 0]} if kind == "pairs" else {})
    rows = Dataset.from_dict(columns)
    scores = UNIGRAM.fit(fitted)(rows)
    with collator.evaluation() if kind != "causal" else nullcontext():
        labels = collator(rows.to_list())["labels"]
    special = [] if kind == "causal" else tokenizer.all_special_ids
    logits: Any = unigram_logits(train, len(tokenizer), special).expand(*labels.shape, -1)
    references: Any = labels
    if kind == "pairs":
        logits = logits, torch.tensor([[1.0, 0.0]] * 3)
        references = labels, torch.tensor(columns["next_sentence_label"])
    predictions = tuple(each.numpy() for each in score(logits, references))
    ids = tuple(each.numpy() for each in references) if kind == "pairs" else labels.numpy()
    expected = compute(EvalPrediction(predictions=predictions, label_ids=ids))
    expected["loss"] = math.log(expected["perplexity"]) + (kind == "pairs") * math.log(2)
    assert scores == {name: pytest.approx(value, rel=1e-5) for name, value in expected.items()}  # logits are float32
    assert "accuracy" in scores
    assert ("bits_per_byte" in scores) is (kind == "causal")


def test_unigram_of_corrupted_spans_counts_their_sentinels() -> None:
    settings = {"noise_density": None, "mean_span_length": None, "noise": "mask", "seed": 7, "objective": "span"}
    objective, arguments = DENOISING["span"], SimpleNamespace(**settings)
    extra = objective.tokens(arguments, 64)
    tokenizer = train(["abcabca aab"], vocab_size=280, kind="encoder_decoder", extra_special_tokens=extra)
    collator = objective(cast(Any, None), tokenizer, arguments, 64)
    rows = Dataset.from_dict({"input_ids": [tokenizer(text * 3)["input_ids"] for text in ("abcabca ", "aab ca ")]})
    compute = language_model_metrics()
    fitted = data(rows=rows, tokenizer=tokenizer, collator=collator, compute_metrics=compute)
    with collator.evaluation():
        targets = [token for row in collator(rows.to_list())["labels"].tolist() for token in row if token >= 0]
    shares = {token: (targets.count(token) + 1) / (len(targets) + len(tokenizer)) for token in targets}
    assert {tokenizer.convert_tokens_to_ids(name) for name in extra[:1]} <= shares.keys()
    expected = -sum(math.log(shares[token]) for token in targets) / len(targets)
    assert UNIGRAM.fit(fitted)(rows)["loss"] == pytest.approx(expected, rel=1e-6)


def test_copied_source_and_unigram_of_targets(translator_tokenizer) -> None:
    sources, targets = ["12 March 2020 a", "x y z w"], ["12 March 2020 b", "x y z w"]
    rows = Dataset.from_dict({"source": sources, "target": targets})
    scores = baselines.copied_source(tokenize="13a", lowercase=False).fit(data())(rows)
    ids = translator_tokenizer(sources, padding=True, return_tensors="np")["input_ids"]
    compute = m.translation_metrics(translator_tokenizer)
    expected = compute(EvalPrediction(predictions=ids, label_ids=ids), references=targets)
    assert scores == {name: pytest.approx(expected[name]) for name in ("bleu", "chrf")}
    rows = {"train": [[5, 5, 6, 3]], "test": [[5, 3], [6, 7, IGNORE_INDEX]]}
    train, test = (Dataset.from_dict({"labels": ids}) for ids in rows.values())
    size = len(translator_tokenizer)
    counts = {5: 3, 3: 2, 6: 2, 7: 1}
    expected = -sum(math.log(counts[token] / (4 + size)) for token in (5, 3, 6, 7)) / 4
    scores = baselines.TARGET_UNIGRAM.fit(data(rows=train, tokenizer=translator_tokenizer))(test)
    assert scores == {"loss": pytest.approx(expected)}
