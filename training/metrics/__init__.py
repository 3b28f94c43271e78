"""Metrics that need no network: scores, and the functions that a Trainer calls."""

from typing import Any

from .compute import (
    ComputeMetrics,
    TextSizes,
    classification_metrics,
    language_model_metrics,
    pretraining_metrics,
    pretraining_scores,
    token_scores,
    translation_metrics,
)
from .scores import perplexity, sacrebleu_signatures

__all__ = [
    "ComputeMetrics",
    "TextSizes",
    "classification_metrics",
    "language_model_metrics",
    "perplexity",
    "pretraining_metrics",
    "pretraining_scores",
    "sacrebleu_signatures",
    "token_scores",
    "translation_metrics",
]


def __getattr__(name: str) -> Any:
    if name == "Metric":  # only here: no training needs `evaluate`
        from .modules import Metric

        return Metric
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
