"""Scores that a model has to beat: those of trivial predictions, and of a classic model trained on the same rows."""

import contextlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from datasets import Dataset
from sklearn.pipeline import Pipeline, make_pipeline
from torch.utils.data import DataLoader
from transformers import EvalPrediction

from vanillaformer.console.reporting import optional, stage
from vanillaformer.data.preprocessing.batching import EpochCollator, RowMasking
from vanillaformer.data.preprocessing.denoising import Denoising
from vanillaformer.data.preprocessing.statistics import token_counts
from vanillaformer.data.rows import PLAIN
from vanillaformer.modeling.heads import IGNORE_INDEX

from ..metrics.compute import ComputeMetrics
from ..metrics.scores import bleu, chrf, compute_scores

Scores = dict[str, float]
Scorer = Callable[[Dataset], Scores]
"""From the tokenized rows of a held-out split to scores, named as those of the model."""

ROWS_AT_ONCE = 1_000
DENOISED = 5_000  # rows whose targets are counted where they are not the texts
# Thai, Lao, Tibetan, Myanmar, Khmer; kana and Han
UNSPACED = re.compile(r"[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\U00020000-\U0003ffff]")
WITHOUT_SPACES = 0.3  # share of letters in such scripts from which on characters are features, not words


class BaselineData(NamedTuple):
    """The data of baselines: training rows as in the data (of a stream the first ones), and as the model sees them."""

    texts: Dataset
    rows: Any = None
    tokenizers: Any = ()
    collator: Any = None
    compute_metrics: ComputeMetrics | None = None


class Baseline(NamedTuple):
    """A baseline: its name, which `techniques.yaml` explains for cards, and the function that fits it to the data."""

    name: str
    fit: Callable[[BaselineData], Scorer]


def baseline_scores(
    baselines: Sequence[Baseline], data: BaselineData, held_out: Mapping[str, Dataset], failed: list[str] | None = None
) -> dict[str, Scores]:
    """Return the scores of baselines by name; one that fails is left out and noted, with a warning.

    `held_out` has tokenized splits by the prefix of their scores (`eval`, `test`).
    """
    scores = {}
    for baseline in baselines:
        with optional(f"The baseline ({baseline.name})", failed):
            score = baseline.fit(data)
            scores[baseline.name] = {
                f"{prefix}_{name}": value for prefix, rows in held_out.items() for name, value in score(rows).items()
            }
    return scores


def majority_class(data: BaselineData) -> Scorer:
    """Predict the most frequent class of the training data; the loss is that of the classes' (smoothed) shares."""
    labels = _column(data.rows, "labels")  # without those of texts that --long_texts skip leaves out
    counts = np.bincount(labels, minlength=data.rows.features["labels"].num_classes)
    losses, most = -_log_shares(counts), counts.argmax()

    def score(rows: Dataset) -> Scores:
        references = _column(rows, "labels")
        predictions = np.full_like(references, most)
        scores = compute_scores("classes", "ids", predictions, references)
        return {"loss": float(losses[references].mean()), **scores}

    return score


def new_svm() -> Any:
    from sklearn.svm import LinearSVC  # imported here because most runs do not need it

    return LinearSVC(random_state=0)


def linear_model(
    build: Callable[[], Any], targets: Callable[[Dataset], Any], scores: Callable[[Any, Any], Scores]
) -> Callable[[BaselineData], Scorer]:
    """Return a function that trains a linear model of scikit-learn on the training texts, to be scored."""

    def fit(data: BaselineData) -> Scorer:
        with stage("Training the linear model"):
            model = fit_on_texts(build(), list(data.texts["text"]), targets(data.texts))
        return lambda rows: scores(model.predict(list(rows["text"])), targets(rows))

    return fit


