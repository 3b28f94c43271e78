"""Training, validation and test splits: held out, capped, without leaks."""

import hashlib
from random import Random

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, DatasetDict

from vanillaformer.hub.reporting import report

from .arguments import DataArguments
from .rows import DataStats, arrow_column, select_rows

SHARES = 16
"""Parts in which texts are compared."""


def divide(dataset: DatasetDict, column: str, data_args: DataArguments) -> tuple[DatasetDict, DataStats]:
    """Return the splits with validation data and as many rows as asked for, and what also occurs in training data.

    Args:
        dataset: The splits, of which `train` is one.
        column: The source or text, by which rows are distinguished.
        data_args: How much is held out, and how much is used of each split.
    """
    dataset, seed = hold_out(dataset, column, data_args), data_args.split_seed
    for split in ("validation", "test"):
        if split in dataset:
            dataset[split] = cap(dataset[split], getattr(data_args, f"max_{split}_samples"), seed)
    dataset, leaks = without_leaks(dataset, column, drop=data_args.drop_leaked_rows)
    dataset["train"] = cap(dataset["train"], data_args.max_train_samples, seed)
    return dataset, leaks


def hold_out(dataset: DatasetDict, column: str, data_args: DataArguments) -> DatasetDict:
    """Take validation data, where there is none, and `test_fraction` out of the training split.

    `hold_out="random"` draws distinct texts of the column, so that rows with the same text stay together; what the
    test holds depends on its own fraction only. Of labeled rows it draws the same share of every class, and leaves
    every class a text in the training split. `hold_out="end"` takes the last rows (of the order that `in_order`
    has put them in), the test's last of all. Of a single text the last characters are always held out.

    Raises:
        ValueError: There is too little, or test data already.
    """
    if data_args.test_fraction and "test" in dataset:
        raise ValueError(f"--test_fraction {data_args.test_fraction}: there is test data already")
    fractions = {} if "validation" in dataset else {"validation": data_args.validation_fraction}
    if data_args.test_fraction:
        fractions["test"] = data_args.test_fraction
    if not fractions:
        return dataset
    take = _at_random if data_args.hold_out == "random" else _from_the_end
    if take is _at_random and _is_one_text(dataset["train"], column) and data_args.turns_column is None:
        report(f"The data is a single text: its last characters are held out ({', '.join(fractions)}).")
        take = _from_the_end
    return DatasetDict({**dataset, **take(dataset["train"], column, fractions, data_args.split_seed)})


def _distinct(count: int, column: str) -> str:
    return f"{count} distinct {column}{'' if count == 1 else 's'}"


def _at_random(rows: Dataset, column: str, fractions: dict[str, float], seed: int) -> dict[str, Dataset]:
    number_of = text_numbers(rows, column)
    size = int(number_of.max(initial=-1)) + 1
    if size <= len(fractions):
        given = " or ".join(f"--{split}_file" for split in fractions)
        raise ValueError(
            f"a {' and a '.join(fractions)} part cannot be split from {_distinct(size, column)}: give {given}"
        )
    left, parts = np.arange(size), np.zeros(size, np.int8)  # the number of each text's split
    labels = arrow_column(rows, "label").to_numpy() if "label" in rows.column_names else None
    names = ["train", *fractions]
    for split in sorted(fractions):  # the test first: its texts do not change with the validation's fraction
        rng = Random(seed if split == "validation" else f"test-{seed}")
        count = min(max(1, round(size * fractions[split])), len(left) - 1)
        if labels is None:
            held_out = left[rng.sample(range(len(left)), count)]
        else:
            held_out = _drawn_by_class(left, number_of, labels, count, rng)
        if not len(held_out):
            raise ValueError(
                f"a {split} part cannot be split from {_distinct(len(left), column)} in which no class has two: "
                f"give --{split}_file"
            )
        parts[held_out] = names.index(split)
        left = np.setdiff1d(left, held_out)
    part_of = parts[number_of]
    return {split: select_rows(rows, np.flatnonzero(part_of == names.index(split))) for split in names}


