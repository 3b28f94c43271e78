"""The tokenizer algorithms: each is a function from texts and options to a trained `tokenizers.Tokenizer`.

The algorithms are those of the tokenizers library. What is added here is the pipeline around them, the exact limit on
the vocabulary, and equal results for equal texts: the library visits words in random order, which shows in the
vocabularies of WordPiece and Unigram and in every alphabet it has to cut.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers.normalizers import Normalizer

from .options import TokenizerAlgorithm, TrainingOptions
from .passages import StoredTexts, passages

WORD_OR_SYMBOL = Regex(r"\w+|[^\w\s]")
WORD = Regex("\\w+(?:['\u2019]\\w+)*")  # with its apostrophes
ANY_CHARACTER = Regex(r"[\s\S]")
SPACE = "▁"  # U+2581 stands for the space in front of a word
CONTINUATION = "##"  # in front of a piece that continues a word
OTHER_WHITESPACE = Regex(r"\s+")  # what is left of white space once each space has become SPACE

# WordPiece gives up on longer words, and its time grows with the cube of their length: they are cut into parts.
LONGEST_WORD = 100
PART_OF_WORD = Regex(rf"[\s\S]{{{LONGEST_WORD}}}")
WORD_CHARACTER = r"[^\s\p{P}$+<=>^`|~]"

CONTRACTED = r"(?i:s|t|m|d|re|ve|ll)\b"
CHINESE = r"[\p{Han}\u3000-\u303f\uff00-\uffef]"
UNNATURAL_SPACES = (
    r" (?=[.,!?;:%)\]}…])",  # before closing punctuation
    r"(?<=[(\[{¿¡]) ",  # after opening punctuation
    rf"(?<=\w) (?=' {CONTRACTED})|(?<=\w ') (?={CONTRACTED})",  # in "it's" and "don't"
    rf"(?<={CHINESE}) | (?={CHINESE})",  # next to Chinese
    rf"(?<={WORD_CHARACTER}{{{LONGEST_WORD}}}) (?={WORD_CHARACTER})",  # between the parts of a long word
)


def byte_level_bpe(texts: Iterable[str], options: TrainingOptions) -> Tokenizer:
    """Byte-pair encoding over the 256 bytes, as in GPT-2: any text is encoded and decoded without loss."""
    options.require_room(256, "the 256 bytes")
    tokenizer = Tokenizer(models.BPE())
    if options.lowercase:
        tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if options.split_digits:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*digits(options), tokenizer.pre_tokenizer])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), **trainer_arguments(options))
    tokenizer.train_from_iterator(passages(texts), trainer)
    return tokenizer


def bpe(texts: Iterable[str], options: TrainingOptions) -> Tokenizer:
    """Byte-pair encoding over characters, spaces as `▁`: lossless for known characters except `▁` itself."""
    tokenizer = space_keeping(models.BPE(unk_token=options.unk_token, fuse_unk=True), options)
    return _train_on_limited_texts(tokenizer, texts, trainers.BpeTrainer(**trainer_arguments(options)), options)


def unigram(texts: Iterable[str], options: TrainingOptions) -> Tokenizer:
    """Unigram language model (Kudo, 2018), spaces as `▁`: lossless for known characters except `▁` itself."""
    arguments = trainer_arguments(options)
    del arguments["min_frequency"]  # it has no such option
    trainer = trainers.UnigramTrainer(unk_token=options.unk_token, **arguments)
    trained = _train_on_limited_texts(space_keeping(models.Unigram(), options), texts, trainer, options)
    pieces = json.loads(trained.to_str())["model"]["vocab"][len(options.special_tokens) :]
    special = [(token, 0.0) for token in options.special_tokens]
    unknown = options.special_tokens.index(options.unk_token)
    model = models.Unigram([*special, *_settled(pieces, options.room)], unk_id=unknown)
    tokenizer = space_keeping(model, options)
    tokenizer.add_special_tokens(added_tokens(options))
    return tokenizer


def wordpiece(texts: Iterable[str], options: TrainingOptions) -> Tokenizer:
    """WordPiece with BERT's normalizer and pre-tokenizer; pieces inside a word start with `##`.

    Every character of the vocabulary can also continue a word, so no word of known characters is unknown.
    """
    tokenizer = bert(models.WordPiece(unk_token=options.unk_token), options)
    normalized, symbols = limited_symbols(passages(texts), tokenizer, options)
    trained = Tokenizer(models.WordPiece(unk_token=options.unk_token))
    # Digits are set apart in training only. As there are no longer pieces of digits, encoding separates them too,
    # but as parts of one word, so that decoding puts no spaces between them.
    trained.pre_tokenizer = pre_tokenizers.Sequence([tokenizer.pre_tokenizer, *digits(options)])
    # Named beforehand, the `##` symbols get fixed ids; left to the trainer, ids follow its random order of words.
    continuations = [symbol for symbol in symbols if symbol.startswith(CONTINUATION)]
    arguments = trainer_arguments(options) | {"special_tokens": [*options.special_tokens, *continuations]}
    trainer = trainers.WordPieceTrainer(continuing_subword_prefix=CONTINUATION, **arguments)
    trained.train_from_iterator(normalized, trainer)
    tokenizer.model = models.WordPiece(trained.get_vocab(with_added_tokens=False), unk_token=options.unk_token)
    tokenizer.add_special_tokens(added_tokens(options))
    return tokenizer


def word(texts: Iterable[str], options: TrainingOptions) -> Tokenizer:
    """Whole words in basic English form: always lower case, each punctuation mark a token, other words unknown.

    With `split_digits` each digit is a word, and decoding puts spaces between them. With `strip_punctuation` there are
    no punctuation marks, and an apostrophe is part of its word.
    """
    tokenizer = Tokenizer(models.WordLevel(unk_token=options.unk_token))
    tokenizer.normalizer = normalizers.Lowercase()
    pattern = WORD if options.strip_punctuation else WORD_OR_SYMBOL
    words = pre_tokenizers.Split(pattern, "removed", invert=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, *digits(options)])
    tokenizer.decoder = natural_decoder()
    tokenizer.train_from_iterator(passages(texts), trainers.WordLevelTrainer(**trainer_arguments(options)))
    return tokenizer


def character(texts: Iterable[str], options: TrainingOptions) -> Tokenizer:
    """Every character is a token, white space too: lossless for the characters of the vocabulary."""
    tokenizer = Tokenizer(models.WordLevel(unk_token=options.unk_token))
    if options.lowercase:
        tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Split(ANY_CHARACTER, "isolated")
    tokenizer.decoder = decoders.Fuse()
    trainer = trainers.WordLevelTrainer(**trainer_arguments(options, min_frequency=1))
    tokenizer.train_from_iterator(passages(texts), trainer)
    return tokenizer


def chinese_character(texts: Iterable[str], options: TrainingOptions) -> Tokenizer:
    """Every character is a token, with BERT's normalizer: Chinese characters and punctuation are separate.

    Runs of other letters and digits are split into characters too, marked with `##` inside a run, so that no word is
    unknown and decoding joins them again. White space is not kept: decoding puts one space between runs and none
    next to Chinese.
    """
    tokenizer = bert(models.WordPiece(unk_token=options.unk_token), options)
    _, symbols = limited_symbols(passages(texts), tokenizer, options, options.min_frequency or 1)
    vocab = {token: index for index, token in enumerate([*options.special_tokens, *symbols])}
    tokenizer.model = models.WordPiece(vocab, unk_token=options.unk_token)
    tokenizer.add_special_tokens(added_tokens(options))
    return tokenizer


def trainer_arguments(options: TrainingOptions, min_frequency: int = 2) -> dict[str, Any]:
    """Return the arguments that all trainers share; `min_frequency` is the algorithm's default."""
    return {
        "vocab_size": options.vocab_size,
        "min_frequency": options.min_frequency or min_frequency,
        "special_tokens": added_tokens(options),
        "show_progress": options.show_progress,
    }


