"""Scores that need no network, and the functions that a Trainer calls."""

from typing import Any


def __getattr__(name: str) -> Any:
    if name == "Metric":  # only here: no training needs `evaluate`
        from .modules import Metric

        return Metric
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
