"""From documents to BERT's pairs of segments (Devlin et al. 2019, section 3.1): does the second follow the first?"""

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from random import Random
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from datasets import Dataset, DatasetDict, Features
from transformers import PreTrainedTokenizerBase

from vanillaformer.console.reporting import report
from vanillaformer.tokenization.passages import text_tokenizer

from ..caching import IDS, flat_values
from .tokenizing import Batch, TokenizedSplits, frame, map_splits, token_ids

# After a line's end, and after the full stop, exclamation or question mark of a sentence within a line; Chinese and
# Japanese ones, the last three, stand without a space.
SENTENCE_ENDS = re.compile(r"(?<=\n)|(?<=[.!?])(?=[ \t]+\S)|(?<=[\u3002\uff01\uff1f])")
FOLLOWS, RANDOM = 0, 1  # the labels, numbered as BERT's


class Pair(NamedTuple):
    """Two segments as ranges [start, end) of the stream of all tokens, and whether the second is from elsewhere."""

    first: tuple[int, int]
    second: tuple[int, int]
    label: int


@dataclass(frozen=True)
class Documents:
    """Documents as sentences in one stream of tokens."""

    tokens: np.ndarray  # the stream of all ids
    bounds: Sequence[int]  # where each sentence begins in the stream, and where the last one ends
    starts: Sequence[int]  # number of the first sentence of each document, and the number of all sentences

    def __len__(self) -> int:
        return len(self.starts) - 1


def sentence_pairs(
    texts: DatasetDict, tokenizer: PreTrainedTokenizerBase, *, block_size: int, seed: int, num_proc: int | None = None
) -> TokenizedSplits:
    """Cut texts to rows `[CLS] A [SEP] B [SEP]`: {input_ids, token_type_ids, next_sentence_label}, for `RowMasking`.

    Each text is a document; its sentences are its lines, and the sentences within a line; blank lines are left out.
    A run of sentences that fills the row is split in two at random. In half of the rows, drawn by the seed, B is
    the second part (label 0); in the others (label 1) it is as much of another document, from a random sentence on,
    and the second part begins the next run. With a single document, B is another part of it. If a row would be
    too long, the longer segment is cut, A at its start and B at its end, so that they stay adjacent.

    A row has `block_size` tokens, fewer only where a document ends.
    """
    if block_size < 5:
        raise ValueError(f"block_size={block_size}: a pair needs two tokens in addition to [CLS] and two [SEP]")
    start, end = frame(tokenizer, masked=True)
    room = block_size - 3
    batch = partial(_sentence_batch, tokenizer=text_tokenizer(tokenizer), longest=room // 2)
    pairs, columns = {}, Features(input_ids=IDS, lengths=IDS)
    for split, rows in map_splits(texts, batch, num_proc, features=columns).items():
        documents = _documents(split, rows)
        drawn = list(draw_pairs(documents, room, Random(f"sentence-pairs-{split}-{seed}")))
        pairs[split] = _rows(documents.tokens, drawn, start, end)
    return TokenizedSplits(pairs)


def sentences(text: str) -> list[str]:
    """Return the sentences and lines of a text, with the white space around them; blank ones are left out."""
    return [piece for piece in SENTENCE_ENDS.split(text) if piece.strip()]


def draw_pairs(documents: Documents, room: int, rng: Random) -> Iterator[Pair]:
    """Yield pairs of at most `room` tokens; no sentence may have more than half as many.

    A single sentence at the end does not begin a pair.
    """
    bounds = documents.bounds
    for number in range(len(documents)):
        first, last = documents.starts[number : number + 2]
        while last - first >= 2:
            end = bisect_left(bounds, bounds[first] + room, first + 2, last)
            middle = rng.randint(first + 1, end - 1)
            label = RANDOM if rng.random() < 0.5 else FOLLOWS
            start, stop = middle, end
            if label == RANDOM:
                start, stop = _elsewhere(documents, number, (first, middle, end), rng)
                free = room - (bounds[middle] - bounds[first])
                stop = bisect_left(bounds, bounds[start] + free, start + 1, stop)
            # The longer segment is cut, then both, at their outer ends, until they fit
            lengths = bounds[middle] - bounds[first], bounds[stop] - bounds[start]
            kept = min(lengths[0], max(room - lengths[1], (room + 1) // 2))
            second = bounds[start], bounds[start] + min(lengths[1], room - kept)
            yield Pair((bounds[middle] - kept, bounds[middle]), second, label)
            first = middle if label == RANDOM else end


def _elsewhere(documents: Documents, number: int, run: tuple[int, int, int], rng: Random) -> tuple[int, int]:
    """Draw a sentence of another document; return its number and the end of the sentences that may follow."""
    first, middle, end = run
    if len(documents) > 1:
        other = rng.randrange(len(documents) - 1)
        other += other >= number
        start, stop = documents.starts[other : other + 2]
        return rng.randrange(start, stop), stop
    count = documents.starts[-1]
    if outside := count - (end - first):  # a sentence of the only document outside the run
        start = rng.randrange(outside)
        return (start, first) if start < first else (start + end - first, count)
    start = rng.randrange(count - 1)  # or in it, but not the one that follows
    return start + (start >= middle), count


def _sentence_batch(batch: Batch, *, tokenizer: PreTrainedTokenizerBase, longest: int) -> Batch:
    """Return the tokens of each text and the lengths of its sentences, long ones divided into several."""
    found = [sentences(text) for text in batch["text"]]
    flat = [sentence for text in found for sentence in text]
    encoded = iter(token_ids(tokenizer, flat) if flat else [])
    rows: Batch = {"input_ids": [], "lengths": []}
    for text in found:
        ids = [next(encoded) for _ in text]
        rows["input_ids"].append([token for sentence in ids for token in sentence])
        rows["lengths"].append(
            [min(longest, len(sentence) - done) for sentence in ids for done in range(0, len(sentence), longest)]
        )
    return rows


def _documents(split: str, rows: Dataset) -> Documents:
    """Return the documents of a split; those without tokens are left out."""
    counts = [len(lengths) for lengths in rows["lengths"] if lengths]
    single = counts.count(1)
    if single == len(counts):
        raise ValueError(
            f"{split} data: none of {len(counts)} texts has a second sentence or line to follow the first: each text "
            "must be a document (--sample_by paragraph or document makes .txt files such)"
        )
    if single:
        report(f"{split} data: {single} of {len(counts)} texts are one sentence, which nothing follows.")
    bounds = list(accumulate(flat_values(rows, "lengths").to_pylist(), initial=0))
    return Documents(flat_values(rows, "input_ids").to_numpy(), bounds, list(accumulate(counts, initial=0)))


def _rows(tokens: np.ndarray, pairs: list[Pair], start: list[int], end: list[int]) -> Dataset:
    """Return pairs as rows."""
    cls, sep = np.array(start, tokens.dtype), np.array(end, tokens.dtype)
    ids, lengths = [], []
    for first, second, _ in pairs:
        ids += [cls, tokens[slice(*first)], sep, tokens[slice(*second)], sep]
        lengths += [first[1] - first[0] + 2, second[1] - second[0] + 1]
    types = np.repeat(np.tile(np.array([0, 1], np.int8), len(pairs)), lengths)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)[1::2]]), pa.int64())
    columns = {
        "input_ids": pa.LargeListArray.from_arrays(offsets, np.concatenate(ids)),
        "token_type_ids": pa.LargeListArray.from_arrays(offsets, types),
        "next_sentence_label": pa.array([pair.label for pair in pairs], pa.int64()),
    }
    return Dataset(pa.table(columns))
