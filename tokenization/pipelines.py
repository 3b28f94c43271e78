"""The pipeline around an algorithm: normalizer and pre-tokenizer before it, decoder after it."""

import re

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from .options import TrainingOptions

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


def space_keeping(model: models.Model, options: TrainingOptions) -> Tokenizer:
    """A tokenizer that turns each space into `▁`, puts one in front of the text, and undoes both when decoding.

    The front one is put there by the normalizer: `Metaspace` itself does not distinguish " a" from "a".
    """
    tokenizer = Tokenizer(model)
    lowercase = [normalizers.Lowercase()] if options.lowercase else []
    tokenizer.normalizer = normalizers.Sequence(
        [*lowercase, normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)]
    )
    words = pre_tokenizers.Metaspace(SPACE, prepend_scheme="never", split=True)
    lines = pre_tokenizers.Split(OTHER_WHITESPACE, "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*control_tokens(options), words, lines, *digits(options)])
    tokenizer.decoder = decoders.Metaspace(SPACE, prepend_scheme="always")
    if options.declared_tokens:  # the text after each of them begins with `▁` too
        spaces = "|".join(rf"(?<={re.escape(token)}) " for token in options.declared_tokens)
        removal = decoders.Replace(Regex(spaces), "")
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
    """The pre-tokenizer that separates digits, if asked for."""
    return [pre_tokenizers.Digits(individual_digits=True)] if options.split_digits else []


def control_tokens(options: TrainingOptions) -> list[pre_tokenizers.PreTokenizer]:
    """The pre-tokenizer that splits the names of control tokens in a text, so that no piece of text is one."""
    names = "|".join(rf"{re.escape(token[0])}(?={re.escape(token[1:])})" for token in options.control_tokens)
    return [pre_tokenizers.Split(Regex(names), "isolated")]


def natural_decoder() -> decoders.Decoder:
    """Join words by spaces and word pieces without, then remove the spaces nobody would write."""
    removals = [decoders.Replace(Regex(spaces), "") for spaces in UNNATURAL_SPACES]
    return decoders.Sequence([decoders.WordPiece(prefix=CONTINUATION, cleanup=False), decoders.Fuse(), *removals])


def added_tokens(options: TrainingOptions) -> list[AddedToken]:
    """The special tokens as the library wants them: found in the text as it is, before any normalization."""
    return [AddedToken(token, special=True, normalized=False) for token in options.special_tokens]
