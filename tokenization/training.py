"""Training of tokenizers: texts in, a stock `PreTrainedTokenizerFast` out."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, get_args

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from .algorithms import ALGORITHMS
from .options import SPECIAL_TOKENS, ModelKind, SpecialTokens, TokenizerAlgorithm, TrainingOptions
from .passages import with_special


def train(
    texts: Iterable[str],
    *,
    algorithm: TokenizerAlgorithm = "byte_level_bpe",
    kind: ModelKind = "encoder_decoder",
    vocab_size: int = 8000,
    min_frequency: int | None = None,
    lowercase: bool = False,
    split_digits: bool = False,
    strip_punctuation: bool = False,
    model_max_length: int | None = None,
    extra_special_tokens: Sequence[str] = (),
    show_progress: bool = False,
) -> PreTrainedTokenizerFast:
    """Train a tokenizer that `AutoTokenizer.from_pretrained` loads without this package.

    Args:
        texts: The texts, read once; a generator will do. Byte-level BPE, words and characters are counted as they
            come; for the other algorithms many texts are put into a temporary file.
        algorithm: One of `TokenizerAlgorithm`; `tokenization/algorithms.py` says what each does and what it loses.
        kind: The kind of model it is for, which decides special tokens, their ids and the template around a text.
        vocab_size: Upper limit of `len(tokenizer)`, which stays below it if the texts do not offer more.
        min_frequency: How often a word, character or merged pair must occur to enter the vocabulary. Default 2, for
            the character algorithms 1. Unigram has no such limit.
        lowercase: Lower-case all text, in training and in use; `word` always does.
        split_digits: Make each digit a separate token.
        strip_punctuation: Drop punctuation and other symbols; apostrophes within words stay. Only for `word`.
        model_max_length: Stored length limit, used when the tokenizer is asked to truncate.
        extra_special_tokens: Placeholders and tags in the texts. They are never split, decoding keeps them, and they
            get the ids after the special ones, in this order.
        show_progress: Show progress bars.

    Raises:
        ValueError: If an argument is not allowed, a text is not a string, or the texts offer nothing to learn from.
    """
    sizes = {"vocab_size": vocab_size, "min_frequency": min_frequency, "model_max_length": model_max_length}
    _check_arguments(algorithm, kind, strip_punctuation, sizes)
    special = SPECIAL_TOKENS[kind]
    extra = _check_extra_special_tokens(extra_special_tokens, special)
    options = TrainingOptions(
        vocab_size=vocab_size,
        special_tokens=(*special.tokens, *extra),
        declared_tokens=extra,
        unk_token=special.names["unk_token"],
        min_frequency=min_frequency,
        lowercase=lowercase,
        split_digits=split_digits,
        strip_punctuation=strip_punctuation,
        show_progress=show_progress,
    )
    options.require_room(1, "one token of text")
    backend = ALGORITHMS[algorithm](check_texts(texts), options)
    if backend.get_vocab_size() <= len(options.special_tokens):
        raise ValueError(
            f"{algorithm} found nothing to put in the vocabulary: no token of the texts is frequent enough "
            f"(min_frequency={options.min_frequency or 'default'})"
        )
    backend = with_special(backend, options.control_tokens)
    backend.post_processor = special.post_processor()
    return _wrapped(backend, kind, model_max_length)


def _check_arguments(algorithm: str, kind: str, strip_punctuation: bool, sizes: dict[str, int | None]) -> None:
    for name, choice, allowed in (("algorithm", algorithm, TokenizerAlgorithm), ("kind", kind, ModelKind)):
        if choice not in get_args(allowed):
            raise ValueError(f"{name}={choice!r} is not one of {', '.join(get_args(allowed))}")
    if strip_punctuation and algorithm != "word":
        raise ValueError(f"strip_punctuation=True is for algorithm 'word', not {algorithm!r}")
    for name, size in sizes.items():
        is_unset = size is None and name != "vocab_size"
        if not is_unset and (type(size) is not int or size < 1):
            raise ValueError(f"{name}={size!r} must be a whole number above 0{' or None' * (name != 'vocab_size')}")


def _wrapped(backend: Tokenizer, kind: ModelKind, model_max_length: int | None) -> PreTrainedTokenizerFast:
    """Return a tokenizer as transformers loads it."""
    special = SPECIAL_TOKENS[kind]
    settings: dict[str, Any] = {"padding_side": "right", "clean_up_tokenization_spaces": False, **special.names}
    settings["model_input_names"] = list(special.model_input_names)
    if model_max_length is not None:
        settings["model_max_length"] = model_max_length
    if kind == "encoder_decoder":  # elsewhere chat templates and masks are written as text with special tokens
        settings["split_special_tokens"] = True
    return PreTrainedTokenizerFast(tokenizer_object=backend, **settings)


def train_pair(
    source_texts: Iterable[str], target_texts: Iterable[str], *, joint: bool, **arguments: Any
) -> tuple[PreTrainedTokenizerFast, PreTrainedTokenizerFast]:
    """Train the tokenizers of the source and target side of a translation, with the arguments of `train` for each.

    With a `joint` vocabulary the same tokenizer is returned twice.
    """
    source, target = check_texts(source_texts, "source_texts"), check_texts(target_texts, "target_texts")
    if joint:
        tokenizer = train(chain(source, target), **arguments)
        return tokenizer, tokenizer
    return train(source, **arguments), train(target, **arguments)


def check_texts(texts: Iterable[Any], name: str = "texts") -> Iterator[str]:
    """Yield the texts; raise ValueError for one that is not a valid string, or if none holds any text."""
    if isinstance(texts, str | bytes):
        raise ValueError(f"{name} must be an iterable of strings, not one {type(texts).__name__}: {texts!r:.60}")
    has_text = False
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"{name}[{index}] must be a string, not {type(text).__name__}: {text!r:.60}")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"{name}[{index}] is not valid Unicode: {error}") from error
        has_text = has_text or bool(text.strip())
        yield text
    if not has_text:
        raise ValueError(f"{name} must hold some text, but is empty or has nothing but white space")


def _check_extra_special_tokens(tokens: Sequence[str], special: SpecialTokens) -> tuple[str, ...]:
    if isinstance(tokens, str):
        raise ValueError(f"extra_special_tokens must be a list of strings, not one string: {tokens!r}")
    for index, token in enumerate(tokens):
        if not isinstance(token, str) or not token.strip():
            raise ValueError(f"extra_special_tokens[{index}]={token!r} must be a string with visible characters")
        if token in special.tokens or token in tokens[:index]:
            raise ValueError(f"extra_special_tokens[{index}]={token!r} is a special token already")
    return tuple(tokens)
