"""The embedded classification corpus: in which language is this name of a country, language, currency or month?"""

from collections import defaultdict
from functools import partial
from random import Random
from typing import Any

from babel import Locale
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value

from .corpus import Corpus, language_code

LANGUAGES = (
    *("ar", "cs", "de", "el", "en", "es", "fi", "fr", "hi", "hu"),
    *("it", "ja", "nl", "pl", "pt", "ru", "sv", "tr", "uk", "vi"),
)


def classification_corpus(data_args: Any) -> Corpus:
    """Describe the corpus that the data arguments ask for."""
    return Corpus(
        name="Unicode CLDR names",
        identifier="unicode-cldr-names",
        description=(
            f"Names of countries, languages, currencies and the like in {len(LANGUAGES)} locales of the Unicode CLDR, "
            "taken from the data that comes with Babel; the class is the locale."
        ),
        license="Unicode License v3",
        languages=sorted(set(map(language_code, LANGUAGES))),
        limits="It has seen only single names, no running text, and knows no other language.",
        load=partial(language_names, seed=data_args.split_seed),
    )


def language_names(*, seed: int = 0) -> DatasetDict:
    """Return CLDR display names with their language: columns `text`, `label` (a `ClassLabel` of 20 locales).

    A name that occurs in two of the locales, in whatever case, is left out. A tenth of each language's names is
    validation data, a tenth test data.

    Args:
        seed: The same seed (and Babel version) gives the same splits.
    """
    owners: dict[str, set[str]] = defaultdict(set)
    spellings: dict[str, str] = {}
    for language in LANGUAGES:
        for name in _display_names(Locale.parse(language)):
            owners[name.casefold()].add(language)
            spellings.setdefault(name.casefold(), name)
    rng = Random(f"language-names-{seed}")
    parts: dict[str, list[dict[str, object]]] = {"train": [], "validation": [], "test": []}
    for language in LANGUAGES:
        names = sorted(spellings[folded] for folded, found in owners.items() if found == {language})
        rng.shuffle(names)
        tenth = len(names) // 10
        parts["validation"] += _rows(names[:tenth], language)
        parts["test"] += _rows(names[tenth : 2 * tenth], language)
        parts["train"] += _rows(names[2 * tenth :], language)
    features = Features({"text": Value("string"), "label": ClassLabel(names=list(LANGUAGES))})
    for rows in parts.values():
        rng.shuffle(rows)
    return DatasetDict({name: Dataset.from_list(rows, features=features) for name, rows in parts.items()})


def _display_names(locale: Locale) -> list[str]:
    """Return the locale's names of territories, languages, currencies, months and days that contain letters."""
    calendar = [*locale.months["format"]["wide"].values(), *locale.days["format"]["wide"].values()]
    listed = [*locale.territories.values(), *locale.languages.values(), *locale.currencies.values(), *calendar]
    return [name for name in listed if any(character.isalpha() for character in name)]


def _rows(names: list[str], language: str) -> list[dict[str, object]]:
    return [{"text": name, "label": LANGUAGES.index(language)} for name in names]
