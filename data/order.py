"""Rows divided or sorted by a column: names of splits; numbers, dates in one format, or names."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from .arguments import SPLITS
from .caching import select_rows
from .rows import ORDER, SplitRows, distinct_words

SLASHED = ("%m/%d/%Y", "%d/%m/%Y", "%Y/%m/%d", "%m/%d/%y", "%d/%m/%y", "%y/%m/%d", "%m/%Y")
WORDS = ("%b %d %Y", "%B %d %Y", "%d %b %Y", "%d %B %Y", "%b %Y", "%B %Y", "%Y %b %d", "%d-%b-%Y", "%d-%b-%y")
DATES = (*SLASHED, *(form.replace("/", "-") for form in SLASHED), "%Y-%m", "%d.%m.%Y", "%d.%m.%y", "%Y.%m.%d", *WORDS)
"""Formats of days and months, with or without padding; a weekday, commas and a time of day may be added."""
WEEKDAY = re.compile(r"^(mon|tue|wed|thu|fri|sat|sun)[a-z]*[. ]+", re.IGNORECASE)
CLOCK = re.compile(
    r"(?:T| +)(\d{1,2}):([0-5]\d)(?::([0-5]\d)(?:\.(\d{1,6})\d*)?)?(?: ?([AP])\.?M\.?)?"
    r"(?: ?(Z|UTC|GMT|[+-]\d\d:?\d\d))?(?= |$)",
    re.IGNORECASE,
)
LIKE_A_DATE = re.compile(r"\d.*\b(?:19|20)\d\d\b|\b(?:19|20)\d\d\b.*\d")
MONTH = re.compile(r"(?:0?[1-9]|1[0-2])\.(?:19|20)\d\d")
SAMPLE = 200  # values on which formats are tried that may not be those of the column
HOW = "write integers, decimal numbers, or dates such as 2019-01-31"


def order_keys(cells: Sequence[Any], counts: np.ndarray) -> tuple[list[Any], str]:
    """Return what distinct values are sorted by, None for those that are not of the kind of most rows, and the kind.

    Integers and decimals are compared as numbers, exactly, dates by time. Other values, such as names, are compared
    as text, if most of them are neither numbers nor dates in a format that is not known.
    """
    given = [cell for cell in cells if cell is not None and cell != ""]
    parsers: dict[str, Callable[[Any], Any]] = {"a number": _number}
    for form in DATES:
        for zone in (False, True):
            parsers[f"a date in the format {form}{' with a time zone' * zone}"] = partial(_date, form=form, zone=zone)
    parsers = {
        kind: parse
        for kind, parse in parsers.items()
        if any(parse(cell) is not None for cell in islice(given, SAMPLE))
    }
    found = {kind: [None if cell in (None, "") else parse(cell) for cell in cells] for kind, parse in parsers.items()}
    rows = {kind: int(counts[[key is not None for key in keys]].sum()) for kind, keys in found.items()}
    kind = max(rows, key=lambda kind: rows[kind], default="")
    if not kind or 2 * rows[kind] < counts[[cell not in (None, "") for cell in cells]].sum():
        strange = [cell for cell in map(str, given) if LIKE_A_DATE.search(cell) or not re.search(r"[^\W\d]", cell)]
        if 2 * len(strange) > len(given):
            raise ValueError(f"holds {strange[0]!r}, which is in no format that is known: {HOW}")
        return [str(cell) if cell not in (None, "") else None for cell in cells], "text"
    if kind == "a number" and all(MONTH.fullmatch(str(cell).strip()) for cell in given):
        raise ValueError(f"holds {given[0]!r}, a decimal number or a month: write months as in 2019-01")
    for other in (other for other in found if rows[other] == rows[kind]):
        for cell, one, two in zip(cells, found[kind], found[other]):
            if None not in (one, two) and one != two:
                raise ValueError(
                    f"holds dates that are ambiguous, such as {cell!r}, {one:%B %d, %Y} or {two:%B %d, %Y}: write "
                    f"{one:%Y-%m-%d} or {two:%Y-%m-%d}"
                )
    return found[kind], kind


def _number(cell: Any) -> Decimal | None:
    try:
        number = Decimal(cell)
    except (InvalidOperation, TypeError, ValueError):
        return None
    return number if number.is_finite() else None


def _date(cell: Any, form: str, zone: bool) -> datetime | None:
    """Return a date or time, in UTC where it has a time zone; None if it is not in a format, or has or lacks one."""
    if isinstance(cell, date):
        cell = cell.isoformat()
    elif not isinstance(cell, str):
        return None
    text, time, offset = WEEKDAY.sub("", " ".join(cell.replace(",", " ").split())), timedelta(), None
    if clock := CLOCK.search(text):
        hour, minute, second, fraction, half, offset = clock.groups()
        hour = int(hour) if half is None else int(hour) % 12 + 12 * (half in "Pp")
        time = timedelta(hours=hour, minutes=int(minute), seconds=int(second or 0))
        time += timedelta(microseconds=int((fraction or "").ljust(6, "0")))
        text = WEEKDAY.sub("", text[: clock.start()] + text[clock.end() :])
    if (offset is not None) != zone or time >= timedelta(days=1):
        return None
    try:
        day = datetime.strptime(text, form)
        if offset and offset[0] in "+-":
            day = day.replace(tzinfo=datetime.strptime(offset, "%z").tzinfo).astimezone(UTC).replace(tzinfo=None)
    except (ValueError, OverflowError):
        return None
    return day + time


def by_column(split: SplitRows, column: str) -> dict[str, SplitRows]:
    """Return the splits of rows whose column says which split they belong to."""
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
    """Return rows sorted by a column, with its values as `ORDER`; rows with equal ones stay in their order."""
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
    words = {  # dates in one form, other values as they stand in the data
        key: key.isoformat(" ").removesuffix(" 00:00:00") if isinstance(key, datetime) else str(cell)
        for cell, key in zip(reversed(cells), reversed(keys))
        if key is not None
    }
    rank = {key: number for number, key in enumerate(sorted(words))}
    ranks = np.array([rank.get(key, -1) for key in keys], dtype=np.int64)[number_of]
    ranks = ranks[ranks >= 0]
    values = pa.array([words[key] for key in rank], pa.string()).take(pa.array(ranks))
    return split.with_rows(select_rows(split.rows.add_column(ORDER, values), np.argsort(ranks, kind="stable")))