def _drawn_by_class(
    left: np.ndarray, number_of: np.ndarray, labels: np.ndarray, count: int, rng: Random
) -> np.ndarray:
    """Draw texts evenly from the classes, leaving each class at least one; fewer where there are not enough.

    Args:
        left: The numbers of the texts to draw from.
        number_of: The number of each row's text.
        labels: The class of each row.
        count: How many to draw.
        rng: Decides which.
    """
    here = np.isin(number_of, left)
    count_of_labels = int(labels.max()) + 1
    codes = np.unique(number_of[here].astype(np.int64) * count_of_labels + labels[here])
    pairs = np.stack([codes // count_of_labels, codes % count_of_labels], axis=1)
    starts = np.searchsorted(pairs[:, 0], left)  # a text has one class as a rule
    ends = np.append(starts[1:], len(pairs))
    random = np.random.default_rng(rng.getrandbits(64))
    turns = np.empty(len(left))
    for label in np.unique(
        pairs[starts, 1]
    ):  # the n-th text of a class is drawn when that share of each class has been drawn
        members = random.permutation(np.flatnonzero(pairs[starts, 1] == label))
        turns[members] = (random.random() + np.arange(len(members))) / len(members)
    remaining, drawn = np.bincount(pairs[:, 1]), []
    for index in np.argsort(turns, kind="stable"):
        classes = pairs[starts[index] : ends[index], 1]
        if (remaining[classes] > 1).all():
            remaining[classes] -= 1
            drawn.append(left[index])
        if len(drawn) == count:
            break
    return np.array(drawn, dtype=np.int64)


def _from_the_end(rows: Dataset, column: str, fractions: dict[str, float], seed: int) -> dict[str, Dataset]:
    one_text = _is_one_text(rows, column)
    text = rows[0][column] if one_text else ""
    size, unit = (len(text), "characters") if one_text else (len(rows), "rows")
    taken = list(fractions.values())
    bounds = [0, *(int(size * (1 - sum(taken[number:]))) for number in range(len(taken))), size]
    parts = {}
    for split, start, end in zip(("train", *fractions), bounds, bounds[1:]):
        if end <= start or (one_text and not text[start:end].strip()):
            raise ValueError(f"--hold_out end leaves nothing for {split} of {size} {unit}: change the fractions")
        parts[split] = _piece(rows, column, text[start:end]) if one_text else rows.select(range(start, end))
    return parts


def _is_one_text(rows: Dataset, column: str) -> bool:
    return len(rows) == 1 and column == "text" and "label" not in rows.column_names


def _piece(rows: Dataset, column: str, text: str) -> Dataset:
    cells = {name: [text if name == column else rows[0][name]] for name in rows.column_names}
    return Dataset.from_dict(cells, features=rows.features)


def without_leaks(dataset: DatasetDict, column: str, *, drop: bool) -> tuple[DatasetDict, dict[str, dict[str, int]]]:
    """Report which validation and test rows occur, by source or text, in the training split too.

    Args:
        dataset: The splits.
        column: The source or text.
        drop: Leave such rows out of the training split.

    Returns:
        The splits, and for each how many such rows it has or has lost.

    Raises:
        ValueError: Nothing would be left to train on.
    """
    texts = text_keys(dataset["train"], column)
    stats: DataStats = {}
    leaked = np.zeros(len(texts), dtype=bool)
    for split in ("validation", "test"):
        if split not in dataset:
            continue
        held_out = text_keys(dataset[split], column)
        found = np.asarray(pc.is_in(pa.array(texts), value_set=pa.array(held_out)))
        shared = int(np.isin(held_out, texts[found]).sum())
        if shared:
            hint = "" if drop else " (--drop_leaked_rows leaves them out of it)"
            report(
                f"{split} data: the {column} of {shared:,} of {len(dataset[split]):,} rows also occurs in the "
                f"training data{hint}."
            )
        stats[split] = {"also in train": shared}
        leaked |= found
    if not (drop and leaked.any()):
        return dataset, stats
    kept = np.flatnonzero(~leaked)
    if not len(kept):
        raise ValueError(f"--drop_leaked_rows: every {column} of the training data also occurs in the other splits")
    stats["train"] = {"leaked rows left out": len(texts) - len(kept)}
    report(f"train data: {len(texts) - len(kept):,} of {len(texts):,} rows occur in the other splits: left out.")
    return DatasetDict({**dataset, "train": select_rows(dataset["train"], kept)}), stats


def text_numbers(rows: Dataset, column: str) -> np.ndarray:
    """Return the number of each row's text among the distinct ones, in the order of their first rows."""
    keys = text_keys(rows, column)
    first = np.empty(len(keys), np.int32 if len(keys) < 2**31 else np.int64)  # row with the same text
    share = keys % SHARES
    for number in range(SHARES):  # sorting takes many times the memory of what is sorted
        members = np.flatnonzero(share == number)
        _, firsts, inverse = np.unique(keys[members], return_index=True, return_inverse=True)
        first[members] = members[firsts][inverse]
    ranks = np.cumsum(first == np.arange(len(first), dtype=first.dtype), dtype=first.dtype) - 1
    return ranks[first]


def text_keys(rows: Dataset, column: str) -> np.ndarray:
    """Return a hash of 64 bits of each row's text: two of a million texts have the same with a chance of 3e-8."""
    keys = [np.zeros(0, np.uint64)]
    for cells in arrow_column(rows, column).chunks:
        texts = cells.cast(pa.large_binary()).to_pylist()
        hashes = b"".join(hashlib.blake2b(text, digest_size=8).digest() for text in texts)
        keys.append(np.frombuffer(hashes, np.uint64))
    return np.concatenate(keys)


def cap(rows: Dataset, count: int | None, seed: int) -> Dataset:
    """Return at most `count` rows, drawn by the seed, in their order."""
    if count is None or count >= len(rows):
        return rows
    return select_rows(rows, np.array(sorted(Random(seed).sample(range(len(rows)), count))))
