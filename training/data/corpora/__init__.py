"""Data made from what is installed: no download, and the same for the same seed."""

from collections.abc import Callable
from typing import Any

from .cldr_translation import DEFAULT_KINDS, cldr_translation, translation_corpus, unseen_examples
from .corpus import Corpus
from .kinds import KINDS
from .language_names import LANGUAGES, classification_corpus, language_names
from .standard_library import language_model_corpus, standard_library

CORPORA: dict[str, Callable[[Any], Corpus]] = {
    "translation": translation_corpus,
    "language_model": language_model_corpus,
    "classification": classification_corpus,
}


def embedded_corpus(data_args: Any, task: str) -> Corpus:
    """Return the corpus of a task; the objectives of language models share theirs."""
    return CORPORA.get(task, language_model_corpus)(data_args)


__all__ = [
    "CORPORA",
    "DEFAULT_KINDS",
    "KINDS",
    "LANGUAGES",
    "Corpus",
    "cldr_translation",
    "embedded_corpus",
    "language_names",
    "standard_library",
    "unseen_examples",
]
