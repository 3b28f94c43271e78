"""Data made from what is installed: no download, and the same for the same seed."""

from collections.abc import Callable
from typing import Any

from ..tasks import TaskName
from .cldr_translation import DEFAULT_KINDS, cldr_translation, translation_corpus, unseen_examples
from .corpora import (
    LANGUAGES,
    Corpus,
    classification_corpus,
    digits,
    digits_corpus,
    language_model_corpus,
    language_names,
    standard_library,
)
from .kinds import KINDS

CORPORA: dict[TaskName, Callable[[Any], Corpus]] = {
    "translation": translation_corpus,
    "causal": language_model_corpus,
    "masked": language_model_corpus,
    "mlm+nsp": language_model_corpus,
    "classification": classification_corpus,
    "image_classification": digits_corpus,
    "masked_image": digits_corpus,
}


def embedded_corpus(data_args: Any, task: TaskName) -> Corpus:
    """Return the corpus of a task."""
    return CORPORA[task](data_args)


__all__ = [
    "CORPORA",
    "DEFAULT_KINDS",
    "KINDS",
    "LANGUAGES",
    "Corpus",
    "cldr_translation",
    "digits",
    "embedded_corpus",
    "language_names",
    "standard_library",
    "unseen_examples",
]
