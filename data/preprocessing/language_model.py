"""Rows and collators of language models: blocks cut from the stream of all texts, or rows packed with whole texts."""

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, DatasetDict, Features, Value
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from vanillaformer.console.reporting import report
from vanillaformer.tokenization.passages import text_tokenizer

from ..arguments import LanguageModelDataArguments
from ..caching import IDS, arrow_file, flat_values, value_chunks
from ..tasks import Objective
from .batching import BlockCollator, RowMasking
from .denoising import DENOISING, DENOISING_TOKEN
from .sentence_pairs import sentence_pairs
from .tokenizing import Batch, Blocks, TokenizedSplits, frame, handle_long_texts, map_splits, text_frame, token_ids


class RowForm(NamedTuple):
    """Tokens that frame the texts of an objective in its rows."""

    tokenizer: PreTrainedTokenizerBase  # of the texts
    start: list[int]
    end: list[int]
    joint: list[int]  # the tokens after each text in the stream
    framed: bool  # whether the frame is of each row or piece of a text, not only of each text


def row_form(tokenizer: PreTrainedTokenizerBase, objective: Objective) -> RowForm:
    """Return the form of an objective's rows."""
    start, end = frame(tokenizer, masked=objective == "masked")
    if objective not in DENOISING:
        return RowForm(text_tokenizer(tokenizer), start, end, end, objective == "masked")
    vocabulary = tokenizer.get_vocab()
    texts = text_tokenizer(tokenizer, unrecognized=list(filter(DENOISING_TOKEN.fullmatch, vocabulary)))
    before, after = text_frame(tokenizer)
    modes = [vocabulary[token] for token in DENOISING[objective].start if token in vocabulary]
    return RowForm(texts, [*before, *modes], after, [], True)


def frame_size(objective: Objective) -> int:
    """Return the minimum number of tokens that frame each row."""
    return len(DENOISING[objective].start) + 1 if objective in DENOISING else 2 * (objective == "masked")


def block_rows(
    dataset: DatasetDict, tokenizer: PreTrainedTokenizerBase, data_args: Any, objective: Objective = "causal"
) -> TokenizedSplits:
    """Join the texts to one stream, `<s> text </s>` each, and cut it to `input_ids` of `--block_size` tokens.

    For a masked language model [SEP] ends each text, and a block is `[CLS] ... [SEP]`; for denoising, texts follow
    each other and a block ends in </s>. No token is lost: the end of the stream is a shorter block, which the
    collators pad.
    """
    join, blocks = block_cutter(tokenizer, data_args, objective)
    tokenized = map_splits(dataset, join, data_args.preprocessing_num_workers, features=Features(input_ids=IDS))
    apart = replace(blocks, stride=blocks.size)  # only training blocks overlap: held-out tokens are scored once
    cut = {split: cut_blocks(rows, blocks if split == "train" else apart) for split, rows in tokenized.items()}
    return TokenizedSplits(cut)


def block_cutter(
    tokenizer: PreTrainedTokenizerBase, data_args: Any, objective: Objective
) -> tuple[partial[Batch], Blocks]:
    """Return the function from batches of texts to pieces of the stream of tokens, and the cutter of its blocks."""
    form = row_form(tokenizer, objective)
    size = data_args.block_size - (len(form.start) + len(form.end)) * form.framed
    if size < 2 - form.framed:
        needed = "a token of text in its frame" if form.framed else "two tokens, one to see and one to predict"
        raise ValueError(f"block_size={data_args.block_size}: a block needs {needed}")
    start = [] if form.framed else form.start
    join = partial(_joined_batch, tokenizer=form.tokenizer, start=start, end=form.joint)
    blocks = Blocks(size, check_stride(data_args.block_stride, size))
    return join, replace(blocks, smallest=1, start=(*form.start,), end=(*form.end,)) if form.framed else blocks


def check_stride(stride: int | None, size: int) -> int:
    """Return the distance between the starts of two blocks; raise ValueError if it is 0 or leaves tokens out."""
    if stride is not None and not 1 <= stride <= size:
        raise ValueError(f"block_stride={stride}: it must be from 1 to {size}, the tokens of a block")
    return size if stride is None else stride