def fit_on_texts(estimator: Any, texts: Sequence[str], targets: Any) -> Pipeline:
    """Fit a linear model of scikit-learn to the TF-IDF of words and word pairs that occur in at least two texts.

    For texts in scripts without spaces between words, these are characters and sequences of two and three.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    sample = "".join(texts[:: max(1, len(texts) // 1_000)])[:1_000_000]
    unspaced = len(UNSPACED.findall(sample)) > WITHOUT_SPACES * sum(map(str.isalpha, sample))
    kind: dict[str, Any] = {"ngram_range": (1, 2 + unspaced), "analyzer": "char" if unspaced else "word"}
    return make_pipeline(TfidfVectorizer(min_df=2, sublinear_tf=True, **kind), estimator).fit(texts, targets)


def unigram(data: BaselineData) -> Scorer:
    """Predict each token by its frequency in the training data, plus one, on the targets that the model has.

    `-log((n(token) + 1) / (N + V))` with the N training tokens and V entries of the vocabulary.
    """
    tokenizer = data.tokenizers[0]
    aligned = isinstance(data.collator, EpochCollator)  # labels are at the positions that predict them
    if isinstance(data.collator, Denoising):  # whose targets have tokens that texts do not have
        labels, _ = _targets(data.rows.select(range(min(len(data.rows), DENOISED))), data.collator)
        counts = np.bincount(labels[labels != IGNORE_INDEX], minlength=len(tokenizer))
    else:
        counts = token_counts(data.rows, "input_ids", len(tokenizer))
    if isinstance(data.collator, RowMasking):
        counts[tokenizer.all_special_ids] = 0  # never a target
    losses, most = -_log_shares(counts), counts.argmax()

    def score(rows: Dataset) -> Scores:
        labels, pairs = _targets(rows, data.collator)
        counted = labels != IGNORE_INDEX
        if not aligned:
            counted[:, 0] = False  # nothing predicts the first token
        predicted = np.where(counted, most, IGNORE_INDEX)
        predictions: tuple[Any, ...] = predicted, np.where(counted, losses[np.where(counted, labels, 0)], 0.0)
        references: Any = labels
        if pairs is not None:  # of segments, which are all taken for neighbors
            predictions, references = (*predictions, np.zeros_like(pairs)), (labels, pairs)
        assert data.compute_metrics is not None
        scores = data.compute_metrics(EvalPrediction(predictions=predictions, label_ids=references))
        if "perplexity" in scores:
            scores["loss"] = math.log(scores["perplexity"]) + (0.0 if pairs is None else math.log(2))
        return scores

    return score


def _targets(rows: Dataset, collator: Any) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the labels (N, T) of rows as in the evaluation of the model, and those of pairs of segments (N)."""
    with collator.evaluation() if isinstance(collator, EpochCollator) else contextlib.nullcontext():
        batches = list(batches_of(rows, collator, ROWS_AT_ONCE))
    labels = [batch["labels"] for batch in batches]
    longest = max(each.shape[1] for each in labels)
    padded = [torch.nn.functional.pad(each, (0, longest - each.shape[1]), value=IGNORE_INDEX) for each in labels]
    pairs = [batch["next_sentence_label"] for batch in batches if "next_sentence_label" in batch]
    return torch.cat(padded).numpy(), torch.cat(pairs).numpy() if pairs else None


def copied_source(**bleu_options: Any) -> Baseline:
    """Return the baseline whose translation is the source, without prefix, task and language."""

    def score(rows: Dataset) -> Scores:
        sources, targets = list(rows[PLAIN if PLAIN in rows.column_names else "source"]), list(rows["target"])
        return {"bleu": bleu(sources, targets, **bleu_options), "chrf": chrf(sources, targets)}

    return Baseline("copied source", lambda data: score)


def target_unigram(data: BaselineData) -> Scorer:
    """Predict each target token by its frequency in the training targets, plus one."""
    size = len(data.tokenizers[1])
    losses = -_log_shares(token_counts(data.rows, "labels", size))

    def score(rows: Dataset) -> Scores:
        counts = token_counts(rows, "labels", size)
        return {"loss": float(losses @ counts / counts.sum())}

    return score


def batches_of(rows: Dataset, collator: Any, size: int) -> DataLoader[Any]:
    """Return the batches of rows in their order, without drawing from the global generator."""
    return DataLoader(rows, size, collate_fn=collator, generator=torch.Generator())  # type: ignore[arg-type]


def _log_shares(counts: np.ndarray) -> np.ndarray:
    """Return the logarithms of shares with one added to each count (Laplace)."""
    return np.log((counts + 1) / (counts.sum() + len(counts)))


def _column(rows: Dataset, name: str) -> np.ndarray:
    return np.asarray(rows.with_format("arrow")[name])


MAJORITY = Baseline("majority class", majority_class)
UNIGRAM = Baseline("unigram", unigram)
TARGET_UNIGRAM = Baseline("unigram of the targets", target_unigram)
LINEAR = Baseline(
    "linear classifier",  # Joachims 1998
    linear_model(
        new_svm,
        lambda rows: _column(rows, "labels" if "labels" in rows.column_names else "label"),
        partial(compute_scores, "classes", "ids"),
    ),
)
