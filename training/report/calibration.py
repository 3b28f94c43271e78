"""Calibration of a classifier's logits after training: a temperature, and the weights of its n-gram features.

Temperature scaling makes probabilities say how often a classifier is right (Guo et al. 2017): the logits z become
z / T, with the one T that makes the labels of the validation data most likely. The division is done in the weights of
the output layer, so that pipelines, conversions and other engines have it too; which class is the most likely does not
depend on T.

A linear classifier on n-grams is the "wide" half of Wide & Deep (Cheng et al. 2016), the stack the "deep" one. The two
make different errors, so that their sum is better where texts are few. Each is trained by itself, and the validation
data decides how much each counts (stacking, Wolpert 1992): trained together, the one that fits the training texts
first leaves the other nothing to learn.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from datasets import Dataset
from scipy.optimize import minimize
from scipy.sparse import csr_matrix, diags
from torch import nn

from vanillaformer.console.reporting import optional, report
from vanillaformer.data.preprocessing.batching import evaluation_order
from vanillaformer.modeling.parts.ngrams import WideLogits

from ..metrics.compute import labels_and_predictions
from ..run_folder.run import Run
from ..trainer.trainer import RunTrainer
from .baselines import batches_of, new_svm

MIN_ROWS = 50  # validation rows below which nothing is fitted
MAX_TEMPERATURE = 20.0  # temperatures are between its inverse and this
BINS = 15
THRESHOLDS = (0.5, 0.7, 0.9)
OUTPUT_LAYERS = ("classifier", "score")  # names of a classifier's last layer, in our models and most others
COLUMNS = ("input_ids", "attention_mask", "labels")
ROWS_AT_ONCE = 256
MAX_TOKENS = 50_000_000
"""Training tokens that are read for n-grams; more texts hardly change a linear classifier."""


def fit_outputs(run: Run, trainer: RunTrainer, rows: Dataset | None, svm: "LinearSvm | None" = None) -> None:
    """Add n-gram logits to a trained model, calibrate it on validation rows if asked to, and save it."""
    layer = output_layer(trainer.model)
    obstacle = obstacle_to_fitting(trainer, rows, layer)
    if svm is not None and obstacle:
        report(f"No linear classifier is added to the model: {obstacle}.")
    elif svm is not None:
        with optional("The n-gram logits", run.failed):
            add_ngram_logits(run, trainer, svm, rows, layer)
    if trainer.args.calibrate and obstacle:
        report(f"The probabilities are not calibrated: {obstacle}.")
    elif trainer.args.calibrate:
        with optional("The calibration", run.failed):
            calibrate(run, trainer, rows, layer)
    if {"ngram_logits", "calibration"} & run.details.keys():  # which change weights
        trainer.save_model()


def calibrate(run: Run, trainer: RunTrainer, rows: Any, layer: Any) -> None:
    """Fit a temperature on tokenized validation rows, divide the model's logits by it, and record the effect."""
    output = trainer.predict(rows, metric_key_prefix="eval")
    labels, logits = (torch.as_tensor(each) for each in labels_and_predictions(output))
    temperature = 1 / fit_scales([logits], labels)[0]
    scale_logits(trainer.model, layer, 1 / temperature)
    before, after = (reliability(logits / divisor, labels) for divisor in (1.0, temperature))
    run.details["calibration"] = {"temperature": temperature, "rows": len(labels), "before": before, **after}
    report(
        f"Calibrated on {len(labels):,} validation rows: temperature {temperature:.3g}, expected calibration error "
        f"{before['calibration_error']:.3f} before and {after['calibration_error']:.3f} after, negative "
        f"log-likelihood {before['nll']:.3f} and {after['nll']:.3f}."
    )


def obstacle_to_fitting(trainer: RunTrainer, rows: Dataset | None, layer: Any) -> str | None:
    """Return the reason why nothing can be fitted to a model's logits, or None."""
    if rows is None or len(rows) < MIN_ROWS:
        return f"{0 if rows is None else len(rows)} validation rows are fewer than {MIN_ROWS}"
    if layer is None:
        return f"{type(trainer.model).__name__} does not end in a linear layer ({', '.join(OUTPUT_LAYERS)})"
    if trainer.args.parallel is not None:
        return "the weights are distributed over the processes"
    return None


def output_layer(model: Any) -> nn.Linear | None:
    """Return the linear layer whose output is a classifier's logits, if it has one."""
    layers = (getattr(model, name, None) for name in OUTPUT_LAYERS)
    linear = next((layer for layer in layers if type(layer) is nn.Linear), None)
    return linear if linear is not None and linear.out_features == model.config.num_labels > 1 else None


def scale_logits(model: Any, layer: nn.Linear, factor: float) -> None:
    """Multiply a classifier's logits by a factor: those of its output layer and of its n-grams."""
    wide = getattr(model, "wide", None)
    with torch.no_grad():
        for parameter in (*layer.parameters(), *(wide.parameters() if isinstance(wide, nn.Module) else ())):
            parameter.mul_(factor)