def _joined_batch(batch: Batch, *, tokenizer: PreTrainedTokenizerBase, start: list[int], end: list[int]) -> Batch:
    return {"input_ids": [[*start, *ids, *end] for ids in token_ids(tokenizer, batch["text"])]}


def cut_blocks(rows: Dataset, blocks: Blocks) -> Dataset:
    """Return the blocks of the concatenation of all `input_ids`, in a memory-mapped file."""
    schema = Features({"input_ids": IDS}).arrow_schema

    def batches() -> Iterator[pa.RecordBatch]:
        for found in blocks.cut(chunk.to_numpy() for chunk in value_chunks(rows, "input_ids")):
            bounds = np.arange(len(found) + 1, dtype=np.int32) * found.shape[1]
            yield pa.record_batch([pa.ListArray.from_arrays(bounds, found.ravel())], schema=schema)

    key = hashlib.blake2b(f"{rows._fingerprint} {blocks}".encode(), digest_size=16).hexdigest()
    return arrow_file(f"blocks-{key}", schema, batches)


def packed_rows(
    dataset: DatasetDict, tokenizer: PreTrainedTokenizerBase, data_args: Any, objective: Objective = "causal"
) -> TokenizedSplits:
    """Put whole texts, `<s> text </s>` (masked: `[CLS] text [SEP]`), into rows {input_ids, position_ids}."""
    form, block_size = row_form(tokenizer, objective), data_args.block_size
    room = block_size - (len(form.start) + len(form.end)) * form.framed
    if block_size < 2 or room < 1:
        raise ValueError(f"block_size={block_size}: a row needs room for a token and the special tokens of a text")
    batch = partial(_text_batch, form=form, longest=room)
    columns = Features(input_ids=IDS, lengths=IDS, text_cut=Value("bool"))
    tokenized = map_splits(dataset, batch, data_args.preprocessing_num_workers, features=columns)
    how = "cut into pieces of"
    tokenized = handle_long_texts(dataset, tokenized, {"text": block_size}, data_args.long_texts, how)
    packed = {}
    for split, rows in tokenized.items():
        packed[split] = _rows(rows, block_size)
        count, total = len(packed[split]), len(flat_values(rows, "input_ids"))
        free = 1 - total / count / block_size
        report(f"{split} data: {len(rows):,} texts packed into {count:,} rows, {free:.1%} free.")
    return TokenizedSplits(packed, tokenized.stats)


def pack(lengths: np.ndarray, size: int) -> list[list[int]]:
    """Return which items share a bin of `size`, by best-fit decreasing (Johnson 1973).

    The longest items go first, each to the bin with the least room. Items in a bin, and bins by their first item, keep
    the order of the items.
    """
    bins: list[list[int]] = []
    open_bins: list[list[int]] = [[] for _ in range(size + 1)]  # by their remaining room
    rooms = 0  # the bit `room` is set if there is a bin with this room
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


def _text_batch(batch: Batch, *, form: RowForm, longest: int) -> Batch:
    """Return the pieces of each text, in one list with their lengths."""
    rows: Batch = {"input_ids": [], "lengths": [], "text_cut": []}
    for ids in token_ids(form.tokenizer, batch["text"]):
        framed = ids if form.framed else [*form.start, *ids, *form.end]
        pieces = [framed[first : first + longest] for first in range(0, len(framed), longest)]
        if form.framed:
            pieces = [[*form.start, *piece, *form.end] for piece in pieces]
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


def language_model_rows(
    texts: DatasetDict, tokenizer: PreTrainedTokenizerBase, data_args: LanguageModelDataArguments, training_args: Any
) -> Any:
    """Return the rows of token ids for the objective."""
    if training_args.objective == "mlm+nsp":
        size, workers = data_args.block_size, data_args.preprocessing_num_workers
        return sentence_pairs(texts, tokenizer, block_size=size, seed=training_args.seed, num_proc=workers)
    return (packed_rows if data_args.packing else block_rows)(texts, tokenizer, data_args, training_args.objective)


def language_model_collator(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, block_size: int, training_args: Any
) -> Any:
    if training_args.objective in DENOISING:
        return DENOISING[training_args.objective](model, tokenizer, training_args, block_size)
    if training_args.objective == "causal":
        return BlockCollator(tokenizer)
    return RowMasking(tokenizer, mlm_probability=training_args.mlm_probability, mask_seed=training_args.seed)
