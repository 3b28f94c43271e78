"""The number of characters and bytes in the tokens that a language model predicts."""

from typing import Any

import numpy as np
from tokenizers import decoders, pre_tokenizers
from transformers import PreTrainedTokenizerBase

from vanillaformer.modeling.heads import IGNORE_INDEX

UNPRINTABLE = (*range(33), *range(127, 161), 173)  # bytes, as the byte-level alphabet has them: from 256 on


class TextSizes:
    """Counts characters and UTF-8 bytes of tokens; special tokens have none.

    A byte-level tokenizer's tokens are bytes, so the counts are exact wherever a row was cut, through a character
    too: a character belongs to the token with its first byte. The tokens of other tokenizers are decoded, text by text
    (special tokens part texts): counted is what is decoded, in which characters that the tokenizer dropped are missing
    and an unknown token, being special, stands for nothing.

    Args:
        tokenizer: The tokenizer.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self.tokenizer, self.special = tokenizer, np.array(sorted(set(tokenizer.all_special_ids)), dtype=np.int64)
        backend = getattr(tokenizer, "backend_tokenizer", None)
        bytewise = backend is not None and isinstance(backend.decoder, decoders.ByteLevel)
        self.table = _byte_table(tokenizer) if bytewise else None

    def __call__(self, labels: Any, counted: Any) -> tuple[int, int]:
        """Return the characters and bytes of the tokens that are counted.

        Args:
            labels: Rows of token ids (N, T), -100 at positions without a label.
            counted: Which of them the model predicted (N, T); the others are known to it.
        """
        if self.table is not None:
            characters, size = self.table[labels[counted]].sum(axis=0)
            return int(characters), int(size)
        sizes = np.zeros(2, dtype=np.int64)
        for ids, predicted in zip(labels, counted):
            real = ids != IGNORE_INDEX
            sizes += self._row(ids[real], predicted[real])
        return int(sizes[0]), int(sizes[1])

    def _row(self, ids: np.ndarray, predicted: np.ndarray) -> np.ndarray:
        """Return the sizes of one row, text by text."""
        borders = np.flatnonzero(np.isin(ids, self.special))
        sizes = np.zeros(2, dtype=np.int64)
        for text, is_predicted in zip(np.split(ids, borders), np.split(predicted, borders)):
            # Not only the size of the predicted tokens: decoders treat the first token of a text differently
            known = 0 if is_predicted.all() else self._size(text[~is_predicted])
            sizes += self._size(text) - known
        return sizes

    def _size(self, ids: np.ndarray) -> np.ndarray:
        text = str(self.tokenizer.decode(ids.tolist(), skip_special_tokens=True))
        return np.array([len(text), len(text.encode(errors="replace"))])


def _byte_table(tokenizer: PreTrainedTokenizerBase) -> np.ndarray:
    """Return the characters and bytes of every token of a byte-level tokenizer."""
    table = np.zeros((len(tokenizer), 2), dtype=np.int64)
    alphabet = set(pre_tokenizers.ByteLevel.alphabet())
    added = tokenizer.get_added_vocab()
    special = set(tokenizer.all_special_ids)
    for token, number in tokenizer.get_vocab().items():
        if number in special:
            continue
        if token in added or not alphabet.issuperset(token):
            table[number] = len(token), len(token.encode())
        else:
            table[number] = sum(not _continues(symbol) for symbol in token), len(token)
    return table


def _continues(symbol: str) -> bool:
    """Tell whether the byte that a symbol of the byte-level alphabet stands for is 10xxxxxx, inside a character."""
    code = ord(symbol)
    byte = UNPRINTABLE[code - 256] if code >= 256 else code
    return 0x80 <= byte <= 0xBF