def fit_scales(parts: Sequence[torch.Tensor], labels: torch.Tensor) -> list[float]:
    """Return the factors s for which the labels are most likely under `softmax(Σ_i s_i z_i)`.

    The negative log-likelihood is convex in s. The targets t leave the probability 1/(n + 2) to the other classes, as
    those of Platt (1999) do: without that, s would be infinite for a model that is always right. The logits z_i of
    each part of a model are (n, classes), the labels (n).
    """
    z = torch.stack([part.double() for part in parts])
    doubt = 1 / (len(labels) + 2)
    targets = torch.full_like(z[0], doubt / (z.shape[2] - 1)).scatter(1, labels[:, None], 1 - doubt)

    def loss_and_gradient(scales: np.ndarray) -> tuple[float, np.ndarray]:
        scores = torch.einsum("i,inc->nc", torch.as_tensor(scales), z).log_softmax(1)
        gradient = ((scores.exp() - targets) * z).sum(2).mean(1)
        return -(targets * scores).sum(1).mean().item(), gradient.numpy()

    lowest = 1 / MAX_TEMPERATURE if len(parts) == 1 else 0.0  # the only part has to count
    bounds = [(lowest, MAX_TEMPERATURE)] * len(parts)
    options = {"ftol": 1e-15, "gtol": 1e-9}
    return minimize(
        loss_and_gradient, np.ones(len(parts)), jac=True, method="L-BFGS-B", bounds=bounds, options=options
    ).x.tolist()


def reliability(logits: torch.Tensor, labels: torch.Tensor) -> dict[str, Any]:
    """Return how far a classifier's probabilities can be relied on, from logits (n, classes) and labels (n).

    `calibration_error` is the expected calibration error: the difference between accuracy and mean probability in
    each of 15 bins of probabilities, weighted by their rows. `nll` is the negative log-likelihood of the labels. For
    each threshold, `accepted` has the share of rows with a probability of at least as much, and their accuracy.
    """
    scores = logits.double().log_softmax(1)
    best = scores.max(1)
    probability, right = best.values.exp(), (best.indices == labels).double()
    bins = (probability * BINS).ceil().long().clamp(1, BINS) - 1  # a bin has its upper end
    gaps = torch.zeros(BINS, dtype=torch.double).index_add(0, bins, right - probability)
    accepted = {}
    for threshold in THRESHOLDS:
        kept = right[probability >= threshold]
        accepted[str(threshold)] = {
            "rows": len(kept) / len(right),
            "accuracy": kept.mean().item() if len(kept) else None,
        }
    return {
        "calibration_error": gaps.abs().sum().item() / len(right),
        "nll": nn.functional.nll_loss(scores, labels).item(),
        "accepted": accepted,
    }


class LinearSvm(NamedTuple):
    """Linear support vector machines, one for each class against the others, and the number of their training texts.

    The table has the weights of each n-gram for the classes (R, C), the bias is (C).
    """

    table: np.ndarray
    bias: np.ndarray
    rows: int


def fit_ngram_svm(trainer: RunTrainer) -> LinearSvm | None:
    """Fit the linear classifier for a model's n-gram logits on the training rows; None if the model has none.

    The model's own table is zero while the model is trained.
    """
    wide = getattr(trainer.model, "wide", None)
    if not isinstance(wide, WideLogits) or getattr(trainer.model.config, "problem_type", None) is not None:
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
    collate = getattr(collator, "padded", collator)  # one text per row, even if training packs them
    rows = rows.select_columns([name for name in COLUMNS if name in rows.column_names])
    indices, counts, labels = [], [], []
    for batch in batches_of(rows, collate, ROWS_AT_ONCE):
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

    Some classes may be missing among the labels (N); with only one there is nothing to fit.
    """
    if len(np.unique(labels)) < 2:
        return None
    occurrences = np.bincount(ngrams.indices, minlength=ngrams.shape[1])
    rarity = np.log((1 + len(labels)) / (1 + occurrences)) + 1
    rarity /= np.sqrt((occurrences * rarity**2).sum() / occurrences.sum())
    fitted = new_svm().fit(ngrams @ diags(rarity), labels)
    weights, bias = fitted.coef_, fitted.intercept_
    if len(weights) == 1:
        weights, bias = np.concatenate([-weights, weights]) / 2, np.concatenate([-bias, bias]) / 2
    table, biases = np.zeros((ngrams.shape[1], classes)), np.full(classes, bias.min() - 1)
    table[:, fitted.classes_], biases[fitted.classes_] = weights.T * rarity[:, None], bias
    return LinearSvm(table, biases, len(labels))


def add_ngram_logits(run: Run, trainer: RunTrainer, svm: LinearSvm, rows: Any, layer: Any) -> None:
    """Add a linear classifier to a model's logits, scaled to fit tokenized validation rows, and record accuracies."""
    model: Any = trainer.model
    output = trainer.predict(rows, metric_key_prefix="eval")
    labels, deep = (torch.as_tensor(each) for each in labels_and_predictions(output))
    ngrams, _ = ngrams_of(model.wide, rows.select(evaluation_order(rows)), trainer.data_collator)
    parts = [deep.double(), torch.as_tensor(ngrams @ svm.table + svm.bias)]
    scales = fit_scales(parts, labels)
    scale_logits(model, layer, scales[0])  # the table is still 0
    with torch.no_grad():
        layer.bias.add_(torch.as_tensor(svm.bias).to(layer.bias) * scales[1])
        table = model.wide.ngram_logits.weight
        table.copy_(torch.as_tensor(svm.table).to(table) * scales[1])
    logits = {"stack": parts[0], "svm": parts[1], "both": scales[0] * parts[0] + scales[1] * parts[1]}
    right = {name: (each.argmax(dim=1) == labels).double().mean().item() for name, each in logits.items()}
    run.details["ngram_logits"] = {"rows": svm.rows, "scales": scales, **right}
    report(
        f"A linear classifier on n-grams of up to {model.wide.max_ngram} tokens is added to the logits. Validation "
        f"accuracy: {right['stack']:.1%} without it, {right['svm']:.1%} by itself, {right['both']:.1%} together."
    )
