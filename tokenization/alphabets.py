"""The characters that a vocabulary starts from, and the removal of those for which it has no room."""

from collections import Counter
from collections.abc import Iterable, Iterator

from tokenizers import Tokenizer
from tokenizers.normalizers import Normalizer

from .options import TrainingOptions
from .passages import StoredTexts
from .pipelines import CONTINUATION


def limited_symbols(
    texts: Iterable[str], tokenizer: Tokenizer, options: TrainingOptions, min_frequency: int = 1
) -> tuple[Iterator[str], list[str]]:
    """Return the normalized texts without the characters that the vocabulary has no room for, and the words' symbols.

    The symbols are the characters, most frequent first, each followed by its `##` form if it can stand inside a word.
    """
    options.require_room(2, f"one character with its '{CONTINUATION}' form")
    normalized, counts = normalize(texts, tokenizer.normalizer)
    symbols: list[str] = []
    dropped: list[str] = []
    for character in by_frequency(counts, min_frequency=min_frequency):
        forms = _forms(character, tokenizer)
        if not dropped and len(symbols) + len(forms) <= options.room:
            symbols.extend(forms)
        elif forms:
            dropped.append(character)
    return without(dropped, normalized), symbols


def _forms(character: str, tokenizer: Tokenizer) -> list[str]:
    """`["x", "##x"]` for a letter, `["。"]` for what the pre-tokenizer sets apart, `[]` for white space."""

    def words(text: str) -> list[str]:
        return [w for w, _ in tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalizer.normalize_str(text))]

    if words(character) != [character]:
        return []
    return [character, CONTINUATION + character] if words("a" + character) == ["a" + character] else [character]


def normalize(texts: Iterable[str], normalizer: Normalizer) -> tuple[Iterable[str], Counter[str]]:
    """Return the normalized texts and how often each character occurs in them."""
    counts: Counter[str] = Counter()

    def counted() -> Iterator[str]:
        for text in texts:
            normalized = normalizer.normalize_str(text)
            counts.update(normalized)
            yield normalized

    return StoredTexts(counted()), counts


def by_frequency(counts: Counter[str], first: str = "", min_frequency: int = 1) -> list[str]:
    """Return the characters: the one named first, then the most frequent, equals by code point."""
    kept = (character for character, count in counts.items() if count >= min_frequency)
    return sorted(kept, key=lambda character: (character != first, -counts[character], character))


def without(characters: Iterable[str], texts: Iterable[str]) -> Iterator[str]:
    table = dict.fromkeys(map(ord, characters))
    return (text.translate(table) if table else text for text in texts)
