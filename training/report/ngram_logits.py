"""A linear classifier on n-grams, fitted on the training texts and added to a classifier's logits.

It is the wide part of Wide & Deep (Cheng et al. 2016), and the stack the deep one. The two err at different texts, so
that their sum is better where texts are few. Each is trained by itself, and the validation data decides how much each
counts (stacking, Wolpert 1992): trained together, the one that fits the training texts first leaves the other nothing
to learn.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from datasets import Dataset
from scipy.sparse import csr_matrix, diags

from vanillaformer.console.reporting import report
from vanillaformer.data.preprocessing.batching import evaluation_order
from vanillaformer.modeling.parts.ngrams import WideLogits

from ..run_folder.run import Run
from ..trainer.trainer import RunTrainer
from .calibration import fit_scales, obstacle_to_fitting, output_layer
from .predictions import labels_and_predictions

COLUMNS = ("input_ids", "attention_mask", "labels")
ROWS_AT_ONCE = 256
MAX_TOKENS = 50_000_000
"""Training tokens that are read; more texts hardly change a linear classifier."""


class LinearSvm(NamedTuple):
    """Linear support vector machines, one for each class against the others.

    Attributes:
        table: What each n-gram says of the classes (R, C).
        bias: What is added to it (C).
        rows: Number of texts that it was fitted on.
    """

    table: np.ndarray
    bias: np.ndarray
    rows: int


def fit_ngram_svm(trainer: RunTrainer) -> LinearSvm | None:
    """Fit the linear classifier for a model's n-gram logits on the training rows; None if the model has none.

    The model's own table is zero while the model is trained.
    """
    wide = getattr(trainer.model, "wide", None)
    if not isinstance(wide, WideLogits):
        return None
    torch.nn.init.zeros_(wide.ngram_logits.weight)
    dataset: Any = trainer.train_dataset
    rows = getattr(dataset, "first_rows", dataset)
    length = sum(map(len, rows[:ROWS_AT_ONCE]["input_ids"])) / min(len(rows), ROWS_AT_ONCE)
    rows = rows.select(range(min(len(rows), max(1, int(MAX_TOKENS / length)))))
    ngrams, labels = ngrams_of(wide, rows, trainer.data_collator)
    return linear_svm(ngrams, labels, trainer.model.config.num_labels)


def ngrams_of(wide: WideLogits, rows: Dataset, collator: Any) -> tuple[csr_matrix, np.ndarray]:
    """Return the n-grams of tokenized texts as `WideLogits` weighs them (N, R), and the labels (N)."""
    collate: Callable[[Any], Any] = getattr(collator, "padded", collator)  # a row of each text, even if packed
    rows = rows.select_columns([name for name in COLUMNS if name in rows.column_names])
    indices, counts, labels = [], [], []
    for start in range(0, len(rows), ROWS_AT_ONCE):
        batch = collate(rows.select(range(start, min(start + ROWS_AT_ONCE, len(rows)))).to_list())
        ngrams, first = wide.distinct_ngrams(batch["input_ids"], batch.get("attention_mask"))
        indices.append(ngrams[first].numpy())
        counts.append(first.sum(dim=1).numpy())
        labels.append(batch["labels"].numpy())
    sizes = np.concatenate(counts)
    ends = np.concatenate([[0], sizes.cumsum()])
    values = np.repeat(np.maximum(sizes, 1) ** -0.5, sizes)
    matrix = csr_matrix((values, np.concatenate(indices), ends), shape=(len(sizes), wide.buckets))
    return matrix, np.concatenate(labels)


def linear_svm(ngrams: csr_matrix, labels: np.ndarray, classes: int) -> LinearSvm | None:
    """Fit linear support vector machines on n-grams (N, R), weighted by inverse document frequency.

    Of the classes of the labels (N) some may be missing; of one class there is nothing to fit.
    """
    from sklearn.svm import LinearSVC  # only here: most runs do not need it

    if len(np.unique(labels)) < 2:
        return None
    occurrences = np.bincount(ngrams.indices, minlength=ngrams.shape[1])
    rarity = np.log((1 + len(labels)) / (1 + occurrences)) + 1
    rarity /= np.sqrt((occurrences * rarity**2).sum() / occurrences.sum())
    svm = LinearSVC(random_state=0).fit(ngrams @ diags(rarity), labels)
    weights, bias = svm.coef_, svm.intercept_
    if len(weights) == 1:
        weights, bias = np.concatenate([-weights, weights]) / 2, np.concatenate([-bias, bias]) / 2
    table, biases = np.zeros((ngrams.shape[1], classes)), np.full(classes, bias.min() - 1)
    table[:, svm.classes_], biases[svm.classes_] = weights.T * rarity[:, None], bias
    return LinearSvm(table, biases, len(labels))


def add_ngram_logits(run: Run, trainer: RunTrainer, svm: LinearSvm, rows: Dataset | None) -> None:
    """Add a linear classifier to a model's logits, scaled to suit validation rows (tokenized), and note accuracies."""
    model: Any = trainer.model
    layer = output_layer(model)
    if obstacle := obstacle_to_fitting(trainer, rows, layer):
        report(f"No linear classifier is added to the model: {obstacle}.")
        return
    assert rows is not None
    assert layer is not None
    output = trainer.predict(rows, metric_key_prefix="eval")  # type: ignore[arg-type]
    labels, deep = (torch.as_tensor(each) for each in labels_and_predictions(output))
    ngrams, _ = ngrams_of(model.wide, rows.select(evaluation_order(rows)), trainer.data_collator)
    parts = [deep.double(), torch.as_tensor(ngrams @ svm.table + svm.bias)]
    scales = fit_scales(parts, labels)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.mul_(scales[0])
        layer.bias.add_(torch.as_tensor(svm.bias).to(layer.bias) * scales[1])
        table = model.wide.ngram_logits.weight
        table.copy_(torch.as_tensor(svm.table).to(table) * scales[1])
    logits = {"stack": parts[0], "svm": parts[1], "both": scales[0] * parts[0] + scales[1] * parts[1]}
    right = {name: (each.argmax(dim=1) == labels).double().mean().item() for name, each in logits.items()}
    run.details["ngram_logits"] = {"rows": svm.rows, "scales": scales, **right}
    report(
        f"A linear classifier on n-grams of up to {model.wide.max_ngram} tokens is added to the logits. Validation "
        f"accuracy: {right['stack']:.1%} without it, {right['svm']:.1%} of it only, {right['both']:.1%} together."
    )
