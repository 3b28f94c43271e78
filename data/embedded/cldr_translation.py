"""The embedded translation corpus: dates, times, numbers, amounts and units as the Unicode CLDR writes them."""

import re
from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Any

from babel import Locale, UnknownLocaleError
from datasets import Dataset, DatasetDict

from .corpora import Corpus, language_code
from .kinds import KINDS, PATTERN_KINDS, Kind

DEFAULT_KINDS = tuple(PATTERN_KINDS)
MIN_SIZE = 100
PATIENCE = 2_000  # draws in a row without a new pair after which a kind counts as exhausted


def translation_corpus(data_args: Any) -> Corpus:
    """Describe the corpus that the data arguments ask for."""
    source, target = data_args.source_locale, data_args.target_locale
    return Corpus(
        name=f"Unicode CLDR formats, {source} to {target}",
        identifier="unicode-cldr-formats",
        description=(
            "Dates, times, numbers, amounts of money and units as the Unicode CLDR writes them in the two locales, "
            "drawn at random by the package from the data that comes with Babel."
        ),
        license="Unicode License v3",
        languages=list(dict.fromkeys(map(language_code, (source, target)))),
        limits="It knows only formats (dates, times, numbers, amounts, units), and translates no sentences.",
        load=partial(cldr_translation, source, target, size=data_args.embedded_size, seed=data_args.split_seed),
    )


def cldr_translation(
    source: str = "en", target: str = "de", *, size: int = 30_000, seed: int = 0, kinds: Sequence[str] = DEFAULT_KINDS
) -> DatasetDict:
    """Return pairs of texts that say the same in two locales: columns `source`, `target`, `kind`.

    The corpus is a function of the source: a text that two formats of its kind, or two drawn values, would translate
    differently is left out ("May 6, 1991" is both the long and the medium date in English). The splits have no source
    in common; validation and test have a thirtieth of the pairs each. Spaces that must not break are written as plain
    spaces, so that what is typed on a keyboard looks like what was learned.

    Args:
        source: Locale of the source texts, as Babel names it: `en`, `pt_BR`, `zh_Hans` (`pt-BR` works too).
        target: Locale of the target texts.
        size: Pairs in all splits together.
        seed: The same seed (and Babel version) gives the same corpus.
        kinds: Names in `KINDS`; the default leaves out those that must be memorized (territories ...).

    Raises:
        ValueError: For an unknown locale or kind, a size below 100, or kinds that have fewer pairs than `size`.
    """
    locales = _locale("source", source), _locale("target", target)
    if locales[0] == locales[1]:
        raise ValueError(f"source and target are the same locale, {source!r}: nothing to translate")
    if not isinstance(size, int) or size < MIN_SIZE:
        raise ValueError(f"size={size!r}: a corpus has at least {MIN_SIZE} pairs")
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown or not kinds:
        raise ValueError(f"kinds={list(kinds)}: choose from {', '.join(KINDS)}")
    rows = _collect({kind: KINDS[kind](*locales) for kind in kinds}, *locales, size=size, seed=seed)
    held_out = size // 30
    parts = {"train": rows[2 * held_out :], "validation": rows[:held_out], "test": rows[held_out : 2 * held_out]}
    return DatasetDict({name: Dataset.from_list(part) for name, part in parts.items()})


def unseen_examples(dataset: DatasetDict, count: int = 10) -> list[dict[str, str]]:
    """Return `count` rows of the test split for a demonstration: of every kind in turn, the longest text first.

    Texts that are the same in both languages are passed over. There are fewer rows when the split has not enough.
    """
    ranked: dict[str, list[dict[str, str]]] = {kind: [] for kind in KINDS}
    for row in sorted(dataset["test"], key=lambda row: -len(row["source"])):
        if row["source"] != row["target"]:
            ranked[row["kind"]].append(row)
    present = [rows for rows in ranked.values() if rows]
    turns = -(-count // max(1, len(present)))
    # A kind's second row is taken from the middle of its lengths, and so on: formats differ in length.
    chosen = (rows[turn * len(rows) // turns] for turn in range(turns) for rows in present)
    return list({row["source"]: row for row in chosen}.values())[:count]


def _locale(side: str, name: str) -> Locale:
    try:
        return Locale.parse(name.replace("-", "_"))
    except (UnknownLocaleError, ValueError, TypeError, AttributeError):
        raise ValueError(
            f"{side} locale {name!r} is not one that Babel knows: use a CLDR name such as en, de, pt_BR, zh_Hans"
        ) from None


class _Pairs(dict[str, dict[str, str]]):
    """Rows by source text; a source met with two translations is struck out for good."""

    def __init__(self, source: Locale, target: Locale):
        super().__init__()
        self.source, self.target = source, target
        self.ambiguous: set[str] = set()

    def draw(self, name: str, kind: Kind, rng: Random) -> bool:
        """Draw one value in one format; return whether that made a new row."""
        value, write = kind.draw(rng), rng.choice(kind.formats)
        text = _plain(write(value, self.source))
        rivals = [other for other in kind.formats if _plain(other(value, self.source)) == text]
        translations = {_plain(rival(value, self.target)) for rival in rivals}
        if text in self:
            translations.add(self[text]["target"])
        if len(translations) > 1:
            self.ambiguous.add(text)
            self.pop(text, None)
        if text in self or text in self.ambiguous:
            return False
        self[text] = {"source": text, "target": translations.pop(), "kind": name}
        return True


def _plain(text: str) -> str:
    return re.sub(r"\s", " ", text)


def _collect(kinds: dict[str, Kind], source: Locale, target: Locale, *, size: int, seed: int) -> list[dict[str, str]]:
    """Draw rows of each kind in turn until there are `size`, and shuffle them."""
    rng = Random(f"{source}-{target}-{seed}")
    pairs, active = _Pairs(source, target), {name: kind for name, kind in kinds.items() if kind.formats}
    while len(pairs) < size and active:
        for name, kind in list(active.items()):
            if not any(pairs.draw(name, kind, rng) for _ in range(PATIENCE)):
                del active[name]
    if len(pairs) < size:
        raise ValueError(f"size={size}: the kinds {', '.join(kinds)} have no more than {len(pairs)} pairs")
    rows = list(pairs.values())
    rng.shuffle(rows)
    return rows[:size]
