"""Values of a column that orders rows: numbers, dates in one format, or names."""

import re
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

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
SAMPLE = 200
"""Values on which formats are tried that may not be those of the column."""
HOW = "write integers, decimal numbers, or dates such as 2019-01-31"


def order_keys(cells: Sequence[Any], counts: np.ndarray) -> tuple[list[Any], str]:
    """Return what distinct values are sorted by, None for those that are not of the kind of most rows, and the kind.

    Integers and decimals are compared as numbers, exactly, dates by time. Other values, such as names, are compared
    as text, if most of them are neither numbers nor dates in a format that is not known.

    Raises:
        ValueError: Saying which values are ambiguous, or unknown, in words that follow the column's name.
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
