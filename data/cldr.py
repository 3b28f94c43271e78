"""Pairs of texts in two locales: dates, times, numbers, amounts and units as the Unicode CLDR writes them.

A value is the arguments of its formats, usually functions of Babel: (*value, locale=locale) -> text. A format must
show the same fields in every locale, so that the text in one locale determines the text in the other; and amounts are
never exactly one, because the singular of a unit would appear in a single pair, which could not be learned if it is
held out.
"""

import datetime
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from random import Random
from typing import Any, Literal

from babel import Locale, UnknownLocaleError, dates, numbers, units
from datasets import Dataset, DatasetDict

Value = tuple[Any, ...]
Format = Callable[..., str]
Style = Literal["full", "long", "medium", "short"]
STYLES: tuple[Style, ...] = ("full", "long", "medium", "short")
# No yMMMd: in English it is the medium format, which German writes in digits ("6. Juni 1991" or "06.06.1991").
SKELETONS = ("yMMMEd", "yMEd", "MMMEd", "MEd", "MMMMd", "MMMd", "yMMMM", "yMMM", "yMd", "yQQQQ", "yQQQ", "GyMMM")
FIRST_DAY = datetime.datetime(1950, 1, 1, tzinfo=datetime.UTC)
CENTURY = 36_525  # days: two digits determine a year
CURRENCIES = ("USD", "EUR", "GBP", "JPY", "CHF", "CNY", "INR", "BRL", "CAD", "AUD", "SEK", "PLN", "CZK", "TRY", "KRW")
UNITS = (
    *("length-meter", "length-kilometer", "length-centimeter", "length-mile", "length-foot", "length-inch"),
    *("area-square-meter", "area-hectare", "volume-liter", "volume-cubic-meter"),
    *("mass-kilogram", "mass-gram", "mass-pound", "temperature-celsius", "temperature-fahrenheit"),
    *("speed-kilometer-per-hour", "speed-mile-per-hour", "power-watt", "power-kilowatt", "energy-kilowatt-hour"),
    *("duration-second", "duration-minute", "duration-hour", "duration-day", "duration-week", "duration-month"),
    *("duration-year", "digital-megabyte", "digital-gigabyte"),
)
SECONDS: dict[Any, int] = dict(reversed(dates.TIMEDELTA_UNITS))  # of a unit of time, the shortest first


@dataclass(frozen=True)
class Kind:
    """A kind of values: how to draw one, and all formats it may have (none: nothing can be drawn)."""

    draw: Callable[[Random], Value]
    formats: Sequence[Format]


def _amount(rng: Random, integer_digits: int, fraction_digits: int) -> Decimal:
    """Draw a positive amount of at least two; every number of digits is equally likely."""
    digits = rng.randint(1, integer_digits)
    whole = rng.randrange(max(2, 10 ** (digits - 1)), 10**digits)
    fraction = rng.randrange(10**fraction_digits)
    return Decimal(whole) + Decimal(fraction).scaleb(-fraction_digits)


def _signed_amount(rng: Random, integer_digits: int, fraction_digits: int) -> Decimal:
    amount = _amount(rng, integer_digits, fraction_digits)
    return -amount if rng.random() < 0.15 else amount


def _distinct(members: Sequence[Value], formats: Sequence[Format], source: Locale, target: Locale) -> list[Value]:
    """Drop members that the source locale writes like another member, unless the target locale does so too.

    Two formats that collide for one member are detected when it is drawn.
    """
    meanings: dict[str, set[tuple[Value, str]]] = {}
    for member in members:
        for write in formats:
            text = write(*member, locale=source)
            meanings.setdefault(text, set()).add((member, write(*member, locale=target)))
    clashing = {
        member
        for found in meanings.values()
        if len({member for member, _ in found}) > 1 and len({text for _, text in found}) > 1
        for member, _ in found
    }
    return [member for member in members if member not in clashing]


def _moment(rng: Random) -> tuple[datetime.datetime]:
    return (FIRST_DAY + datetime.timedelta(days=rng.randrange(CENTURY), seconds=rng.randrange(86_400)),)


