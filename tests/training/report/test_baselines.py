"""Baselines, against counts by hand and the scores of models."""

import math
import random
from typing import Any

import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset
from sklearn.svm import LinearSVC
from transformers import EvalPrediction

from vanillaformer.data.preprocessing.batching import BlockCollator, RowMasking
from vanillaformer.modeling.heads import IGNORE_INDEX
from vanillaformer.training.metrics import compute as m
from vanillaformer.training.metrics.compute import language_model_metrics, token_scores
from vanillaformer.training.report import baselines
from vanillaformer.training.report.baselines import LINEAR, MAJORITY, UNIGRAM, Baseline, BaselineData, baseline_scores


def data(texts: Any = None, rows: Any = None, tokenizer: Any = None, **more: Any) -> BaselineData:
    return BaselineData(texts, rows, (tokenizer, tokenizer), **{"collator": None, **more})


def labelled(texts: list[str], labels: list[int], column: str = "label") -> Dataset:
    rows = Dataset.from_dict({"text": texts, column: labels})
    return rows.cast_column(column, ClassLabel(names=["no", "yes", "maybe"]))


def test_majority_class_and_linear_classifier_by_hand() -> None:
    train = labelled(["a"] * 5, [1, 1, 1, 0, 0])
    held_out = labelled(["a"] * 4, [1, 0, 2, 1], "labels")
    scores = MAJORITY.fit(data(train))(held_out)
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
    train = labelled(["one", "two"], [0, 1])  # no word occurs twice
    held_out = {"eval": labelled(["one"], [0], "labels")}
    assert list(baseline_scores((MAJORITY, LINEAR), data(train), held_out)) == ["majority class"]
    assert "Warning: The baseline (linear classifier) could not be created: " in capsys.readouterr().err
    baseline = Baseline("constant", "a number", lambda data: lambda rows: {"loss": float(len(rows))})
    held_out = {"eval": labelled(["a"], [0]), "test": labelled(["a", "b"], [0, 1])}
    assert baseline_scores((baseline,), data(), held_out) == {"constant": {"eval_loss": 1.0, "test_loss": 2.0}}


def unigram_logits(ids: list[list[int]], size: int, special: list[int]) -> torch.Tensor:
    """Return the logits of a model that knows only how often tokens occur."""
    counts = np.bincount(np.concatenate([np.array(row) for row in ids]), minlength=size)
    counts[special] = 0
    return torch.tensor(np.log((counts + 1) / (counts.sum() + size)))


def test_unigram_has_the_scores_of_a_model_with_these_probabilities(decoder_tokenizer) -> None:
    train, held_out = ([list(decoder_tokenizer(text)["input_ids"]) for text in texts] for texts in TEXTS)
    compute = language_model_metrics(decoder_tokenizer)
    collator = BlockCollator(decoder_tokenizer)
    fitted = data(
        rows=Dataset.from_dict({"input_ids": train}),
        tokenizer=decoder_tokenizer,
        collator=collator,
        compute_metrics=compute,
    )
    scores = UNIGRAM.fit(fitted)(Dataset.from_dict({"input_ids": held_out}))
    labels = collator([{"input_ids": row} for row in held_out])["labels"]
    logits = unigram_logits(train, len(decoder_tokenizer), []).expand(*labels.shape, -1)
    predictions = tuple(each.numpy() for each in token_scores(causal=True)(logits, labels))
    expected = compute(EvalPrediction(predictions=predictions, label_ids=labels.numpy()))
    expected["loss"] = math.log(expected["perplexity"])
    assert scores == {name: pytest.approx(value, rel=1e-5) for name, value in expected.items()}  # logits are float32
    assert {"bits_per_byte", "accuracy"} <= scores.keys()


TEXTS = (["abcabca", "aab"], ["abba", "cab a", "b"])


@pytest.mark.parametrize("pairs", [False, True])
def test_unigram_of_masked_tokens(encoder_tokenizer, pairs: bool) -> None:
    train, held_out = ([encoder_tokenizer(text)["input_ids"] for text in texts] for texts in TEXTS)
    compute, score = language_model_metrics(), token_scores(causal=False)
    if pairs:
        compute, score = m.pretraining_metrics(), m.pretraining_scores
    collator = RowMasking(encoder_tokenizer, mlm_probability=0.5, mask_seed=1)
    fitted = data(
        rows=Dataset.from_dict({"input_ids": train}),
        tokenizer=encoder_tokenizer,
        collator=collator,
        compute_metrics=compute,
    )
    columns = {"input_ids": held_out} | ({"next_sentence_label": [0, 1, 0]} if pairs else {})
    rows = Dataset.from_dict(columns)
    scores = UNIGRAM.fit(fitted)(rows)
    with collator.evaluation():
        labels = collator(rows.to_list())["labels"]
    special = encoder_tokenizer.all_special_ids
    logits: Any = unigram_logits(train, len(encoder_tokenizer), special).expand(*labels.shape, -1)
    references: Any = labels
    if pairs:
        logits = logits, torch.tensor([[1.0, 0.0]] * 3)
        references = labels, torch.tensor(columns["next_sentence_label"])
    predictions = tuple(each.numpy() for each in score(logits, references))
    ids = tuple(each.numpy() for each in references) if pairs else labels.numpy()
    expected = compute(EvalPrediction(predictions=predictions, label_ids=ids))
    loss = scores.pop("loss")
    assert scores == {name: pytest.approx(value, rel=1e-5) for name, value in expected.items()}
    assert loss == pytest.approx(math.log(scores["perplexity"]) + pairs * math.log(2))


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
