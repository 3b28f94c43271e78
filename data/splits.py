"""Training, validation and test splits: held out, capped, and without texts that are also in another split."""

import hashlib
import re
import unicodedata
from random import Random
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, DatasetDict

from vanillaformer.console.reporting import report

from .arguments import COLUMNS, DataArguments
from .rows import ORDER, PLAIN, DataStats, arrow_column, distinct_cells, select_rows
from .tasks import TASKS, TaskName

Fractions = dict[str, float]  # of held-out rows, by split
MANY = 100  # documents from which on whole ones are held out; of fewer, their ends


def divide(dataset: DatasetDict, task: TaskName, data_args: DataArguments) -> tuple[DatasetDict, DataStats]:
    """Return the splits, with validation data and at most as many rows as asked for, and counts of shared texts."""
    caps = {"validation": data_args.max_validation_samples, "test": data_args.max_test_samples}

    def capped(splits: DatasetDict) -> DatasetDict:
        return DatasetDict({split: cap(rows, caps.get(split), data_args.split_seed) for split, rows in splits.items()})

    dataset, before = capped(dataset), cast(DataStats, {})
    if data_args.drop_leaked_rows:  # before more rows are held out
        dataset, before = without_leaks(dataset, task, drop=True)
    dataset = capped(hold_out(dataset, task, data_args))
    if not data_args.drop_leaked_rows:  # compare only the rows that are trained on
        dataset["train"] = cap(dataset["train"], data_args.max_train_samples, data_args.split_seed)
    dataset, leaks = without_leaks(dataset, task, drop=data_args.drop_leaked_rows)
    for split, counts in before.items():
        leaks[split] |= {name: count + leaks[split].get(name, 0) for name, count in counts.items()}
    dataset["train"] = cap(dataset["train"], data_args.max_train_samples, data_args.split_seed)
    return dataset, leaks


def hold_out(dataset: DatasetDict, task: TaskName, data_args: DataArguments) -> DatasetDict:
    """Take validation data, where there is none, and `test_fraction` out of the training split.

    `hold_out="random"` draws distinct texts, so that rows with the same text (`alike`) stay together; the test split
    depends only on its own fraction. Of labeled rows it draws the same share of every class, and leaves every class a
    text in the training split. `hold_out="end"` takes the last rows (after sorting by `in_order`, rows with equal
    values stay together); the last of all are test data.

    The fractions are of the rows, or distinct texts. Of a single text, or of fewer than `MANY` documents, they are of
    the characters: the last ones of each are held out.
    """
    fractions = {"validation": data_args.validation_fraction}
    if "validation" in dataset:
        given = fractions.pop("validation")
        if given != type(data_args).validation_fraction:
            report(f"--validation_fraction {given} is not used: there is validation data already.")
    if data_args.test_fraction:
        if "test" in dataset:
            raise ValueError(f"--test_fraction {data_args.test_fraction}: there is test data already")
        fractions["test"] = data_args.test_fraction
    rows, at_end = dataset["train"], data_args.hold_out == "end"
    if fractions:
        running = not TASKS[task].whole_texts and "text" in rows.column_names and data_args.turns_column is None
        few = len(rows) == 1 or (data_args.sample_by == "document" and len(rows) < MANY)
        if running and few and ORDER not in rows.column_names:
            parts = _cut(rows, fractions, at_end=at_end)
        elif at_end:
            parts = _from_the_end(rows, fractions, data_args.order_column)
        else:
            parts = _at_random(rows, task, fractions, data_args.split_seed)
        dataset = DatasetDict({**dataset, **parts})
    ordered = {split: [name for name in part.column_names if name == ORDER] for split, part in dataset.items()}
    return DatasetDict({split: part.remove_columns(ordered[split]) for split, part in dataset.items()})


def _distinct(count: int, column: str) -> str:
    return f"{count} distinct {column}{'' if count == 1 else 's'}"


