"""Rows divided, sorted or marked by columns: names of splits; numbers, dates, or names; tasks and languages."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from .arguments import SPLITS
from .rows import GROUP, ORDER, PLAIN, SplitRows, distinct_words, select_rows

LIKE_A_DATE = re.compile(r"\d.*\b(?:19|20)\d\d\b|\b(?:19|20)\d\d\b.*\d")
MONTH = re.compile(r"(?:0?[1-9]|1[0-2])\.(?:19|20)\d\d")
LANGUAGE_TOKEN = "<2{}>"  # before a source, the language to write (Johnson et al. 2017)
HOW = "write integers, decimal numbers, or dates such as 2019-01-31"


def order_keys(cells: Sequence[Any], counts: np.ndarray) -> tuple[list[Any], str]:
    """Return the sort keys of distinct values, None for values of another kind than most rows have, and the kind.

    Integers and decimals are compared as numbers, exactly, ISO dates by time. Other values, such as names, are
    compared as text, if most of them are neither numbers nor dates in another format.
    """
    given = [cell not in (None, "") for cell in cells]
    parsers: dict[str, Callable[[Any], Any]] = {
        "a number": _number,
        "a date such as 2019-01-31": partial(_date, zone=False),
        "a date with a time zone, such as 2019-01-31 12:00Z": partial(_date, zone=True),
    }
    pairs = list(zip(cells, given))
    found = {kind: [parse(cell) if here else None for cell, here in pairs] for kind, parse in parsers.items()}
    rows = {kind: counts[[key is not None for key in keys]].sum() for kind, keys in found.items()}
    kind = max(rows, key=lambda kind: rows[kind])
    words = [str(cell).strip() for cell, here in pairs if here]
    if not rows[kind] or 2 * rows[kind] < counts[given].sum():
        strange = [word for word in words if LIKE_A_DATE.search(word) or not re.search(r"[^\W\d]", word)]
        if 2 * len(strange) > len(words):
            raise ValueError(f"holds {strange[0]!r}, which is not a number or an ISO date: {HOW}")
        return [str(cell) if here else None for cell, here in pairs], "text"
    if kind == "a number" and all(map(MONTH.fullmatch, words)):
        raise ValueError(f"holds {words[0]!r}, a decimal number or a month: write months as in 2019-01")
    return found[kind], kind


def _number(cell: Any) -> Decimal | None:
    try:
        number = Decimal(cell)
    except (InvalidOperation, TypeError, ValueError):
        return None
    return number if number.is_finite() else None


def _date(cell: Any, zone: bool) -> tuple[datetime, str] | None:
    """Return a date or time with a time zone, in UTC, or without one, as `zone` says; None for any other text.

    After it come the digits below a microsecond.
    """
    text = cell.isoformat() if isinstance(cell, date) else str(cell).strip()
    try:
        day = datetime.fromisoformat(f"{text}-01" if re.fullmatch(r"\d{4}-\d\d", text) else text)
    except ValueError:
        return None
    if (day.tzinfo is not None) != zone:
        return None
    finer = re.search(r"[.,]\d{6}(\d+)", text)
    return day.astimezone(UTC).replace(tzinfo=None) if zone else day, finer[1].rstrip("0") if finer else ""


def by_column(split: SplitRows, column: str) -> dict[str, SplitRows]:
    """Return the splits of rows that a column names."""
    cells, number_of = distinct_words(split.rows, column)
    number_of_word = {word: number for number, words in enumerate(SPLITS.values()) for word in words}
    found = [number_of_word.get(cell.strip().lower(), -1) if isinstance(cell, str) else -1 for cell in cells]
    known, numbers = ", ".join(number_of_word), np.array(found, dtype=np.int64)[number_of]
    split = split.without(
        numbers < 0,
        lambda index: f"{cells[number_of[index]]!r} in --split_column {column!r} names no split (known are {known})",
    )
    numbers = numbers[numbers >= 0]
    chosen = {name: np.flatnonzero(numbers == number) for number, name in enumerate(SPLITS)}
    if not len(chosen["train"]):
        raise ValueError(f"{split.name}: no row has 'train' in --split_column {column!r}")
    parts = {}
    for name, rows in ((name, rows) for name, rows in chosen.items() if len(rows)):
        stats = split.stats if name == "train" else {}
        parts[name] = replace(split, split=name, rows=select_rows(split.rows, rows), stats=stats)
    return parts


def in_order(split: SplitRows, column: str) -> SplitRows:
    """Return rows sorted by a column, with its values as `ORDER`; rows with equal values keep their order."""
    name = f"--order_column {column!r}"
    cells, number_of = distinct_words(split.rows, column)
    try:
        keys, kind = order_keys(cells, np.bincount(number_of, minlength=len(cells)))
    except ValueError as error:
        raise ValueError(f"{split.name}: {name} {error}") from error
    if kind == "text":
        split.report("order", f"{name} holds neither numbers nor dates: it is ordered as text.")

    def problem(index: int) -> str:
        cell = cells[number_of[index]]
        return f"{name} is empty" if cell in (None, "") else f"{name} holds {cell!r}, which is not {kind}"

    split = split.without(np.array([key is None for key in keys], dtype=bool)[number_of], problem)
    words = {}
    for cell, key in zip(reversed(cells), reversed(keys)):
        if isinstance(key, tuple):  # dates are written in one format, other values as in the data
            day, finer = key
            words[key] = (day.isoformat(" ", "microseconds" if finer else "auto") + finer).removesuffix(" 00:00:00")
        elif key is not None:
            words[key] = str(cell)
    rank = {key: number for number, key in enumerate(sorted(words))}
    ranks = np.array([rank.get(key, -1) for key in keys], dtype=np.int64)[number_of]
    ranks = ranks[ranks >= 0]
    values = pa.array([words[key] for key in rank], pa.string()).take(pa.array(ranks))
    return split.with_rows(select_rows(split.rows.add_column(ORDER, values), np.argsort(ranks, kind="stable")))


def with_marks(split: SplitRows, data_args: Any) -> SplitRows:
    """Return rows with `--source_prefix`, the row's task ("task: ") and its language token before the source."""
    forms = {data_args.task_column: "{}: ", data_args.target_lang_column: LANGUAGE_TOKEN}
    forms = {column: form for column, form in forms.items() if column is not None}
    names: list[np.ndarray] = []
    for column in forms:
        cells, number_of = distinct_words(split.rows, column)
        words = ["" if cell is None else str(cell).strip() for cell in cells]
        names.append(np.array(words, dtype=object)[number_of])
    if forms:
        empty = np.stack(names) == ""
        split, names = split.without_empty(list(forms), empty), [side[~empty.any(axis=0)] for side in names]
    source, prefix = split.columns["source_column"], data_args.source_prefix or ""
    texts: list[str | None] = []
    for text, *row in zip(split.rows[source][:], *names):
        marks = "".join(form.format(name) for form, name in zip(forms.values(), row))
        texts.append(text if text is None or not text.strip() else prefix + marks + text)
    rows = split.rows.rename_column(source, PLAIN).add_column(source, pa.array(texts, pa.large_string()))
    return split.with_rows(rows.add_column(GROUP, pa.array(map("_".join, zip(*names)))) if names else rows)


def sampled_rows(groups: Sequence[str], temperature: float, seed: int) -> np.ndarray:
    """Return the rows of an epoch in which groups of n rows have shares of n^(1/T) (Arivazhagan et al. 2019).

    The largest group is read once, and the others are repeated; their last repetition is a random part of the group.
    """
    _, group_of, counts = np.unique(np.asarray(groups), return_inverse=True, return_counts=True)
    times = (counts.max() / counts) ** (1 - 1 / temperature)
    draw, parts = np.random.default_rng(seed), []
    for group, factor in enumerate(times):
        rows = np.flatnonzero(group_of == group)
        rest = round((factor - int(factor)) * len(rows))
        parts += [np.tile(rows, int(factor)), draw.permutation(rows)[:rest]]
    return np.sort(np.concatenate(parts))
