"""Statistics of the data: printed before training, and kept in the record of a run."""

from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

import numpy as np
import pyarrow.compute as pc
from datasets import ClassLabel, Dataset, DatasetDict
from transformers import PreTrainedTokenizerBase

from vanillaformer.console.reporting import report

from ..caching import value_chunks
from ..rows import LISTED, DataStats, classes_in_words, short_name
from .batching import TokenBatches, row_lengths, row_order

BATCHES = 200  # number of batches from which the share of padding is estimated
UNREACHABLE = "references that cannot be produced exactly"
UNSEEN = "classes without rows"
IDS_AT_ONCE = 1_000_000


def describe_data(
    rows: DatasetDict,
    tokenizers: tuple[PreTrainedTokenizerBase, ...],
    training_args: Any,
    data_stats: DataStats | None = None,
    *,
    sample: bool = False,
    packed: Callable[[np.ndarray], int] | None = None,
) -> DataStats:
    """Report lengths, unknown tokens, the vocabulary in use and the padding to expect; return all statistics."""
    if sample:
        report("Streaming: the statistics of the training data are those of its first rows.")
    known, cut, unit = data_stats or {}, getattr(rows, "stats", {}), "rows" if tokenizers else "images"
    stats = {split: {"rows": len(part), **known.get(split, {}), **cut.get(split, {})} for split, part in rows.items()}
    sides = {"input_ids": tokenizers[0]} if tokenizers else {}
    if tokenizers and "labels" in rows["train"].column_names and hasattr(rows["train"].features["labels"], "feature"):
        sides["labels"] = tokenizers[1]
    used: dict[int, np.ndarray] = {}
    for split, part in rows.items():
        words = [f"{stats[split]['rows']:,} {unit}"]
        for column, tokenizer in sides.items():
            name = {"input_ids": "source ", "labels": "target "}[column] if len(sides) == 2 else ""
            counts = token_counts(part, column, len(tokenizer))
            if split == "train":
                used[id(tokenizer)] = used.get(id(tokenizer), 0) + counts
            unknown = tokenizer.unk_token_id
            share = 0.0 if unknown is None else float(counts[unknown] / max(1, counts.sum()))
            lengths = pc.list_value_length(part.with_format("arrow")[column])
            found = {"mean length": round(pc.mean(lengths).as_py(), 2), "longest": pc.max(lengths).as_py()}
            found["unknown tokens"] = share
            stats[split] |= {f"{name}{what}": value for what, value in found.items()}
            text = f"{name}{found['mean length']:.1f} tokens on average, {found['longest']:,} at most"
            words.append(text + (f", {share:.2%} unknown" if share else ""))
        if split != "train" and "target" in part.column_names:
            stats[split][UNREACHABLE] = 0
            for batch in part.select_columns(["labels", "target"]).iter(1_000):
                decoded = tokenizers[1].batch_decode(batch["labels"], skip_special_tokens=True)
                stats[split][UNREACHABLE] += sum(one != other for one, other in zip(decoded, batch["target"]))
        words += describe_classes(part, stats[split])
        words += shortfalls(stats[split])
        report(f"{split.capitalize()} data: {'; '.join(words)}.")
    for tokenizer, name in zip(dict.fromkeys(sides.values()), ("source ", "target ") if len(used) > 1 else ("",)):
        size, seen = len(tokenizer), int((used[id(tokenizer)] > 0).sum())
        stats["train"] |= {f"{name}vocabulary": size, f"{name}vocabulary used": seen}
        report(f"Vocabulary: {seen:,} of {size:,} {name}tokens occur in the training data.")
    if tokenizers:
        stats["train"]["padding"] = padding_share(rows["train"], training_args, packed=packed)
        report(f"Padding: {stats['train']['padding']:.1%} of a training batch.")
    if sample:
        stats["train"]["sampled rows"] = stats["train"].pop("rows")
    return stats


def describe_classes(rows: Dataset, stats: dict[str, Any]) -> list[str]:
    """Record how the rows of a split are divided among classes, if it has them, and return it in words."""
    if not isinstance(feature := rows.features.get("labels"), ClassLabel):
        return []
    counts: np.ndarray = np.bincount(np.asarray(rows.with_format("arrow")["labels"]), minlength=feature.num_classes)
    stats |= {"classes": int((counts > 0).sum()), "rows of the rarest class": int(counts[counts > 0].min())}
    stats[UNSEEN] = [feature.names[number] for number in np.flatnonzero(counts == 0)]
    return [classes_in_words(feature.names, counts)]


def shortfalls(stats: Mapping[str, Any]) -> list[str]:
    """Return the limits of a split's scores in words: cut texts, unreachable references, classes without rows."""
    count = stats.get("rows") or 1
    cut = {name.removesuffix(" cut"): number for name, number in stats.items() if name.endswith(" cut") and number}
    words = [f"{number / count:.1%} of the {name} cut" for name, number in cut.items()]
    if unreachable := stats.get(UNREACHABLE):
        words.append(
            f"{unreachable / count:.1%} of the references cannot be produced exactly, because the tokenizer or "
            "--max_target_length changes them"
        )
    if unseen := stats.get(UNSEEN):
        listed = ", ".join(map(short_name, unseen[:LISTED])) + ", ..." * (len(unseen) > LISTED)
        words.append(f"{len(unseen):,} of {stats['classes'] + len(unseen):,} classes without rows: {listed}")
    return words


def token_counts(rows: Dataset, column: str, size: int) -> np.ndarray:
    """Return how often each of `size` tokens occurs in a column."""
    counts = np.zeros(size, dtype=np.int64)
    for ids in value_chunks(rows, column):
        for start in range(0, len(ids), IDS_AT_ONCE):
            part = ids.slice(start, IDS_AT_ONCE).to_numpy()
            counts += np.bincount(part[part >= 0], minlength=size)  # labels are -100 at positions without loss
    return counts


def padding_share(
    rows: Dataset,
    training_args: Any,
    *,
    packed: Callable[[np.ndarray], int] | None = None,
    whole_steps: bool = False,
) -> float:
    """Return the share of padding in the first batches, or whole steps, of the first epoch."""
    lengths, size = row_lengths(rows), training_args.train_batch_size
    parts = training_args.gradient_accumulation_steps * training_args.data_processes
    if whole_steps:
        size, parts = size * parts, 1
    if getattr(training_args, "tokens_per_batch", None) is not None:
        whole = TokenBatches.of(lengths, training_args, packed=packed is not None).epoch_batches()[:BATCHES]
        batches = [batch[part::parts] for batch in whole for part in range(parts)]
    else:
        order = iter(row_order(lengths, training_args) or range(len(lengths)))
        numbers = np.fromiter(islice(order, size * BATCHES), np.int64)
        batches = [numbers[start : start + size] for start in range(0, len(numbers), size)]
    computed = sum((packed or padded)(lengths[batch]) for batch in batches if len(batch))
    return 1 - sum(int(lengths[batch].sum()) for batch in batches) / computed


def padded(lengths: np.ndarray) -> int:
    """Return the number of tokens in a batch of rows of `lengths` (B, 1 or 2), padding included."""
    return int((lengths.max(axis=0) * len(lengths)).sum())
