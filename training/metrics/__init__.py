"""Metrics that need no network: `evaluate` modules, and the functions a Trainer calls."""

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
from .modules import (
    F1,
    Accuracy,
    Bleu,
    Chrf,
    ExactMatch,
    Perplexity,
    Ter,
    perplexity,
    sacrebleu_signatures,
)
from .text_sizes import TextSizes

__all__ = [
    "F1",
    "Accuracy",
    "Bleu",
    "Chrf",
    "ComputeMetrics",
    "ExactMatch",
    "Perplexity",
    "Ter",
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
