"""Kinds of values that the translation corpus is made of, and the CLDR formats that write each of them.

A format is a function (value, locale) -> text. It must show the same fields in every locale, so that the text in one
locale determines the text in the other; and amounts are never exactly one, because the singular of a unit would
appear in a single pair, from which nobody can learn what to do with a pair held out.
"""

import datetime
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from random import Random
from typing import Any, Literal

from babel import Locale, dates, numbers, units

Format = Callable[[Any, Locale], str]
Style = Literal["full", "long", "medium", "short"]
Length = Literal["long", "short"]

STYLES: tuple[Style, ...] = ("full", "long", "medium", "short")
# No yMMMd: in English it is the medium format, which German writes in digits ("6. Juni 1991" or "06.06.1991").
SKELETONS = ("yMMMEd", "yMEd", "MMMEd", "MEd", "MMMMd", "MMMd", "yMMMM", "yMMM", "yMd", "yQQQQ", "yQQQ", "GyMMM")
FIRST_DAY, CENTURY = datetime.date(1950, 1, 1), 36_525  # exactly one century: two digits determine a year
CURRENCIES = ("USD", "EUR", "GBP", "JPY", "CHF", "CNY", "INR", "BRL", "CAD", "AUD", "SEK", "PLN", "CZK", "TRY", "KRW")
UNITS = (
    *("length-meter", "length-kilometer", "length-centimeter", "length-mile", "length-foot", "length-inch"),
    *("area-square-meter", "area-hectare", "volume-liter", "volume-cubic-meter"),
    *("mass-kilogram", "mass-gram", "mass-pound", "temperature-celsius", "temperature-fahrenheit"),
    *("speed-kilometer-per-hour", "speed-mile-per-hour", "power-watt", "power-kilowatt", "energy-kilowatt-hour"),
    *("duration-second", "duration-minute", "duration-hour", "duration-day", "duration-week", "duration-month"),
    *("duration-year", "digital-megabyte", "digital-gigabyte"),
)
SECONDS: dict[Literal["second", "minute", "hour", "day", "week", "month", "year"], int] = {
    "second": 1,
    "minute": 60,
    "hour": 3_600,
    "day": 86_400,
    "week": 604_800,
    "month": 2_592_000,
    "year": 31_536_000,
}


@dataclass(frozen=True)
class Kind:
    """Values of one sort: how to draw one, and all the formats it may appear in (none: nothing can be drawn)."""

    draw: Callable[[Random], Any]
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


def _distinct(members: Iterable[Any], formats: Sequence[Format], source: Locale, target: Locale) -> list[Any]:
    """Leave out members that the source locale writes like another member and the target locale does not.

    Two formats that collide for one member are found when it is drawn.
    """
    members = list(members)
    meanings: dict[str, set[tuple[Any, str]]] = {}
    for member in members:
        for write in formats:
            meanings.setdefault(write(member, source), set()).add((member, write(member, target)))
    clashing = {
        member
        for found in meanings.values()
        if len({member for member, _ in found}) > 1 and len({text for _, text in found}) > 1
        for member, _ in found
    }
    return [member for member in members if member not in clashing]


def _moment(rng: Random) -> datetime.datetime:
    day = FIRST_DAY + datetime.timedelta(days=rng.randrange(CENTURY))
    second = datetime.timedelta(seconds=rng.randrange(86_400))
    return datetime.datetime.combine(day, datetime.time(), datetime.UTC) + second


def _date(style: Style, value: datetime.datetime, locale: Locale) -> str:
    return dates.format_date(value, style, locale)


def _skeleton(skeleton: str, value: datetime.datetime, locale: Locale) -> str:
    return dates.format_skeleton(skeleton, value, locale=locale)


def _time(style: Style, value: datetime.datetime, locale: Locale) -> str:
    return dates.format_time(value, style, locale=locale)


def _datetime(date_style: Style, time_style: Style, value: datetime.datetime, locale: Locale) -> str:
    pattern = str(dates.get_datetime_format(date_style, locale=locale)).replace("'", "")
    return pattern.replace("{0}", _time(time_style, value, locale)).replace("{1}", _date(date_style, value, locale))


def _dates(source: Locale, target: Locale) -> Kind:
    shared = [s for s in SKELETONS if s in source.datetime_skeletons and s in target.datetime_skeletons]
    return Kind(_moment, [partial(_date, s) for s in STYLES] + [partial(_skeleton, s) for s in shared])


