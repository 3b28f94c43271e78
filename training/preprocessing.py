"""From texts to token ids, for each task: the rows that the data collators and the Trainer take."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import ClassLabel, Dataset, DatasetDict
from transformers import PreTrainedTokenizerBase

from .reporting import report

Batch = dict[str, list[Any]]


def translation_rows(
    dataset: DatasetDict,
    source_tokenizer: PreTrainedTokenizerBase,
    target_tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    max_source_length: int,
    max_target_length: int,
    num_proc: int | None = None,
) -> DatasetDict:
    """Tokenise `source` and `target` to rows {input_ids, attention_mask, labels} for DataCollatorForSeq2Seq.

    Args:
        dataset: Splits with the columns `source` and `target`.
        source_tokenizer: Tokenizer of the source.
        target_tokenizer: Tokenizer of the target; the source's when None.
        max_source_length: Longer sources are cut, and how many were is reported.
        max_target_length: Longer targets are cut, likewise.
        num_proc: Processes to work with.
    """
    target_tokenizer = target_tokenizer or source_tokenizer
    _check_length("max_source_length", max_source_length, source_tokenizer)
    _check_length("max_target_length", max_target_length, target_tokenizer)

    rows = partial(
        _translation_batch,
        tokenizers=(source_tokenizer, target_tokenizer),
        lengths=(max_source_length, max_target_length),
    )
    tokenised = map_splits(dataset, rows, num_proc)
    tokenised = _report_cut(tokenised, "source_cut", f"sources were cut to {max_source_length} tokens")
    return _report_cut(tokenised, "target_cut", f"targets were cut to {max_target_length} tokens")


def classification_rows(
    dataset: DatasetDict, tokenizer: PreTrainedTokenizerBase, *, max_length: int, num_proc: int | None = None
) -> DatasetDict:
    """Tokenise `text` to rows {input_ids, attention_mask, labels} (and the tokenizer's token_type_ids).

    They are what DataCollatorWithPadding takes; texts longer than `max_length` are cut, and how many is reported.
    The names of the classes stay with the column `labels`.
    """
    _check_length("max_length", max_length, tokenizer)
    for split, rows in dataset.items():
        if not isinstance(rows.features["label"], ClassLabel):
            raise ValueError(f"{split} data: column 'label' holds {rows.features['label']}, not a ClassLabel")
    dataset = dataset.rename_column("label", "labels")
    tokenised = map_splits(
        dataset, partial(_text_batch, tokenizer=tokenizer, length=max_length), num_proc, keep=["labels"]
    )
    return _report_cut(tokenised, "text_cut", f"texts were cut to {max_length} tokens")


def causal_blocks(
    dataset: DatasetDict, tokenizer: PreTrainedTokenizerBase, *, block_size: int, num_proc: int | None = None
) -> DatasetDict:
    """Join the texts to one stream, `<s> text </s>` each, and cut it to `input_ids` of `block_size` tokens.

    No token is lost: the end of the stream is a shorter block (which DataCollatorForLanguageModeling pads). A
    tokenizer whose one token both starts and ends a text (GPT-2's) has it at the end only.
    """
    if block_size < 2:
        raise ValueError(f"block_size={block_size}: a block needs two tokens, one to see and one to predict")
    if tokenizer.eos_token_id is None:
        raise ValueError("the tokenizer has no eos_token, which a causal language model needs between texts")
    start = [] if tokenizer.bos_token_id in (None, tokenizer.eos_token_id) else [tokenizer.bos_token_id]
    join = partial(_joined_batch, tokenizer=tokenizer, start=start, end=[tokenizer.eos_token_id])
    tokenised = map_splits(dataset, join, num_proc)
    return DatasetDict({split: _cut(rows, block_size, smallest=2) for split, rows in tokenised.items()})


def masked_blocks(
    dataset: DatasetDict, tokenizer: PreTrainedTokenizerBase, *, block_size: int, num_proc: int | None = None
) -> DatasetDict:
    """Join the texts to one stream, each ended by [SEP], and cut it to `[CLS] ... [SEP]` blocks of `block_size`.

    No token is lost: the end of the stream is a shorter block (which DataCollatorForLanguageModeling pads).
    """
    if block_size < 3:
        raise ValueError(f"block_size={block_size}: a block needs a token between [CLS] and [SEP]")
    check_encoder_tokenizer(tokenizer)
    frame = partial(_framed_batch, start=tokenizer.cls_token_id, end=tokenizer.sep_token_id)
    join = partial(_joined_batch, tokenizer=tokenizer, start=[], end=[tokenizer.sep_token_id])
    tokenised = map_splits(dataset, join, num_proc)
    return DatasetDict(
        {
            split: _cut(rows, block_size - 2, smallest=1).map(frame, batched=True, desc=f"Framing {split} data")
            for split, rows in tokenised.items()
        }
    )


def check_encoder_tokenizer(tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise ValueError, naming them, when the tokenizer lacks tokens that masked rows are made with."""
    missing = [name for name in ("cls_token", "sep_token", "mask_token") if getattr(tokenizer, name) is None]
    if missing:
        raise ValueError(
            f"the tokenizer has no {', '.join(missing)}: masked language modelling needs an encoder's one"
        )


# --------------------------------------------------------------------------------------------- one batch of texts
def _encode(texts: list[str], tokenizer: PreTrainedTokenizerBase, length: int, side: str = "text") -> tuple[Any, Any]:
    """Return the encodings of texts and, for each, whether it had to be cut."""
    encoded = tokenizer(**{side: texts}, verbose=False)
    too_long = [len(ids) > length for ids in encoded["input_ids"]]
    if any(too_long):
        rows = [number for number, cut in enumerate(too_long) if cut]
        shorter = tokenizer(**{side: [texts[row] for row in rows]}, truncation=True, max_length=length)
        for name, values in shorter.items():
            for row, value in zip(rows, values):
                encoded[name][row] = value
        if tokenizer.is_fast:
            tokenizer.backend_tokenizer.no_truncation()  # or it would be saved with the tokenizer
    return encoded, too_long


def _translation_batch(batch: Batch, *, tokenizers: tuple[Any, Any], lengths: tuple[int, int]) -> Batch:
    source, source_cut = _encode(batch["source"], tokenizers[0], lengths[0])
    target, target_cut = _encode(batch["target"], tokenizers[1], lengths[1], side="text_target")
    rows = {
        "input_ids": source["input_ids"],
        "attention_mask": source["attention_mask"],
        "labels": target["input_ids"],
    }
    return {**rows, "source_cut": source_cut, "target_cut": target_cut}


def _text_batch(batch: Batch, *, tokenizer: PreTrainedTokenizerBase, length: int) -> Batch:
    encoded, cut = _encode(batch["text"], tokenizer, length)
    return {**encoded, "text_cut": cut}


def _joined_batch(batch: Batch, *, tokenizer: PreTrainedTokenizerBase, start: list[int], end: list[int]) -> Batch:
    # Not verbose: a text longer than the model is no mistake here, the blocks are not.
    encoded = tokenizer(batch["text"], add_special_tokens=False, return_attention_mask=False, verbose=False)
    return {"input_ids": [[*start, *ids, *end] for ids in encoded["input_ids"]]}


def _framed_batch(batch: Batch, *, start: int, end: int) -> Batch:
    return {"input_ids": [[start, *ids, end] for ids in batch["input_ids"]]}


# --------------------------------------------------------------------------------------------------- whole splits
def map_splits(
    dataset: DatasetDict, function: Callable[[Batch], Batch], num_proc: int | None, keep: list[str] | None = None
) -> DatasetDict:
    """Apply a function to batches of every split, dropping the columns it was given but those to `keep`."""
    mapped = {}
    for split, rows in dataset.items():
        old = [name for name in rows.column_names if name not in (keep or [])]
        workers = None if num_proc is None else min(num_proc, len(rows))
        mapped[split] = rows.map(
            function, batched=True, remove_columns=old, num_proc=workers, desc=f"Tokenising {split} data"
        )
    return DatasetDict(mapped)


def flat_values(rows: Dataset, column: str) -> pa.Array:
    """Return the values of a column of lists, one list behind the other."""
    return pa.concat_arrays([chunk.flatten() for chunk in rows.with_format("arrow")[column].chunks])


def _cut(rows: Dataset, size: int, *, smallest: int) -> Dataset:
    """Cut the concatenation of all `input_ids` to blocks; only the last may be shorter, but not below `smallest`."""
    stream = flat_values(rows, "input_ids")
    ends = np.arange(size, len(stream) + size, size).clip(max=len(stream))
    offsets = np.concatenate([[0], ends])
    if len(offsets) > 2 and offsets[-1] - offsets[-2] < smallest:
        offsets = offsets[:-1]
    blocks = pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), stream)
    return Dataset(pa.table({"input_ids": blocks}))


def _report_cut(dataset: DatasetDict, column: str, what: str) -> DatasetDict:
    """Report how many rows of each split have a flag set, and drop the flag."""
    for split, rows in dataset.items():
        count = sum(rows[column])
        if count:
            report(f"{split} data: {count} of {len(rows)} {what}.")
    return dataset.remove_columns(column)


def _check_length(option: str, length: int, tokenizer: PreTrainedTokenizerBase) -> None:
    special = tokenizer.num_special_tokens_to_add(pair=False)
    if length <= special:
        raise ValueError(f"{option}={length}: it must be more than the {special} special tokens of a text")
