"""Preparation of texts for a tokenizer or its trainer: passages, words by their pieces, and names of control tokens.

`tokenizers` and transformers read the name of a special token in a text as the token, so that HTML's `<s>` would start
a new document, although whoever writes these names means text. Control tokens are the named ones of a tokenizer
(`bos_token`, `mask_token` ...). Its other added tokens were declared by a user, and are recognized in texts.
"""

import copy
import json
import pickle
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate, chain
from tempfile import SpooledTemporaryFile
from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.tokenization_utils_base import VERY_LARGE_INTEGER

PAIR = "\ufdd0"  # between the two texts of a pair: a character that Unicode reserves for use inside programs
PASSAGE = 1 << 16
"""Characters per part of a long text. The library takes 256 texts at once and needs many times their size."""
IN_MEMORY = 1 << 26  # bytes of texts up to which nothing is put on disk
# After a line's end between two visible characters: no algorithm has a word, or a run of white space, across it.
BOUNDARY = re.compile(r"(?<=\S\n)(?=\S)")


def passages(texts: Iterable[str], size: int | None = None) -> Iterator[str]:
    """Yield texts, long ones in parts of at least `size` characters (default `PASSAGE`) that have the same words."""
    size = size or PASSAGE
    for text in texts:
        start = 0
        while (boundary := BOUNDARY.search(text, start + size)) is not None:
            yield text[start : boundary.start()]
            start = boundary.start()
        yield text[start:]


class StoredTexts:
    """Texts in a temporary file, to be iterated any number of times."""

    def __init__(self, texts: Iterable[str]):
        self.file, self.count = SpooledTemporaryFile(IN_MEMORY), 0  # noqa: SIM115 - open as long as this lives
        for self.count, text in enumerate(texts, start=1):
            pickle.dump(text, self.file)

    def __iter__(self) -> Iterator[str]:
        self.file.seek(0)
        for _ in range(self.count):
            yield pickle.load(self.file)


def as_pair(text: str) -> Any:
    """Return a text as tokenizers take it: for a pair, both texts."""
    return tuple(text.split(PAIR, 1)) if PAIR in text else text


def first_pieces(text: str, offsets: Sequence[tuple[int, int]]) -> list[int | None]:
    """Return, for each piece of a text given by its start and end, the index of the word it begins, or `None`.

    Words are separated by single spaces, and counted as by a tokenizer's `word_ids` for lists of words.
    """
    words = list(accumulate(character == " " for character in text))  # a space goes with the next word
    found: list[int | None] = []
    last = -1
    for start, end in offsets:
        start += len(text[start:end]) - len(text[start:end].lstrip(" "))
        word = words[start] if start < end else last
        found.append(word if word > last else None)
        last = max(last, word)
    return found


def text_tokenizer(
    tokenizer: PreTrainedTokenizerBase, recognized: Collection[str] = (), unrecognized: Collection[str] = ()
) -> PreTrainedTokenizerBase:
    """Return a copy of a tokenizer for users' texts: names of control tokens are text, except `recognized` ones.

    Names of `unrecognized` tokens are text as well, declared or not.
    """
    twin: Any = copy.copy(tokenizer)
    twin.init_kwargs = {**tokenizer.init_kwargs, "split_special_tokens": True}
    twin.split_special_tokens = True
    twin.model_max_length = twin.init_kwargs["model_max_length"] = VERY_LARGE_INTEGER  # truncation is up to the caller
    control = {*tokenizer.special_tokens_map.values()} - {*tokenizer.extra_special_tokens} - {*recognized}
    if isinstance(twin, PreTrainedTokenizerFast):
        twin._tokenizer = with_special(tokenizer.backend_tokenizer, control | {*unrecognized})
    elif declared := {*tokenizer.added_tokens_encoder} - control - {*unrecognized}:
        twin._tokenize = partial(split_at, declared, partial(type(twin)._tokenize, twin))  # it splits these too
    return twin


def split_at(declared: Collection[str], tokenize: Callable[[str], list[str]], text: str) -> list[str]:
    """Return the tokens of a text: the declared ones in it, and those that a function finds between them."""
    parts = re.split(f"({'|'.join(map(re.escape, sorted(declared, key=len, reverse=True)))})", text)
    return list(chain.from_iterable([part] if part in declared else tokenize(part) for part in parts if part))


def with_special(backend: Tokenizer, tokens: Collection[str]) -> Tokenizer:
    """Return a copy of a backend in which exactly these of its added tokens are special."""
    content = json.loads(backend.to_str())
    for token in content["added_tokens"]:
        token["special"] = token["content"] in tokens
    return Tokenizer.from_str(json.dumps(content))
