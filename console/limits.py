"""Dataclass fields for options, and limits of numbers, checked before anything is loaded."""

import math
from collections.abc import Callable, Mapping
from dataclasses import field, fields
from typing import Any

Limit = tuple[str, Callable[[Any], bool]]
"""Words that complete "it must be ...", and the test, which NaN fails."""

BUDGETS = ("max_time", "max_tokens", "max_flops")  # options that limit a run by a budget
AT_LEAST_ONE: Limit = ("at least 1", lambda value: 1 <= value < math.inf)
POSITIVE_INT: Limit = ("at least 1", lambda value: value >= 1)
NOT_NEGATIVE: Limit = ("0 or more", lambda value: 0 <= value < math.inf)
POSITIVE: Limit = ("greater than 0", lambda value: 0 < value < math.inf)
FINITE: Limit = ("a finite number", math.isfinite)
BETWEEN: Limit = ("between 0 and 1", lambda value: 0 < value < 1)
PROBABILITY: Limit = ("from 0 to 1", lambda value: 0 <= value <= 1)
BELOW_ONE: Limit = ("at least 0 and less than 1", lambda value: 0 <= value < 1)
SHARE: Limit = ("greater than 0 and at most 1", lambda value: 0 < value <= 1)
SEED: Limit = ("from 0 to 4294967295", lambda value: 0 <= value < 2**32)
STEPS: Limit = (
    "a whole number of steps, or a fraction of the run between 0 and 1",
    lambda value: 0 < value < 1 or (1 <= value < math.inf and value == int(value)),
)


def option(default: Any, words: str, group: str | None = None, limit: Limit | None = None, **parser: Any) -> Any:
    """Return a field with its help text, limit, and group of the help page (default: that of its class).

    `parser` are arguments of `add_argument`.
    """
    metadata = parser | {"help": words} | ({} if group is None else {"group": group})
    metadata |= {} if limit is None else {"limit": limit}
    if isinstance(default, list):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def check_limits(arguments: Any, others: Mapping[str, Limit] | None = None) -> None:
    """Raise ValueError for the first field of a dataclass outside its limit; None is accepted everywhere.

    `others` are the limits of fields that are not declared as `option`.
    """
    limits = {entry.name: entry.metadata["limit"] for entry in fields(arguments) if "limit" in entry.metadata}
    for name, (words, holds) in (limits | dict(others or {})).items():
        value = getattr(arguments, name)
        if value is not None and not holds(value):
            raise ValueError(f"--{name} {value}: it must be {words}")