def _relative_times(source: Locale, target: Locale) -> Kind:
    def draw(rng: Random) -> tuple[int, Any]:
        return int(_amount(rng, 3, 0)) * rng.choice((-1, 1)), rng.choice(list(SECONDS))

    def write(value: tuple[int, Any], locale: Locale) -> str:
        count, unit = value
        # A threshold that is never reached: the unit asked for, never a larger one.
        return dates.format_timedelta(
            count * SECONDS[unit], granularity=unit, threshold=1e12, add_direction=True, locale=locale
        )

    return Kind(draw, [write])


def _numbers(write: Callable[..., str], scale: int, digits: int, decimals: int) -> Kind:
    """Return numbers of as many digits and decimals, which are written after division by a scale."""

    def written(value: Decimal, locale: Locale) -> str:
        return write(value / scale, locale=locale, decimal_quantization=False)

    return Kind(lambda rng: _signed_amount(rng, digits, rng.randint(0, decimals)), [written])


def _compact_numbers(source: Locale, target: Locale) -> Kind:
    def draw(rng: Random) -> Decimal:
        return _amount(rng, 3, 1).scaleb(rng.choice((3, 6, 9, 12)))

    def write(value: Decimal, locale: Locale) -> str:
        # Three digits: 25.5 thousand are 2.55万. Long forms are in CLDR only where they differ from the short ones.
        form: Length = "long" if "long" in locale.compact_decimal_formats else "short"
        return numbers.format_compact_decimal(value, format_type=form, locale=locale, fraction_digits=3)

    return Kind(draw, [write])


def _currency(form: Literal["standard", "name"], value: tuple[Decimal, str], locale: Locale) -> str:
    return numbers.format_currency(*value, locale=locale, format_type=form)


def _currencies(source: Locale, target: Locale) -> Kind:
    formats = [partial(_currency, "standard"), partial(_currency, "name")]
    codes = [c for _, c in _distinct([(Decimal(25), c) for c in CURRENCIES], formats, source, target)]

    def draw(rng: Random) -> tuple[Decimal, str]:
        code = rng.choice(codes)
        return _signed_amount(rng, 7, numbers.get_currency_precision(code)), code

    return Kind(draw, formats if codes else [])


def _unit(length: Length, value: tuple[Decimal, str], locale: Locale) -> str:
    return units.format_unit(*value, length=length, locale=locale)


def _units(source: Locale, target: Locale) -> Kind:
    formats = [partial(_unit, "long"), partial(_unit, "short")]
    # Where CLDR has no pattern Babel writes the unit's identifier.
    known = [
        u for u in UNITS if not any(u in write((Decimal(25), u), loc) for write in formats for loc in (source, target))
    ]
    names = [u for _, u in _distinct([(Decimal(25), u) for u in known], formats, source, target)]
    return Kind(lambda rng: (_signed_amount(rng, 4, rng.randint(0, 2)), rng.choice(names)), formats if names else [])


def _names(attribute: str, source: Locale, target: Locale) -> Kind:
    def write(code: str, locale: Locale) -> str:
        return getattr(locale, attribute)[code]

    shared = sorted(set(getattr(source, attribute)) & set(getattr(target, attribute)))
    codes = _distinct(shared, [write], source, target)
    return Kind(lambda rng: rng.choice(codes), [write] if codes else [])


# CLDR's long, medium and short date-times, and the same dates and the full one with hours and minutes only
DATE_TIMES = (*((style, style) for style in STYLES[1:]), *((style, "short") for style in STYLES[:-1]))
PATTERN_KINDS: dict[str, Callable[[Locale, Locale], Kind]] = {
    "date": _dates,
    "time": lambda source, target: Kind(_moment, [partial(_time, style) for style in STYLES]),
    "datetime": lambda source, target: Kind(_moment, [partial(_datetime, *styles) for styles in DATE_TIMES]),
    "relative": _relative_times,
    "number": lambda source, target: _numbers(numbers.format_decimal, 1, 9, 4),
    "percent": lambda source, target: _numbers(numbers.format_percent, 100, 4, 3),
    "compact": _compact_numbers,
    "currency": _currencies,
    "unit": _units,
}
# Names must be memorized: a name that was held out cannot be derived from the others.
NAME_KINDS: dict[str, Callable[[Locale, Locale], Kind]] = {
    "territory": partial(_names, "territories"),
    "language": partial(_names, "languages"),
    "currency_name": partial(_names, "currencies"),
}
KINDS = PATTERN_KINDS | NAME_KINDS
