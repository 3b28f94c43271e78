"""What is known of an embedded corpus: it is described where it is made, and loading, cards and messages read that."""

from collections.abc import Callable
from dataclasses import dataclass

from datasets import DatasetDict


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """A corpus made from installed packages.

    Attributes:
        name: What messages and cards call it.
        identifier: The same as one word.
        description: What it is, in a sentence.
        license: Its license.
        languages: Codes of its languages.
        limits: What a model trained on nothing else cannot do.
        load: Makes its splits.
    """

    name: str
    identifier: str
    description: str
    license: str
    languages: list[str]
    limits: str
    load: Callable[[], DatasetDict]


def language_code(locale: str) -> str:
    """Return the language of a locale."""
    return locale.replace("-", "_").split("_")[0]
