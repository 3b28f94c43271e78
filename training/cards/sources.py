"""What a model card says of the data: where they are from, their licence, and what they do not hold."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from babel import Locale, UnknownLocaleError
from huggingface_hub import metadata_load, try_to_load_from_cache

from ..data.arguments import DataArguments
from ..data.corpora import LANGUAGES
from ..tasks import TaskName

NOT_STATED = "not stated"


@dataclass
class Source:
    """The data of a run.

    Attributes:
        name: What to call them.
        identifier: The same as one word, or the id on the Hub.
        description: What they are, in a sentence.
        license: Their licence.
        languages: Codes of the languages, if known.
        on_hub: Whether `identifier` is an id on the Hub.
        limits: What a model that was trained on nothing else cannot do.
    """

    name: str
    identifier: str = "local"
    description: str = ""
    license: str = NOT_STATED
    languages: list[str] = field(default_factory=list)
    on_hub: bool = False
    limits: str = ""


def data_source(data: DataArguments, task: TaskName, name: str) -> Source:
    """Return what is known of the data, whatever the user says of them first.

    Args:
        data: The data arguments.
        task: What the model does.
        name: What to call the data.
    """
    if data.train_file is not None:
        source = Source(name)
    elif data.dataset != "embedded":
        source = _hub_source(data.dataset, name)
    else:
        source = _embedded_source(data, task)
        source.name = name
    source.license = data.data_license or source.license
    source.description = data.data_description or source.description
    return source


def language_name(code: str) -> str:
    """Return the English name of a language, the code itself if it has none."""
    try:
        return Locale.parse(code.replace("-", "_")).english_name or code
    except (ValueError, UnknownLocaleError):
        return code


def _embedded_source(data: DataArguments, task: TaskName) -> Source:
    if task == "translation":
        return Source(
            name="",
            identifier="unicode-cldr-formats",
            description=(
                "Dates, times, numbers, amounts of money and units as the Unicode CLDR writes them in the two "
                "locales, drawn at random by the package from the data that Babel brings along."
            ),
            license="Unicode License v3",
            languages=list(dict.fromkeys(_language(locale) for locale in (data.source_locale, data.target_locale))),
            limits="It knows formats (dates, times, numbers, amounts, units) alone, and translates no sentences.",
        )
    if task == "classification":
        return Source(
            name="",
            identifier="unicode-cldr-names",
            description=(
                f"Names of countries, languages, currencies and the like in {len(LANGUAGES)} locales of the Unicode "
                "CLDR, taken from the data that Babel brings along; the class is the locale."
            ),
            license="Unicode License v3",
            languages=sorted({_language(locale) for locale in LANGUAGES}),
            limits="It has seen single names alone, no running text, and knows no language but those.",
        )
    return Source(
        name="",
        identifier="python-standard-library",
        description="The source text of the standard library of the Python that ran the training, split by file.",
        license="Python Software Foundation License v2 (PSF-2.0)",
        languages=["code", "en"],
        limits="It has seen Python source text alone, with its English comments, and no other code or prose.",
    )


def _hub_source(identifier: str, name: str) -> Source:
    """Return what the card of a data set on the Hub says, if it has been downloaded with the data."""
    found = Source(name, identifier=identifier, on_hub=True)
    card = try_to_load_from_cache(identifier, "README.md", repo_type="dataset") if "/" in identifier else None
    try:
        said: dict[str, Any] = (metadata_load(Path(card)) or {}) if isinstance(card, str) else {}
    except (ValueError, yaml.YAMLError):  # a card that somebody has broken
        said = {}
    found.license = ", ".join(_listed(said.get("license"))) or NOT_STATED
    found.languages = _listed(said.get("language"))
    return found


def _listed(value: Any) -> list[str]:
    return [str(entry) for entry in (value if isinstance(value, list) else [value]) if entry]


def _language(locale: str) -> str:
    return locale.replace("-", "_").split("_")[0]
