"""What a model card says about the data: origin, license, languages and gaps."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from babel import Locale, UnknownLocaleError
from huggingface_hub import metadata_load, try_to_load_from_cache

from vanillaformer.data.arguments import DataArguments
from vanillaformer.data.embedded import embedded_corpus
from vanillaformer.data.tasks import TaskName

NOT_STATED = "not stated"


@dataclass
class Source:
    """The data of a run.

    Attributes:
        name: What to call them.
        identifier: The same as one word, or the id on the Hub.
        description: What they are, in a sentence.
        license: Their license.
        languages: Codes of the languages, if known.
        on_hub: Whether `identifier` is an id on the Hub.
        limits: What a model that was trained only on them cannot do.
    """

    name: str
    identifier: str = "local"
    description: str = ""
    license: str = NOT_STATED
    languages: list[str] = field(default_factory=list)
    on_hub: bool = False
    limits: str = ""


def data_source(data_args: DataArguments, task: TaskName, name: str) -> Source:
    """Return what is known about the data; what the user says takes precedence.

    Args:
        data_args: The data arguments.
        task: What the model does.
        name: What to call the data.
    """
    if data_args.train_file is not None:
        source = Source(name)
    elif data_args.dataset != "embedded":
        source = _hub_source(data_args.dataset, name)
    else:
        corpus = embedded_corpus(data_args, task)
        described = corpus.identifier, corpus.description, corpus.license, corpus.languages
        source = Source(name, *described, limits=corpus.limits)
    source.license = data_args.data_license or source.license
    source.description = data_args.data_description or source.description
    return source


def language_name(code: str) -> str:
    """Return the English name of a language, the code itself if it has none."""
    try:
        return Locale.parse(code.replace("-", "_")).english_name or code
    except (ValueError, UnknownLocaleError):
        return code


def _hub_source(identifier: str, name: str) -> Source:
    """Return what the card of a data set on the Hub says, if it has been downloaded with the data."""
    found = Source(name, identifier=identifier, on_hub=True)
    card = try_to_load_from_cache(identifier, "README.md", repo_type="dataset") if "/" in identifier else None
    try:
        card_data: dict[str, Any] = (metadata_load(Path(card)) or {}) if isinstance(card, str) else {}
    except (ValueError, yaml.YAMLError):  # a damaged card
        card_data = {}
    found.license = ", ".join(_listed(card_data.get("license"))) or NOT_STATED
    found.languages = _listed(card_data.get("language"))
    return found


def _listed(value: Any) -> list[str]:
    return [str(entry) for entry in (value if isinstance(value, list) else [value]) if entry]
