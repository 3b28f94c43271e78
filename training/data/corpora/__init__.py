"""Data made from what is installed: no download, and the same for the same seed."""

from .cldr_translation import DEFAULT_KINDS, cldr_translation, unseen_examples
from .kinds import KINDS
from .language_names import LANGUAGES, language_names
from .standard_library import standard_library

__all__ = [
    "DEFAULT_KINDS",
    "KINDS",
    "LANGUAGES",
    "cldr_translation",
    "language_names",
    "standard_library",
    "unseen_examples",
]