def _train_on_limited_texts(
    tokenizer: Tokenizer, texts: Iterable[str], trainer: trainers.Trainer, options: TrainingOptions
) -> Tokenizer:
    """Train on texts that are normalized already and have no more characters than the vocabulary has room for."""
    normalizer = tokenizer.normalizer
    options.require_room(2, f"'{SPACE}' and one character")
    stored, counts = normalize(texts, normalizer)
    normalized = without(by_frequency(counts, first=SPACE)[options.room :], stored)
    tokenizer.normalizer = None
    tokenizer.train_from_iterator(passages(normalized), trainer)  # a text's start is marked already
    tokenizer.normalizer = normalizer
    return tokenizer


def _settled(pieces: list[tuple[str, float]], room: int) -> list[tuple[str, float]]:
    """Return the best pieces of a trained Unigram vocabulary without traces of the random order of words.

    These are the last digits of the scores, the order of equal scores, and the scores of characters too rare to have
    their own (the trainer spreads them upward from the lowest score in steps of 1e-4).
    """
    lowest = min((score for _, score in pieces), default=0.0)
    rare = lowest + 1e-4 * sum(len(piece) == 1 for piece, _ in pieces)
    scores = {piece: round(lowest if len(piece) == 1 and score <= rare else score, 4) for piece, score in pieces}
    ranked = sorted(scores, key=lambda piece: (-scores[piece], piece))
    characters = [piece for piece in ranked if len(piece) == 1]
    longer = [piece for piece in ranked if len(piece) > 1][: room - len(characters)]
    kept = {*characters, *longer}
    return [(piece, scores[piece]) for piece in ranked if piece in kept]


