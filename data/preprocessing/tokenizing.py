"""From splits of texts to splits of token ids: the rows that the data collators and the Trainer take."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from datasets import ClassLabel, Dataset, DatasetDict, Features, concatenate_datasets
from transformers import PreTrainedTokenizerBase

from vanillaformer.console.reporting import report

from ..arguments import LongTexts
from ..rows import DataStats
from .caching import cached_map
from .encoding import Batch, encode_pairs, encode_texts

RAW_TEXTS = ("source", "target", "text", "name")
"""Columns of rows with the texts of the data, or the names of images, which are not passed to the model."""


class TokenizedSplits(DatasetDict):
    """Rows of token ids by split.

    Attributes:
        stats: By split, how many texts were too long.
    """

    def __init__(self, splits: Mapping[str, Dataset], stats: DataStats | None = None):
        super().__init__(splits)
        self.stats: DataStats = stats or {}


def translation_rows(
    dataset: DatasetDict,
    source_tokenizer: PreTrainedTokenizerBase,
    target_tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    max_source_length: int,
    max_target_length: int,
    num_proc: int | None = None,
    long_texts: LongTexts = "cut",
) -> TokenizedSplits:
    """Tokenize `source` and `target` to rows {input_ids, attention_mask, labels} for DataCollatorForSeq2Seq.

    Held-out rows keep `source` and `target` too, which the trainer does not pass to the model.

    Args:
        dataset: Splits with the columns `source` and `target`.
        source_tokenizer: Tokenizer of the source.
        target_tokenizer: Tokenizer of the target; the source's when None.
        max_source_length: Longest source in tokens, special tokens included.
        max_target_length: Longest target, likewise.
        num_proc: Processes to work with.
        long_texts: Whether longer ones are cut, left out with their row, or an error. How many there are is reported.
    """
    rows = encode_pairs(source_tokenizer, target_tokenizer or source_tokenizer, max_source_length, max_target_length)
    tokenized = map_splits(dataset, rows, num_proc)
    tokenized = with_raw_texts(tokenized, dataset)
    longest = {"source": max_source_length, "target": max_target_length}
    return handle_long_texts(dataset, tokenized, longest, long_texts)


def classification_rows(
    dataset: DatasetDict,
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_length: int,
    num_proc: int | None = None,
    long_texts: LongTexts = "cut",
) -> TokenizedSplits:
    """Tokenize `text` to rows {input_ids, attention_mask, labels} (and the tokenizer's token_type_ids).

    They are what DataCollatorWithPadding takes; texts longer than `max_length` are cut, left out or an error, and how
    many there are is reported. The names of the classes stay with the column `labels`, and held-out rows keep `text`.
    """
    encode = encode_texts(tokenizer, max_length)
    for split, rows in dataset.items():
        if not isinstance(rows.features["label"], ClassLabel):
            raise ValueError(f"{split} data: column 'label' holds {rows.features['label']}, not a ClassLabel")
    dataset = dataset.rename_column("label", "labels")
    tokenized = with_raw_texts(map_splits(dataset, encode, num_proc, keep=["labels"]), dataset)
    return handle_long_texts(dataset, tokenized, {"text": max_length}, long_texts)


def map_splits(
    dataset: DatasetDict,
    function: Callable[[Batch], Batch],
    num_proc: int | None,
    keep: list[str] | None = None,
    features: dict[str, Any] | None = None,
) -> DatasetDict:
    """Apply a function to batches of every split, and drop the columns except those in `keep`."""
    options = {} if features is None else {"features": Features(features)}
    mapped = {}
    for split, rows in dataset.items():
        old = [name for name in rows.column_names if name not in (keep or [])]
        mapped[split] = cached_map(
            rows, function, num_proc=num_proc, remove_columns=old, desc=f"Tokenizing {split} data", **options
        )
    return DatasetDict(mapped)


def with_raw_texts(rows: DatasetDict, texts: DatasetDict) -> DatasetDict:
    """Return rows with the texts that they were made of, except for the training rows.

    Scores and predictions are on these: what a tokenizer gives back may be cut, normalized or lack characters.
    """
    held_out = {}
    for split, part in rows.items():
        columns = [name for name in RAW_TEXTS if name in texts[split].column_names and split != "train"]
        raw = [texts[split].select_columns(columns)] if columns else []
        held_out[split] = concatenate_datasets([part, *raw], axis=1)
    return DatasetDict(held_out)


def handle_long_texts(
    texts: DatasetDict,
    rows: DatasetDict,
    longest: dict[str, int],
    long_texts: LongTexts,
    how: str = "cut to",
) -> TokenizedSplits:
    """Report how many texts of each split were too long, as the flag `<column>_cut` of a row says, and drop the flags.

    Args:
        texts: The texts, one for each row.
        rows: The rows made of them, cut.
        longest: Tokens that a text may have, by its column.
        long_texts: Keep the rows, leave them out, or raise an error.
        how: What cutting them means.

    Raises:
        ValueError: Naming the first such text, if it is an error; or when no row is left.
    """
    handled: dict[str, Dataset] = {}
    stats: DataStats = {split: {} for split in rows}
    for split, part in rows.items():
        cuts = {column: np.asarray(part.with_format("arrow")[f"{column}_cut"], dtype=bool) for column in longest}
        for column, cut in cuts.items():
            if long_texts == "error" and cut.any():
                raise ValueError(_first_long(texts[split], split, column, cut, longest[column]))
            if cut.any():
                what = "left out, having more than" if long_texts == "skip" else how
                report(f"{split} data: {cut.sum()} of {len(part)} {column}s were {what} {longest[column]} tokens.")
            stats[split][f"{column}s {'left out as too long' if long_texts == 'skip' else 'cut'}"] = int(cut.sum())
        kept = ~np.logical_or.reduce(list(cuts.values()))
        if long_texts == "skip" and not kept.any():
            raise ValueError(f"{split} data: --long_texts skip leaves no row")
        chosen = part.select(np.flatnonzero(kept)) if long_texts == "skip" and not kept.all() else part
        handled[split] = chosen.remove_columns([f"{column}_cut" for column in longest])
    return TokenizedSplits(handled, stats)


def _first_long(texts: Dataset, split: str, column: str, cut: np.ndarray, longest: int) -> str:
    first = int(cut.argmax())
    start = texts[first][column][:40]
    return (
        f"{split} data, row {first + 1} ({start!r} ...): the {column} has more than {longest} tokens "
        f"({cut.sum()} such rows); --long_texts cut or skip, or more tokens (--max_length, --max_source_length, "
        "--max_target_length, --block_size)"
    )