def _dates(source: Locale, target: Locale) -> Kind:
    shared = [s for s in SKELETONS if s in source.datetime_skeletons and s in target.datetime_skeletons]
    styles = [partial(dates.format_date, format=style) for style in STYLES]
    return Kind(_moment, [*styles, *(partial(dates.format_skeleton, name) for name in shared)])


def _datetime(value: datetime.datetime, styles: tuple[Style, Style], locale: Locale) -> str:
    date, time = dates.format_date(value, styles[0], locale), dates.format_time(value, styles[1], locale=locale)
    pattern = str(dates.get_datetime_format(styles[0], locale=locale)).replace("'", "")
    return pattern.replace("{0}", time).replace("{1}", date)


def _relative_times(source: Locale, target: Locale) -> Kind:
    def draw(rng: Random) -> Value:
        return int(_amount(rng, 3, 0)) * rng.choice((-1, 1)), rng.choice(list(SECONDS))

    def write(count: int, unit: Any, locale: Locale) -> str:
        # A threshold that is never reached, so that the unit is never replaced by a larger one.
        return dates.format_timedelta(count * SECONDS[unit], unit, 1e12, add_direction=True, locale=locale)

    return Kind(draw, [write])


def _numbers(write: Callable[..., str], scale: int, digits: int, decimals: int) -> Kind:
    """Return numbers of up to `digits` digits and `decimals` decimals, divided by `scale` when written."""
    return Kind(
        lambda rng: (_signed_amount(rng, digits, rng.randint(0, decimals)),),
        [lambda value, locale: write(value / scale, locale=locale, decimal_quantization=False)],
    )


def _compact_numbers(source: Locale, target: Locale) -> Kind:
    def draw(rng: Random) -> Value:
        return (_amount(rng, 3, 1).scaleb(rng.choice((3, 6, 9, 12))),)

    def write(value: Decimal, locale: Locale) -> str:
        # Three digits: 25.5 thousand are 2.55万. Long forms are in CLDR only where they differ from the short ones.
        form: Literal["long", "short"] = "long" if "long" in locale.compact_decimal_formats else "short"
        return numbers.format_compact_decimal(value, format_type=form, locale=locale, fraction_digits=3)

    return Kind(draw, [write])


def _currencies(source: Locale, target: Locale) -> Kind:
    formats = [partial(numbers.format_currency, format_type=form) for form in ("standard", "name")]
    codes = [code for _, code in _distinct([(Decimal(25), code) for code in CURRENCIES], formats, source, target)]

    def draw(rng: Random) -> Value:
        code = rng.choice(codes)
        return _signed_amount(rng, 7, numbers.get_currency_precision(code)), code

    return Kind(draw, formats if codes else [])


def _units(source: Locale, target: Locale) -> Kind:
    formats = [partial(units.format_unit, length=length) for length in ("long", "short")]
    # Where CLDR has no pattern Babel writes the unit's identifier.
    values, both = [(Decimal(25), name) for name in UNITS], (source, target)
    known = [v for v in values if not any(v[1] in write(*v, locale=loc) for write in formats for loc in both)]
    names = [name for _, name in _distinct(known, formats, source, target)]
    return Kind(lambda rng: (_signed_amount(rng, 4, rng.randint(0, 2)), rng.choice(names)), formats if names else [])


# CLDR's long, medium and short date-times, and the same dates and the full one with hours and minutes only
DATE_TIMES = (*((style, style) for style in STYLES[1:]), *((style, "short") for style in STYLES[:-1]))
KINDS: dict[str, Callable[[Locale, Locale], Kind]] = {
    "date": _dates,
    "time": lambda source, target: Kind(_moment, [partial(dates.format_time, format=style) for style in STYLES]),
    "datetime": lambda source, target: Kind(_moment, [partial(_datetime, styles=styles) for styles in DATE_TIMES]),
    "relative": _relative_times,
    "number": lambda source, target: _numbers(numbers.format_decimal, 1, 9, 4),
    "percent": lambda source, target: _numbers(numbers.format_percent, 100, 4, 3),
    "compact": _compact_numbers,
    "currency": _currencies,
    "unit": _units,
}
MIN_SIZE = 100
PATIENCE = 2_000  # draws in a row without a new pair after which a kind counts as exhausted


