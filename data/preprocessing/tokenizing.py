"""From splits of texts to splits of token ids: the rows that the data collators and the Trainer take."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
from datasets import Dataset, DatasetDict, Features
from numpy.lib.stride_tricks import sliding_window_view
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerBase

from vanillaformer.console.reporting import report
from vanillaformer.tokenization.passages import PASSAGE, as_pair, passages, text_tokenizer

from ..arguments import LongTexts
from ..caching import cached_map
from ..rows import GROUP, PLAIN, DataStats

Batch = dict[str, list[Any]]
Tokenizers = Sequence[PreTrainedTokenizerBase]  # of sources and targets
Encode = Callable[[Batch], Batch]  # from batches of texts to rows
PARTS = 32  # parts of long texts that are tokenized together
RAW_TEXTS = ("source", "target", "text", "name", "tokens", "tags", GROUP, PLAIN)
"""Columns with the texts of the data, or the names of images, which are not passed to the model."""


class TokenizedSplits(DatasetDict):
    """Rows of token ids by split, and how many texts of each were too long."""

    def __init__(self, splits: Mapping[str, Dataset], stats: DataStats | None = None):
        super().__init__(splits)
        self.stats: DataStats = stats or {}


def translation_rows(texts: DatasetDict, tokenizers: Tokenizers, data_args: Any) -> TokenizedSplits:
    """Tokenize `source` and `target` to rows {input_ids, attention_mask, labels} for DataCollatorForSeq2Seq."""
    longest = {"source": data_args.max_source_length, "target": data_args.max_target_length}
    return tokenized_rows(texts, encode_pairs(tokenizers, data_args), longest, data_args)


def classification_rows(texts: DatasetDict, tokenizer: PreTrainedTokenizerBase, data_args: Any) -> TokenizedSplits:
    """Tokenize `text`, or pairs, to rows {input_ids, attention_mask, labels} (and the tokenizer's token_type_ids).

    They are rows for DataCollatorWithPadding; the column `labels` keeps the names of the classes.
    """
    kept = "label_ids"  # of several labels, or a number
    if kept not in next(iter(texts.values())).column_names:
        kept, texts = "labels", texts.rename_column("label", "labels")
    encode = encode_texts(tokenizer, data_args.max_length)
    return tokenized_rows(texts, encode, {"text": data_args.max_length}, data_args, keep=[kept])


def tokenized_rows(
    texts: DatasetDict, encode: Encode, longest: dict[str, int], data_args: Any, keep: Sequence[str] = ()
) -> TokenizedSplits:
    """Turn batches of texts into rows by a function; long texts are reported, and held-out rows keep their texts.

    Scores and predictions need the texts: decoded tokens may be cut, normalized or lack characters.
    """
    kept = {split: [*keep, *(RAW_TEXTS if split != "train" else ())] for split in texts}
    rows = map_splits(texts, encode, data_args.preprocessing_num_workers, kept)
    return handle_long_texts(texts, rows, longest, data_args.long_texts)


def map_splits(
    texts: DatasetDict,
    encode: Encode,
    workers: int | None,
    keep: Mapping[str, Sequence[str]] | None = None,
    features: Features | None = None,
) -> DatasetDict:
    """Apply a function to batches of every split, and drop the columns except those in `keep`."""
    mapped = {}
    for split, rows in texts.items():
        old = [name for name in rows.column_names if keep is None or name not in keep[split]]
        options: dict[str, Any] = {"num_proc": workers, "remove_columns": old, "features": features}
        mapped[split] = cached_map(rows, encode, desc=f"Tokenizing {split} data", **options)
    return DatasetDict(mapped)


def handle_long_texts(
    texts: DatasetDict, rows: DatasetDict, longest: dict[str, int], long_texts: LongTexts, how: str = "cut to"
) -> TokenizedSplits:
    """Report how many texts of each split were too long, by the flag `<column>_cut` of a row, and drop the flags."""
    handled: dict[str, Dataset] = {}
    stats: DataStats = {split: {} for split in rows}
    for split, part in rows.items():
        cuts = {column: np.asarray(part.with_format("arrow")[f"{column}_cut"], dtype=bool) for column in longest}
        for column, cut in cuts.items():
            name = "text" if column == "tokens" else column
            if long_texts == "error" and cut.any():
                first = int(cut.argmax())
                raise ValueError(
                    f"{split} data, row {first + 1} ({texts[split][first][column][:40]!r} ...): the {name} has more "
                    f"than {longest[column]} tokens ({cut.sum()} such rows); --long_texts cut or skip, or more tokens "
                    "(--max_length, --max_source_length, --max_target_length, --block_size)"
                )
            if cut.any():
                what = "left out, having more than" if long_texts == "skip" else how
                report(f"{split} data: {cut.sum()} of {len(part)} {name}s were {what} {longest[column]} tokens.")
            stats[split][f"{name}s {'left out as too long' if long_texts == 'skip' else 'cut'}"] = int(cut.sum())
        kept = ~np.logical_or.reduce(list(cuts.values()))
        if long_texts == "skip" and not kept.any():
            raise ValueError(f"{split} data: --long_texts skip leaves no row")
        chosen = part.select(np.flatnonzero(kept)) if long_texts == "skip" and not kept.all() else part
        handled[split] = chosen.remove_columns([f"{column}_cut" for column in longest])
    return TokenizedSplits(handled, stats)


def encode_pairs(tokenizers: Tokenizers, data_args: Any) -> Encode:
    """Return the function from batches of pairs to rows, with the flags `source_cut` and `target_cut`."""
    lengths = data_args.max_source_length, data_args.max_target_length
    for side, length, tokenizer in zip(("source", "target"), lengths, tokenizers):
        _check_length(f"max_{side}_length", length, tokenizer)
    return partial(_translation_batch, tokenizers=tuple(map(text_tokenizer, tokenizers)), lengths=lengths)


def encode_texts(tokenizer: PreTrainedTokenizerBase, length: int) -> Encode:
    """Return the function from batches of texts to rows, with the flag `text_cut`."""
    _check_length("max_length", length, tokenizer)
    return partial(_text_batch, tokenizer=text_tokenizer(tokenizer), length=length)


def text_lengths(tokenizer: PreTrainedTokenizerBase, texts: list[str], side: str = "text") -> list[int]:
    """Return the tokens of each text, special ones included; `side` may be `text_target`."""
    encoded, _ = _encode(texts, text_tokenizer(tokenizer), sys.maxsize, side)
    return [len(ids) for ids in encoded["input_ids"]]


def set_truncation_side(tokenizer: PreTrainedTokenizerBase, side: str) -> None:
    tokenizer.truncation_side = tokenizer.init_kwargs["truncation_side"] = side


def frame(tokenizer: PreTrainedTokenizerBase, *, masked: bool) -> tuple[list[int], list[int]]:
    """Return the tokens before and after each text: `<s>` and `</s>`, or `[CLS]` and `[SEP]` of a masked model.

    A tokenizer whose one token both starts and ends a text (GPT-2's) has it only at the end.
    """
    if masked:
        missing = [name for name in ("cls_token", "sep_token", "mask_token") if getattr(tokenizer, name) is None]
        if missing:
            raise ValueError(
                f"the tokenizer has no {', '.join(missing)}: masked language modeling needs an encoder's tokenizer"
            )
        return [tokenizer.cls_token_id], [tokenizer.sep_token_id]
    if tokenizer.eos_token_id is None:
        raise ValueError("the tokenizer has no eos_token, which the model needs after a text")
    start = [] if tokenizer.bos_token_id in (None, tokenizer.eos_token_id) else [tokenizer.bos_token_id]
    return start, [tokenizer.eos_token_id]


def text_frame(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """Return the tokens that a tokenizer itself puts before and after a text."""
    ids, bare = (tokenizer("a", add_special_tokens=framed)["input_ids"] for framed in (True, False))
    start = next(start for start in range(len(ids)) if ids[start : start + len(bare)] == bare)
    return ids[:start], ids[start + len(bare) :]


def token_ids(tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> list[list[int]]:
    """Return the ids of texts of any length, without special tokens around them."""
    if not tokenizer.is_fast:
        encoded = tokenizer(texts, add_special_tokens=False, return_attention_mask=False, verbose=False)
        return encoded["input_ids"]
    backend = tokenizer.backend_tokenizer  # configured as transformers does for texts that are not cut
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = tokenizer.split_special_tokens
    if max(map(len, texts), default=0) <= PASSAGE or not _splits_at_lines(backend):
        return [encoding.ids for encoding in backend.encode_batch_fast(texts, add_special_tokens=False)]
    parts = [list(passages([text])) for text in texts]  # several cores share a long text
    flat = list(chain.from_iterable(parts))
    groups = (flat[start : start + PARTS] for start in range(0, len(flat), PARTS))
    encoded = (each for group in groups for each in backend.encode_batch_fast(group, add_special_tokens=False))
    return [list(chain.from_iterable(next(encoded).ids for _ in pieces)) for pieces in parts]


def _encode(texts: list[str], tokenizer: PreTrainedTokenizerBase, length: int, side: str = "text") -> tuple[Any, Any]:
    """Return the encodings of texts, and whether each had to be cut."""
    texts = [as_pair(text) for text in texts]
    encoded = tokenizer(**{side: texts}, verbose=False)
    too_long = [len(ids) > length for ids in encoded["input_ids"]]
    if any(too_long):
        rows = [number for number, cut in enumerate(too_long) if cut]
        shorter = tokenizer(**{side: [texts[row] for row in rows]}, truncation=True, max_length=length)
        for name, values in shorter.items():
            for row, value in zip(rows, values):
                encoded[name][row] = value
    return encoded, too_long


def _translation_batch(batch: Batch, *, tokenizers: Tokenizers, lengths: tuple[int, int]) -> Batch:
    source, source_cut = _encode(batch["source"], tokenizers[0], lengths[0])
    target, target_cut = _encode(batch["target"], tokenizers[1], lengths[1], side="text_target")
    rows = {name: source[name] for name in ("input_ids", "attention_mask")} | {"labels": target["input_ids"]}
    return rows | {"source_cut": source_cut, "target_cut": target_cut}


def _text_batch(batch: Batch, *, tokenizer: PreTrainedTokenizerBase, length: int) -> Batch:
    encoded, cut = _encode(batch["text"], tokenizer, length)
    return {**encoded, "text_cut": cut}


def _splits_at_lines(backend: Tokenizer) -> bool:
    """Return whether no token crosses the ends of `passages`, because words are split as by GPT-2."""
    words, added = backend.pre_tokenizer, backend.get_added_tokens_decoder().values()
    gpt2 = isinstance(words, ByteLevel) and words.use_regex and not words.add_prefix_space
    return (
        gpt2
        and backend.normalizer is None
        and not any(token.lstrip or token.rstrip or "\n" in token.content for token in added)
    )


def _check_length(option: str, length: int, tokenizer: PreTrainedTokenizerBase) -> None:
    special = tokenizer.num_special_tokens_to_add(pair=False)
    if length <= special:
        raise ValueError(f"{option}={length}: it must be more than the {special} special tokens of a text")


class Held:
    """The tokens that `Blocks` keeps for the next block."""

    def __init__(self, tokens: Sequence[int] = (), covered: int = 0, count: int = 0):
        self.tokens = np.array(tokens, np.int32)
        self.covered, self.count = covered, count  # how many of them were in a block, and the number of blocks before

    def state(self) -> tuple[list[int], int, int]:
        return self.tokens.tolist(), self.covered, self.count


@dataclass(frozen=True)
class Blocks:
    """Cuts the stream of all tokens to blocks."""

    size: int  # tokens of the stream in a block
    stride: int  # tokens from the start of one block to that of the next
    smallest: int = 2  # tokens that the last of several blocks needs
    start: tuple[int, ...] = ()  # tokens before each block
    end: tuple[int, ...] = ()  # tokens after each block

    def cut(self, pieces: Iterable[np.ndarray], held: Held | None = None) -> Iterator[np.ndarray]:
        """Yield the blocks (number, length) of a stream that comes in pieces; only the last may be shorter.

        `held` is the rest of an earlier part of the stream; it is up to date whenever a piece is requested.
        """
        held = Held() if held is None else held
        for piece in pieces:
            held.tokens = np.concatenate([held.tokens, piece])
            if len(held.tokens) >= self.size:
                blocks = sliding_window_view(held.tokens, self.size)[:: self.stride]
                yield self._framed(blocks)
                held.count += len(blocks)
                held.tokens, held.covered = held.tokens[len(blocks) * self.stride :], self.size - self.stride
        if len(held.tokens) > held.covered and (len(held.tokens) >= self.smallest or not held.count):
            yield self._framed(held.tokens[None])

    def _framed(self, blocks: np.ndarray) -> np.ndarray:
        start, end = (np.tile(np.array(ids, blocks.dtype), (len(blocks), 1)) for ids in (self.start, self.end))
        return np.concatenate([start, blocks, end], axis=1)
