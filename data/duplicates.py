"""Texts that are the same: in a split, in two splits, and in a stream and the held-out data."""

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from datasets import Dataset, DatasetDict

from vanillaformer.console.reporting import report

from .arrow_files import arrow_column, select_rows
from .rows import DataStats

SHARES = 16
"""Parts in which texts are compared."""
PAIRS = (("validation", "train"), ("test", "train"), ("test", "validation"))
"""Splits that are compared; of the second, rows can be left out."""
SIGNS = "*/\\&%#@"
"""Punctuation that stands for a word or an operation."""
OF_NUMBERS = re.compile("[.,:](?=[0-9])|[-\u2010-\u2015](?= *[0-9])")
"""Punctuation that a number has: 3 - 5 is not 3 5."""
PRIVATE = 0xE000
"""The first of the characters for private use, which stand for such punctuation."""
WORD = re.compile(r"[^\W_]")


def without_leaks(
    dataset: DatasetDict, column: str, *, exact: bool, drop: bool
) -> tuple[DatasetDict, dict[str, dict[str, int]]]:
    """Report which rows occur, by source or text, in two splits: those of one are compared with those before it.

    Returns:
        The splits, and for each how many such rows it has, or has lost.

    Raises:
        ValueError: Nothing would be left of a split.
    """
    keys = {split: text_keys(rows, column, exact=exact) for split, rows in dataset.items()}
    leaked = {split: np.zeros(len(found), dtype=bool) for split, found in keys.items()}
    stats: DataStats = {split: {} for split in keys}
    for split, other in PAIRS:
        if split in keys and other in keys:
            found = np.asarray(pc.is_in(pa.array(keys[other]), value_set=pa.array(keys[split])))
            shared = int(np.isin(keys[split], keys[other][found]).sum())
            report_leaks(split, other, column, shared, len(keys[split]), drop=drop)
            stats[split] |= {} if drop else {f"also in {other}": shared}
            leaked[other] |= found
    for split in ("train", "validation") if drop else ():
        if split in keys and leaked[split].any():
            count, total = int(leaked[split].sum()), len(leaked[split])
            if count == total:
                raise ValueError(
                    f"--drop_leaked_rows: every {column} of the {_data(split)} also occurs in the other splits"
                )
            stats[split]["leaked rows left out"] = count
            report(f"{split} data: {count:,} of {total:,} rows occur in the other splits: left out.")
            dataset = DatasetDict({**dataset, split: select_rows(dataset[split], np.flatnonzero(~leaked[split]))})
    return dataset, stats


def report_leaks(split: str, other: str, column: str, shared: int, total: int, *, drop: bool) -> None:
    """Print how many rows of a split occur in another one, if any."""
    if shared:
        hint = "" if drop else " (--drop_leaked_rows leaves them out of it)"
        report(f"{split} data: the {column} of {shared:,} of {total:,} rows also occurs in the {_data(other)}{hint}.")


def _data(split: str) -> str:
    return f"{'training' if split == 'train' else split} data"


class LeakCounter:
    """Finds held-out rows among training rows that pass by; a worker that reads a stream shares what it finds."""

    def __init__(self, keys: Mapping[str, np.ndarray], column: str, *, drop: bool = False):
        self.keys, self.column, self.drop = dict(keys), column, drop
        self.known = np.unique(np.concatenate([np.zeros(0, np.uint64), *keys.values()]))
        self.seen = torch.zeros(len(self.known), dtype=torch.bool).share_memory_()
        self.reported: dict[str, int] = {}

    def update(self, keys: np.ndarray) -> None:
        """Take note of training rows."""
        self.seen.numpy()[np.isin(self.known, keys)] = True

    def stats(self) -> DataStats:
        """Return how many rows of each held-out split are among those that passed by, and report new ones."""
        found = self.known[self.seen.numpy()]
        counts = {split: int(np.isin(keys, found).sum()) for split, keys in self.keys.items()}
        for split, count in counts.items():
            if count != self.reported.get(split):
                report_leaks(split, "train", self.column, count, len(self.keys[split]), drop=self.drop)
        self.reported = counts
        return {split: {} if self.drop else {"also in train": count} for split, count in counts.items()}


def text_numbers(rows: Dataset, column: str, *, exact: bool) -> np.ndarray:
    """Return the number of each row's text among the distinct ones, in the order of their first rows."""
    keys = text_keys(rows, column, exact=exact)
    first = np.empty(len(keys), np.int32 if len(keys) < 2**31 else np.int64)  # row with the same text
    share = keys % SHARES
    for number in range(SHARES):  # sorting takes many times the memory of what is sorted
        members = np.flatnonzero(share == number)
        _, firsts, inverse = np.unique(keys[members], return_index=True, return_inverse=True)
        first[members] = members[firsts][inverse]
    ranks = np.cumsum(first == np.arange(len(first), dtype=first.dtype), dtype=first.dtype) - 1
    return ranks[first]


def text_keys(rows: Dataset, column: str, *, exact: bool) -> np.ndarray:
    """Return a hash of 64 bits of each row's text: two of a million texts have the same with a chance of 3e-8."""
    keys = [np.zeros(0, np.uint64)]
    for cells in arrow_column(rows, column).chunks:
        if exact or pa.types.is_large_binary(cells.type):
            texts = cells.cast(pa.large_binary()).to_pylist()
        else:
            texts = [alike(text).encode() for text in cells.to_pylist()]
        keys.append(hashes(texts))
    return np.concatenate(keys)


def hashes(values: Iterable[bytes]) -> np.ndarray:
    """Return hashes of 64 bits."""
    return np.frombuffer(b"".join(hashlib.blake2b(value, digest_size=8).digest() for value in values), np.uint64)


def alike(text: str) -> str:
    """Return what a text has in common with those that differ in letter case, punctuation, space or Unicode form.

    Brackets, signs such as % and #, and the punctuation of numbers stay: they can be all that tells texts apart. So
    does a text without letters and digits, such as one of emojis.
    """
    common = text.lower() if text.isascii() else unicodedata.normalize("NFKC", text).casefold()
    common = OF_NUMBERS.sub(lambda sign: chr(PRIVATE + ord(sign[0])), common)
    common = " ".join(unicodedata.normalize("NFKC", common.translate(_spaces)).split())
    return common if WORD.search(common) else text


class _Spaces(dict[int, int | str | None]):
    """A table for `str.translate` that grows: punctuation becomes space, and what is not seen is left out."""

    def __missing__(self, code: int) -> int | str | None:
        kind = unicodedata.category(chr(code))
        punctuation = kind in ("Pd", "Po", "Pi", "Pf") and chr(code) not in SIGNS
        self[code] = None if kind == "Cf" else " " if punctuation else code
        return self[code]


_spaces = _Spaces()
