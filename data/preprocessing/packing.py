"""Short texts packed into rows without attention between them: no padding, and nothing learned across texts.

The model separates the texts of a row by their positions, which start at 0 in each: from these transformers makes the
masks when no `attention_mask` is given. So the collators give none, and padding is one more text without labels.
"""

from functools import partial
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, DatasetDict, Value
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from vanillaformer.configuration import VanillaConfig
from vanillaformer.console.reporting import report
from vanillaformer.tokenization.control_tokens import text_tokenizer

from ..arguments import LongTexts
from .blocks import IDS, flat_values
from .encoding import Batch, frame, token_ids
from .tokenizing import TokenizedSplits, handle_long_texts, map_splits

SEPARATING = ("eager", "sdpa", "flex_attention")
"""Attention implementations that take a mask of the texts in each row of a batch."""
ROOM = 96
"""Tokens in a row of a packed batch, about, unless a text is longer: attention computes what is masked too, so that
long rows would cost more than the padding of short ones."""


def packed_rows(
    dataset: DatasetDict,
    tokenizer: PreTrainedTokenizerBase,
    *,
    block_size: int,
    masked: bool = False,
    num_proc: int | None = None,
    long_texts: LongTexts = "cut",
) -> TokenizedSplits:
    """Put whole texts, `<s> text </s>` (masked: `[CLS] text [SEP]`), into rows {input_ids, position_ids}.

    Args:
        dataset: Splits with the column `text`.
        tokenizer: The tokenizer.
        block_size: Tokens in one row, at most.
        masked: For a masked language model.
        num_proc: Processes to tokenize with.
        long_texts: Whether texts longer than a row are cut into several, left out, or an error.

    Raises:
        ValueError: A row has no room for a text, or the tokenizer has no tokens to separate texts.
    """
    start, end = frame(tokenizer, masked=masked)
    room = block_size - len(start) - len(end) if masked else block_size
    if block_size < 2 or room < 1:
        raise ValueError(f"block_size={block_size}: a row needs room for a token and what frames a text")
    text = text_tokenizer(tokenizer)
    batch = partial(_text_batch, tokenizer=text, start=start, end=end, longest=room, reframe=masked)
    columns = {"input_ids": IDS, "lengths": IDS, "text_cut": Value("bool")}
    tokenized = map_splits(dataset, batch, num_proc, features=columns)
    how = "cut into pieces of"
    tokenized = handle_long_texts(dataset, tokenized, {"text": block_size}, long_texts, how)
    packed = {}
    for split, rows in tokenized.items():
        packed[split] = _rows(rows, block_size)
        count, total = len(packed[split]), len(flat_values(rows, "input_ids"))
        report(
            f"{split} data: {len(rows):,} texts packed into {count:,} rows, {1 - total / count / block_size:.1%} free."
        )
    return TokenizedSplits(packed, tokenized.stats)


def pack(lengths: np.ndarray, size: int) -> list[list[int]]:
    """Return which items share a bin of `size`, by best-fit decreasing (Johnson 1973).

    The longest go first, each where the least room is left. Items of a bin, and bins by their first item, are in the
    order of the items.
    """
    bins: list[list[int]] = []
    open_bins: list[list[int]] = [[] for _ in range(size + 1)]  # by the room that is left
    rooms = 0  # the bit `room` is set where there is such a bin
    for item in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[item])
        fitting = rooms >> length
        if fitting:
            room = length + (fitting & -fitting).bit_length() - 1
            number = open_bins[room].pop()
            rooms &= ~(0 if open_bins[room] else 1 << room)
        else:
            room, number = size, len(bins)
            bins.append([])
        bins[number].append(item)
        if left := room - length:
            open_bins[left].append(number)
            rooms |= 1 << left
    return sorted(map(sorted, bins))


def share_rows(lengths: np.ndarray) -> list[list[int]]:
    """Return which texts of a batch share a row, given their lengths (B, 1), or those of sources and targets (B, 2).

    As many rows as the longer side fills, and the longest texts go first, each where the row stays shortest (Graham
    1969): rows of a batch are of about the same length on both sides.
    """
    count = -(-lengths.sum(axis=0).max() // max(ROOM, lengths.max()))
    rows: list[list[int]] = [[] for _ in range(count)]
    filled = np.zeros((count, lengths.shape[1]), np.int64)
    for text in np.argsort(-lengths.max(axis=1), kind="stable"):
        row = int((filled + lengths[text]).max(axis=1).argmin())
        rows[row].append(int(text))
        filled[row] += lengths[text]
    return [sorted(texts) for texts in rows if texts]


def check_attention(model: PreTrainedModel) -> None:
    """Raise ValueError for a model whose attention would not keep the texts of a row apart."""
    if not isinstance(model.config, VanillaConfig):
        raise ValueError(
            f"--packing: {type(model).__name__} (model_type={model.config.model_type!r}) would mix the texts of a "
            "row, which only models of this package keep apart"
        )
    implementation = model.config._attn_implementation
    if implementation not in SEPARATING:
        raise ValueError(
            f"--packing: {implementation} attention does not keep the texts of a batch of rows apart; "
            f"--attn_implementation {', '.join(SEPARATING)} does"
        )


def _text_batch(
    batch: Batch,
    *,
    tokenizer: PreTrainedTokenizerBase,
    start: list[int],
    end: list[int],
    longest: int,
    reframe: bool,
) -> Batch:
    """Return the pieces of each text, in one list with their lengths; `reframe` frames each piece, else the text."""
    rows: Batch = {"input_ids": [], "lengths": [], "text_cut": []}
    for ids in token_ids(tokenizer, batch["text"]):
        framed = ids if reframe else [*start, *ids, *end]
        pieces = [framed[first : first + longest] for first in range(0, len(framed), longest)]
        if reframe:
            pieces = [[*start, *piece, *end] for piece in pieces]
        rows["input_ids"].append(list(chain.from_iterable(pieces)))
        rows["lengths"].append(list(map(len, pieces)))
        rows["text_cut"].append(len(pieces) > 1)
    return rows


def _rows(texts: Dataset, size: int) -> Dataset:
    """Pack the pieces of texts into rows."""
    tokens, lengths = flat_values(texts, "input_ids"), flat_values(texts, "lengths").to_numpy()
    starts = np.cumsum(lengths) - lengths
    bins = pack(lengths, size)
    order = np.fromiter(chain.from_iterable(bins), dtype=np.int64)
    counts = lengths[order]
    ends = np.cumsum(counts)
    within = np.arange(ends[-1]) - np.repeat(ends - counts, counts)  # each token's position in its piece
    positions = np.repeat(starts[order], counts) + within
    offsets = np.concatenate([[0], ends[np.cumsum([len(items) for items in bins]) - 1]])
    columns = {"input_ids": pc.take(tokens, pa.array(positions)), "position_ids": pa.array(within.astype(np.int32))}
    bounds = pa.array(offsets, pa.int64())
    return Dataset(pa.table({name: pa.LargeListArray.from_arrays(bounds, values) for name, values in columns.items()}))
