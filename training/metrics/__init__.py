"""Metrics that need no network: scores as functions and as `evaluate` metrics, and the functions a Trainer calls."""

from .compute import (
    ComputeMetrics,
    classification_metrics,
    language_model_metrics,
    metrics,
    pretraining_metrics,
    pretraining_scores,
    token_scores,
    translation_metrics,
)
from .functions import perplexity, sacrebleu_signatures
from .modules import Metric
from .text_sizes import TextSizes

__all__ = [
    "ComputeMetrics",
    "Metric",
    "TextSizes",
    "classification_metrics",
    "language_model_metrics",
    "metrics",
    "perplexity",
    "pretraining_metrics",
    "pretraining_scores",
    "sacrebleu_signatures",
    "token_scores",
    "translation_metrics",
]