def limited_symbols(
    texts: Iterable[str], tokenizer: Tokenizer, options: TrainingOptions, min_frequency: int = 1
) -> tuple[Iterator[str], list[str]]:
    """Return the normalized texts without the characters that the vocabulary has no room for, and the words' symbols.

    The symbols are the characters, most frequent first, each followed by its `##` form if it can stand inside a word.
    """

    def words(text: str) -> list[str]:
        return [w for w, _ in tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalizer.normalize_str(text))]

    options.require_room(2, f"one character with its '{CONTINUATION}' form")
    normalized, counts = normalize(texts, tokenizer.normalizer)
    symbols: list[str] = []
    dropped: list[str] = []
    for character in by_frequency(counts, min_frequency=min_frequency):
        forms = [character] if words(character) == [character] else []  # none of white space
        if forms and words("a" + character) == ["a" + character]:  # a letter; others are separate words
            forms.append(CONTINUATION + character)
        if not dropped and len(symbols) + len(forms) <= options.room:
            symbols.extend(forms)
        elif forms:
            dropped.append(character)
    return without(dropped, normalized), symbols


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


# ------------------------------------------------------ around an algorithm: normalizer, pre-tokenizer, decoder
def space_keeping(model: models.Model, options: TrainingOptions) -> Tokenizer:
    """A tokenizer that turns each space into `▁`, puts one in front of the text, and undoes both when decoding.

    The normalizer puts the front one there: `Metaspace` itself does not distinguish " a" from "a".
    """
    tokenizer = Tokenizer(model)
    lowercase = [normalizers.Lowercase()] if options.lowercase else []
    spaces = [normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)]
    tokenizer.normalizer = normalizers.Sequence([*lowercase, *spaces])
    words = pre_tokenizers.Metaspace(SPACE, prepend_scheme="never", split=True)
    lines = pre_tokenizers.Split(OTHER_WHITESPACE, "isolated")
    # The names of control tokens in a text are split, so that no piece is one
    names = "|".join(rf"{re.escape(token[0])}(?={re.escape(token[1:])})" for token in options.control_tokens)
    control = pre_tokenizers.Split(Regex(names), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([control, words, lines, *digits(options)])
    tokenizer.decoder = decoders.Metaspace(SPACE, prepend_scheme="always")
    if options.declared_tokens:  # the text after each of them begins with `▁` too
        after = "|".join(rf"(?<={re.escape(token)}) " for token in options.declared_tokens)
        removal = decoders.Replace(Regex(after), "")
        tokenizer.decoder = decoders.Sequence([tokenizer.decoder, decoders.Fuse(), removal])
    return tokenizer


def bert(model: models.Model, options: TrainingOptions) -> Tokenizer:
    """BERT's pipeline: Chinese characters and punctuation separate, accents removed when lower-casing."""
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=options.lowercase)
    parts = pre_tokenizers.Split(PART_OF_WORD, "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.BertPreTokenizer(), parts])
    tokenizer.decoder = natural_decoder()
    return tokenizer


def digits(options: TrainingOptions) -> list[pre_tokenizers.PreTokenizer]:
    return [pre_tokenizers.Digits(individual_digits=True)] if options.split_digits else []


def natural_decoder() -> decoders.Decoder:
    """Join words with spaces and word pieces without, then remove the spaces that nobody would write."""
    removals = [decoders.Replace(Regex(spaces), "") for spaces in UNNATURAL_SPACES]
    return decoders.Sequence([decoders.WordPiece(prefix=CONTINUATION, cleanup=False), decoders.Fuse(), *removals])


def added_tokens(options: TrainingOptions) -> list[AddedToken]:
    """Return the special tokens as the library expects them: found in the text before any normalization."""
    return [AddedToken(token, special=True, normalized=False) for token in options.special_tokens]


# A new algorithm is one function above, one line here and one name in `options.TokenizerAlgorithm`.
ALGORITHMS: dict[TokenizerAlgorithm, Callable[[Iterable[str], TrainingOptions], Tokenizer]] = {
    "byte_level_bpe": byte_level_bpe,
    "bpe": bpe,
    "unigram": unigram,
    "wordpiece": wordpiece,
    "word": word,
    "character": character,
    "chinese_character": chinese_character,
}
