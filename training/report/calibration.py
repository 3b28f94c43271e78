"""Temperature scaling: a classifier whose probabilities say how often it is right (Guo et al. 2017).

The logits z become z / T, with the one T that makes the labels of the validation data likeliest. The division is done
in the weights of the output layer, so that pipelines, conversions and other engines have it too; which class is the
likeliest does not depend on T.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from scipy.optimize import minimize
from torch import nn

from vanillaformer.console.reporting import report

from ..run_folder.run import Run
from ..trainer.trainer import RunTrainer
from .predictions import labels_and_predictions

MIN_ROWS = 50
"""Validation rows below which nothing is fitted."""
MAX_TEMPERATURE = 20.0
"""Temperatures are between its inverse and this."""
BINS = 15
THRESHOLDS = (0.5, 0.7, 0.9)
OUTPUT_LAYERS = ("classifier", "score")
"""Names of a classifier's last layer, in our models and most others."""


def calibrate(run: Run, trainer: RunTrainer, rows: Dataset | None) -> None:
    """Fit a temperature on tokenized validation rows, divide the model's logits by it, and note the effect."""
    layer = output_layer(trainer.model)
    if obstacle := obstacle_to_fitting(trainer, rows, layer):
        report(f"The probabilities are not calibrated: {obstacle}.")
        return
    output = trainer.predict(rows, metric_key_prefix="eval")  # type: ignore[arg-type]
    labels, logits = (torch.as_tensor(each) for each in labels_and_predictions(output))
    temperature = fit_temperature(logits, labels)
    assert layer is not None
    scale_logits(trainer.model, layer, 1 / temperature)
    before, after = (reliability(logits / divisor, labels) for divisor in (1.0, temperature))
    run.details["calibration"] = {"temperature": temperature, "rows": len(labels), "before": before, **after}
    report(
        f"Calibrated on {len(labels):,} validation rows: temperature {temperature:.3g}, expected calibration error "
        f"{before['calibration_error']:.3f} before and {after['calibration_error']:.3f} after, negative "
        f"log-likelihood {before['nll']:.3f} and {after['nll']:.3f}."
    )


def obstacle_to_fitting(trainer: RunTrainer, rows: Dataset | None, layer: Any) -> str | None:
    """Return why nothing can be fitted to a model's logits, if that is so."""
    if rows is None or len(rows) < MIN_ROWS:
        return f"{0 if rows is None else len(rows)} validation rows are fewer than {MIN_ROWS}"
    if layer is None:
        return f"{type(trainer.model).__name__} does not end in a linear layer ({', '.join(OUTPUT_LAYERS)})"
    if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
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


def fit_temperature(logits: torch.Tensor, labels: torch.Tensor) -> float:
    """Return the T for which the labels (n) are likeliest under `softmax(z / T)`, z being the logits (n, classes)."""
    return 1 / fit_scales([logits], labels)[0]


def fit_scales(parts: Sequence[torch.Tensor], labels: torch.Tensor) -> list[float]:
    """Return the factors s for which the labels are likeliest under `softmax(Σ_i s_i z_i)`.

    The negative log-likelihood is convex in s. The targets t leave the probability 1/(n + 2) to the other classes, as
    those of Platt (1999) do: without that, s would be infinite for a model that is always right. The logits z_i of
    each part of a model are (n, classes), the labels (n).
    """
    z = torch.stack([part.double() for part in parts])
    doubt = 1 / (len(labels) + 2)
    targets = torch.full_like(z[0], doubt / (z.shape[2] - 1)).scatter(1, labels[:, None], 1 - doubt)

    def loss_and_slope(scales: np.ndarray) -> tuple[float, np.ndarray]:
        scores = torch.einsum("i,inc->nc", torch.as_tensor(scales), z).log_softmax(1)
        slope = ((scores.exp() - targets) * z).sum(2).mean(1)
        return -(targets * scores).sum(1).mean().item(), slope.numpy()

    lowest = 1 / MAX_TEMPERATURE if len(parts) == 1 else 0.0  # the only part has to count
    bounds = [(lowest, MAX_TEMPERATURE)] * len(parts)
    options = {"ftol": 1e-15, "gtol": 1e-9}
    return minimize(
        loss_and_slope, np.ones(len(parts)), jac=True, method="L-BFGS-B", bounds=bounds, options=options
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


def accepted_in_words(calibration: Mapping[str, Any]) -> str:
    """Return what is left of the validation data, and how much of it is right, if unlikely labels are rejected."""
    return "; ".join(
        f"at least {threshold}: {kept['rows']:.1%} of the rows"
        + ("" if kept["accuracy"] is None else f", accuracy {kept['accuracy']:.1%}")
        for threshold, kept in calibration["accepted"].items()
    )
