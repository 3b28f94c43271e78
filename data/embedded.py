"""Data made from installed packages, without a download and the same for the same seed.

Source text of Python's standard library, names in 20 languages, handwritten digits, and pairs of texts in two locales;
`corpora.yaml` describes each for loading, cards and messages.
"""

import io
import os
import re
import sysconfig
from collections import defaultdict
from collections.abc import Callable
from datetime import date, timedelta
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, get_args

import numpy as np
import yaml
from babel import Locale, dates, numbers
from datasets import ClassLabel, Dataset, DatasetDict, Features, Image, Value

from .cldr import cldr_translation, parted
from .tasks import ImageObjective, Objective, Source, TaskName

SOURCES = yaml.safe_load(Path(__file__).with_name("corpora.yaml").read_text(encoding="utf-8"))
LANGUAGES = tuple(SOURCES["language_names"]["languages"])
# Tests are as large as the rest and repetitive, encodings are tables; the others are programs and installed packages.
LEFT_OUT = {"test", "tests", "encodings", "idlelib", "turtledemo", "site-packages", "dist-packages", "__pycache__"}
BRIGHTEST = 16  # the value of white in the digits


def standard_library(*, seed: int = 0, max_characters: int = 4_000_000) -> DatasetDict:
    """Return source files of the standard library: columns `text`, `path`; train/validation/test split by file."""
    folder = Path(sysconfig.get_path("stdlib"))
    paths: list[Path] = []
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in LEFT_OUT]  # os.walk does not enter the others
        paths += [Path(parent, name) for name in files if name.endswith(".py")]
    paths.sort(key=lambda path: path.relative_to(folder).as_posix())  # whatever the order of the file system
    if not paths:
        raise FileNotFoundError(f"{folder} holds no .py files: this Python has no sources of its standard library")
    Random(f"standard-library-{seed}").shuffle(paths)
    rows, size = [], 0
    for path in paths:
        if size + path.stat().st_size > max_characters:  # a file has no more characters than bytes
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except (UnicodeDecodeError, OSError):
            continue
        if text.strip():
            rows.append({"text": text, "path": path.relative_to(folder).as_posix()})
            size += len(text)
    if len(rows) < 3:
        raise ValueError(f"max_characters={max_characters!r} leaves {len(rows)} files, fewer than the three splits")
    parts = parted(rows, max(1, len(rows) // 20))
    return DatasetDict({name: Dataset.from_list(part) for name, part in parts.items()})


def language_names(*, seed: int = 0) -> DatasetDict:
    """Return CLDR display names with their language: columns `text`, `label` (a `ClassLabel` of 20 locales).

    Names that occur in two of the locales, in any case, are left out. A tenth of each language's names is validation
    data, a tenth test data.
    """
    owners: dict[str, set[str]] = defaultdict(set)
    spellings: dict[str, str] = {}
    for language in LANGUAGES:
        locale = Locale.parse(language)
        calendar = [*locale.months["format"]["wide"].values(), *locale.days["format"]["wide"].values()]
        for name in (*locale.territories.values(), *locale.languages.values(), *locale.currencies.values(), *calendar):
            if any(character.isalpha() for character in name):
                owners[name.casefold()].add(language)
                spellings.setdefault(name.casefold(), name)
    rng = Random(f"language-names-{seed}")
    parts: dict[str, list[dict[str, object]]] = {"train": [], "validation": [], "test": []}
    for label, language in enumerate(LANGUAGES):
        names = sorted(spellings[folded] for folded, found in owners.items() if found == {language})
        rng.shuffle(names)
        rows: list[dict[str, object]] = [{"text": name, "label": label} for name in names]
        for split, part in parted(rows, len(names) // 10).items():
            parts[split] += part
    features = Features({"text": Value("string"), "label": ClassLabel(names=[*LANGUAGES])})
    for rows in parts.values():
        rng.shuffle(rows)
    return DatasetDict({name: Dataset.from_list(rows, features=features) for name, rows in parts.items()})


def digits(*, seed: int = 0) -> DatasetDict:
    """Return the digits with their classes: columns `image` and `label`; a tenth is validation, a tenth test data."""
    from sklearn.datasets import load_digits  # imported here because most runs need neither

    from .images import pillow

    def png(image: np.ndarray) -> bytes:
        stream = io.BytesIO()
        pillow().fromarray((image * 255 / BRIGHTEST).round().astype(np.uint8)).save(stream, "PNG")
        return stream.getvalue()

    found = load_digits()
    order = np.random.default_rng(seed).permutation(len(found.target))
    features = Features({"image": Image(), "label": ClassLabel(names=list(map(str, range(10))))})
    splits = DatasetDict()
    for name, rows in parted(order, len(order) // 10).items():
        images = [{"bytes": png(found.images[row]), "path": f"{row}.png"} for row in rows.tolist()]
        columns = {"image": images, "label": found.target[rows].tolist()}
        splits[name] = Dataset.from_dict(columns, features=features)
    return splits


FRAMES = tuple(Path(__file__).with_name("phrases.txt").read_text(encoding="utf-8").splitlines())
"""Phrases with blanks to fill in; words and punctuation marks are separated by spaces."""


def tagged_phrases(*, seed: int = 0, size: int = 4_000) -> DatasetDict:
    """Return phrases: columns `tokens` and `tags`, words separated by spaces; a tenth is validation, a tenth test.

    No name of a country or language, and no phrase, occurs in two of the splits. Punctuation marks are separate
    words, as for BERT, so that pipelines find the same words.
    """
    locale, rng = Locale.parse("en"), Random(f"tagged-phrases-{seed}")
    names = {"PLACE": sorted(set(locale.territories.values())), "LANGUAGE": sorted(set(locale.languages.values()))}
    draw: dict[str, Callable[[], str]] = {
        "DATE": lambda: dates.format_date(
            date(1950, 1, 1) + timedelta(days=rng.randrange(36_500)), rng.choice(("full", "long", "medium")), locale
        ),
        "NUMBER": lambda: numbers.format_decimal(rng.randrange(2, 10 ** rng.randint(1, 7)), locale=locale),
        "MONEY": lambda: numbers.format_currency(
            rng.randrange(1, 10 ** rng.randint(2, 8)) / 100, rng.choice(("USD", "EUR", "GBP", "JPY")), locale=locale
        ),
    }
    for found in names.values():
        rng.shuffle(found)
    splits, seen = DatasetDict(), set[str]()
    for split, first, last in (("train", 0.0, 0.8), ("validation", 0.8, 0.9), ("test", 0.9, 1.0)):
        here = {name: found[int(first * len(found)) : int(last * len(found))] for name, found in names.items()}
        rows: dict[str, list[str]] = {"tokens": [], "tags": []}
        while len(rows["tokens"]) < round((last - first) * size):
            pairs: list[tuple[str, str]] = []
            for word in rng.choice(FRAMES).split():
                kind = word.strip("{}")
                value = word if kind == word else rng.choice(here[kind]) if kind in here else draw[kind]()
                parts = re.findall(r"\w+|[^\w\s]", value)
                tags = ["O"] if kind == word else [f"{'I' if number else 'B'}-{kind}" for number in range(len(parts))]
                pairs += zip(parts, tags)
            tokens, labels = (" ".join(side) for side in zip(*pairs))
            if tokens not in seen:
                seen.add(tokens)
                rows["tokens"].append(tokens)
                rows["tags"].append(labels)
        splits[split] = Dataset.from_dict(rows)
    return splits


def with_seed(load: Callable[..., DatasetDict]) -> Callable[[Any], Source]:
    """Return the function from data arguments to a corpus; only its split depends on them."""
    return lambda data_args: Source(**SOURCES[load.__name__], load=partial(load, seed=data_args.split_seed))


def translation_corpus(data_args: Any) -> Source:
    source, target = data_args.source_locale, data_args.target_locale
    return Source(
        **SOURCES["cldr_translation"],
        name=f"Unicode CLDR formats, {source} to {target}",
        languages=list(dict.fromkeys(locale.replace("-", "_").split("_")[0] for locale in (source, target))),
        load=partial(cldr_translation, source, target, size=data_args.embedded_size, seed=data_args.split_seed),
    )


CORPORA: dict[TaskName, Callable[[Any], Source]] = {
    "translation": translation_corpus,
    **dict.fromkeys(get_args(Objective), with_seed(standard_library)),
    "classification": with_seed(language_names),
    "token_classification": with_seed(tagged_phrases),
    **dict.fromkeys(get_args(ImageObjective), with_seed(digits)),
}
"""By task: the function that describes the corpus for data arguments."""