def cldr_translation(
    source: str = "en", target: str = "de", *, size: int = 30_000, seed: int = 0, kinds: Sequence[str] = tuple(KINDS)
) -> DatasetDict:
    """Return pairs of texts that say the same in two locales: columns `source`, `target`, `kind`.

    The corpus is a function of the source: a text that two formats of its kind, or two drawn values, would translate
    differently is left out ("May 6, 1991" is both the long and the medium date in English). The splits have no source
    in common; validation and test have a thirtieth of the pairs each. Non-breaking spaces become plain spaces, so that
    typed text looks like the training data.

    Locales are as Babel names them: `en`, `pt_BR`, `zh_Hans` (`pt-BR` works too). The same seed (and Babel version)
    gives the same corpus.
    """
    locales = _locale("source", source), _locale("target", target)
    if locales[0] == locales[1]:
        raise ValueError(f"source and target are the same locale, {source!r}: nothing to translate")
    if not isinstance(size, int) or size < MIN_SIZE:
        raise ValueError(f"size={size!r}: a corpus has at least {MIN_SIZE} pairs")
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown or not kinds:
        raise ValueError(f"kinds={list(kinds)}: choose from {', '.join(KINDS)}")
    rows = _collect({kind: KINDS[kind](*locales) for kind in kinds}, *locales, size=size, seed=seed)
    return DatasetDict({name: Dataset.from_list(part) for name, part in parted(rows, size // 30).items()})


def parted(rows: Any, held_out: int) -> dict[str, Any]:
    return {"train": rows[2 * held_out :], "validation": rows[:held_out], "test": rows[held_out : 2 * held_out]}


def _locale(side: str, name: str) -> Locale:
    try:
        return Locale.parse(name.replace("-", "_"))
    except (UnknownLocaleError, ValueError, TypeError, AttributeError):
        raise ValueError(
            f"{side} locale {name!r} is not one that Babel knows: use a CLDR name such as en, de, pt_BR, zh_Hans"
        ) from None


def _plain(text: str) -> str:
    return re.sub(r"\s", " ", text)


def _collect(kinds: dict[str, Kind], source: Locale, target: Locale, *, size: int, seed: int) -> list[dict[str, str]]:
    """Draw rows of each kind in turn until there are `size`, and shuffle them.

    A source with two translations is excluded for good.
    """
    rng, active = Random(f"{source}-{target}-{seed}"), {name: kind for name, kind in kinds.items() if kind.formats}
    pairs: dict[str, dict[str, str]] = {}  # by the source
    ambiguous: set[str] = set()

    def draw(name: str, kind: Kind) -> bool:
        """Draw a value and a format; return whether that made a new row."""
        value, write = kind.draw(rng), rng.choice(kind.formats)
        text = _plain(write(*value, locale=source))
        rivals = [other for other in kind.formats if _plain(other(*value, locale=source)) == text]
        translations = {_plain(rival(*value, locale=target)) for rival in rivals}
        if text in pairs:
            translations.add(pairs[text]["target"])
        if len(translations) > 1:
            ambiguous.add(text)
            pairs.pop(text, None)
        if text in pairs or text in ambiguous:
            return False
        pairs[text] = {"source": text, "target": translations.pop(), "kind": name}
        return True

    while len(pairs) < size and active:
        for name, kind in list(active.items()):
            if not any(draw(name, kind) for _ in range(PATIENCE)):
                del active[name]
    if len(pairs) < size:
        raise ValueError(f"size={size}: the kinds {', '.join(kinds)} have no more than {len(pairs)} pairs")
    rows = list(pairs.values())
    rng.shuffle(rows)
    return rows[:size]