def _at_random(rows: Dataset, task: TaskName, fractions: Fractions, seed: int) -> dict[str, Dataset]:
    texts = pa.array(text_keys(rows, task)).dictionary_encode()  # distinct, in the order of their first rows
    number_of, size, column = texts.indices.to_numpy(), len(texts.dictionary), COLUMNS[task][0]
    if size <= len(fractions):
        given = " or ".join(f"--{split}_file" for split in fractions)
        raise ValueError(
            f"a {' and a '.join(fractions)} part cannot be split from {_distinct(size, column)}: give {given}"
        )
    left, parts = np.arange(size), np.zeros(size, np.int8)  # the number of each text's split
    labels = arrow_column(rows, "label").to_numpy() if "label" in rows.column_names else None
    names = ["train", *fractions]
    for split in sorted(fractions):  # the test first, so that it does not depend on the validation fraction
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


def _drawn_by_class(left: np.ndarray, numbers: np.ndarray, labels: np.ndarray, count: int, rng: Random) -> np.ndarray:
    """Draw texts evenly from the classes, leaving each class at least one; fewer than `count` if necessary."""
    here = np.isin(numbers, left)
    count_of_labels = int(labels.max()) + 1
    codes = np.unique(numbers[here].astype(np.int64) * count_of_labels + labels[here])
    pairs = np.stack([codes // count_of_labels, codes % count_of_labels], axis=1)
    starts = np.searchsorted(pairs[:, 0], left)  # a text usually has one class
    ends = np.append(starts[1:], len(pairs))
    random = np.random.default_rng(rng.getrandbits(64))
    turns = np.empty(len(left))
    for label in np.unique(pairs[starts, 1]):  # its n-th text is drawn when that share of each class has been drawn
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


def _from_the_end(rows: Dataset, fractions: Fractions, column: str | None) -> dict[str, Dataset]:
    """Cut the rows at the fractions; ordered rows at the nearest change of their value."""
    targets = [int(len(rows) * start) for start, _ in _bounds(fractions)]
    changes, values = np.arange(1, len(rows)), cast("list[str]", [])
    if ORDER in rows.column_names:
        values, number_of = distinct_cells(rows, ORDER)
        changes = np.flatnonzero(np.diff(number_of)) + 1
    if len(changes) < len(fractions):
        found = f"--order_column {column!r}: {_distinct(len(values), 'value')}" if values else f"{len(rows)} rows"
        raise ValueError(f"{found}: too few for {', '.join(['train', *fractions])}")
    for split, start, end in zip(("train", *fractions), targets, [*targets[1:], len(rows)]):
        if end <= start:
            raise ValueError(f"--hold_out end leaves nothing for {split} of {len(rows)} rows: change the fractions")
    cuts = [len(rows)]
    for number in reversed(range(len(fractions))):  # leave a value for each split before
        near = changes[number : np.searchsorted(changes, cuts[0])]
        cuts.insert(0, int(near[np.abs(near - targets[number + 1]).argmin()]))
    spans = dict(zip(("train", *fractions), zip([0, *cuts], cuts)))
    if values:
        words = (
            f"{split} {values[number_of[start]]} to {values[number_of[end - 1]]} ({end - start:,} rows)"
            for split, (start, end) in spans.items()
        )
        report(f"Split by {column}: {', '.join(words)}.")
    return {split: rows.select(range(start, end)) for split, (start, end) in spans.items()}


def _bounds(fractions: Fractions) -> list[tuple[float, float]]:
    """Return where the training split and the held-out splits begin and end, as parts of the whole."""
    taken = list(fractions.values())
    starts = [0, *(1 - sum(taken[number:]) for number in range(len(taken)))]
    return list(zip(starts, [*starts[1:], 1]))


def _cut(rows: Dataset, fractions: Fractions, *, at_end: bool) -> dict[str, Dataset]:
    """Hold out the end of each text, or of all texts in a row."""
    texts, parts = rows["text"][:], {}
    lengths = np.array([len(text) for text in texts])
    before, total = np.cumsum(lengths) - lengths, int(lengths.sum())
    for split, bounds in zip(("train", *fractions), _bounds(fractions)):
        if at_end:
            starts, ends = (np.clip(int(total * bound) - before, 0, lengths) for bound in bounds)
        else:
            starts, ends = ((lengths * bound).astype(int) for bound in bounds)
        pieces = [text[start:end] for text, start, end in zip(texts, starts, ends)]
        pieces = [piece for piece in pieces if piece.strip()]
        if not pieces:
            raise ValueError(f"{total} characters leave nothing for {split}: change the fractions")
        parts[split] = Dataset.from_dict({"text": pieces}, features=rows.features)
    what = "a single text: its last characters"
    if len(texts) > 1:
        what = f"{len(texts):,} texts: the last characters{'' if at_end else ' of each'}"
    report(f"The data is {what} are held out ({', '.join(fractions)}).")
    return parts


def cap(rows: Dataset, count: int | None, seed: int) -> Dataset:
    if count is None or count >= len(rows):
        return rows
    return select_rows(rows, np.array(sorted(Random(seed).sample(range(len(rows)), count))))


PAIRS = (("validation", "train"), ("test", "train"), ("test", "validation"))
"""Splits that are compared; of the second, rows can be left out."""
SIGNS = "*/\\&%#@"
"""Punctuation that stands for a word or an operation."""
OF_NUMBERS = re.compile("[.,:](?=[0-9])|[-\u2010-\u2015](?= *[0-9])")
"""Punctuation that a number has: 3 - 5 is not 3 5."""
PRIVATE = 0xE000  # the first of the characters for private use, which stand for such punctuation
WORD = re.compile(r"[^\W_]")


def without_leaks(dataset: DatasetDict, task: TaskName, *, drop: bool) -> tuple[DatasetDict, DataStats]:
    """Report how many rows of a split also occur, by source or text, in another; with `drop`, leave them out of it.

    Returns the splits, and for each the number of such rows, or of those left out; raises ValueError if none is left.
    """
    keys, column = {split: text_keys(rows, task) for split, rows in dataset.items()}, COLUMNS[task][0]
    leaked = {split: np.zeros(len(found), dtype=bool) for split, found in keys.items()}
    stats: DataStats = {split: {} for split in keys}
    for split, other in PAIRS:
        if split in keys and other in keys:
            found = np.asarray(pc.is_in(pa.array(keys[other]), value_set=pa.array(keys[split])))
            shared = int(np.isin(keys[split], keys[other][found]).sum())
            if shared:
                hint = "" if drop else " (--drop_leaked_rows leaves them out of it)"
                what = f"{shared:,} of {len(keys[split]):,} rows also occurs in the {_data(other)}"
                report(f"{split} data: the {column} of {what}{hint}.")
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


def _data(split: str) -> str:
    return f"{'training' if split == 'train' else split} data"


def text_keys(rows: Dataset, task: TaskName) -> np.ndarray:
    """Return a hash of 64 bits of each row's first text: two of a million have the same with a chance of 3e-8."""
    keys, column = [np.zeros(0, np.uint64)], PLAIN if PLAIN in rows.column_names else COLUMNS[task][0]
    for cells in arrow_column(rows, column).chunks:
        if not TASKS[task].whole_texts or pa.types.is_large_binary(cells.type):
            texts = cells.cast(pa.large_binary()).to_pylist()
        else:
            texts = [alike(text).encode() for text in cells.to_pylist()]
        digests = (hashlib.blake2b(text, digest_size=8).digest() for text in texts)
        keys.append(np.frombuffer(b"".join(digests), np.uint64))
    return np.concatenate(keys)


def alike(text: str) -> str:
    """Return a text without letter case, punctuation, extra space and differences of Unicode form, to be compared.

    Brackets, signs such as % and #, and the punctuation of numbers stay, because they can be the only difference of
    two texts. So does a text without letters and digits, such as one of emojis.
    """
    common = text.lower() if text.isascii() else unicodedata.normalize("NFKC", text).casefold()
    common = OF_NUMBERS.sub(lambda sign: chr(PRIVATE + ord(sign[0])), common)
    common = " ".join(unicodedata.normalize("NFKC", common.translate(_spaces)).split())
    return common if WORD.search(common) else text


class _Spaces(dict[int, int | str | None]):
    """A growing table for `str.translate`: punctuation becomes space, and invisible characters are dropped."""

    def __missing__(self, code: int) -> int | str | None:
        kind = unicodedata.category(chr(code))
        punctuation = kind in ("Pd", "Po", "Pi", "Pf") and chr(code) not in SIGNS
        self[code] = None if kind == "Cf" else " " if punctuation else code
        return self[code]


_spaces = _Spaces()
