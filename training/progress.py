"""Progress of the long stages before training: a bar on a terminal, elsewhere a line about every ten seconds."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

from datasets.utils import are_progress_bars_disabled

from vanillaformer.hub.reporting import report

EVERY = 10.0
"""Seconds between two lines."""

Advance = Callable[[int], None]


@contextmanager
def stage(name: str, total: int | None = None, unit: str = "texts", *, bar: bool = False) -> Iterator[Advance]:
    """Print lines on a stage while it lasts; it gets a function to be called with how many more are done.

    Args:
        name: What is being done.
        total: How many there are, if known.
        unit: What they are.
        bar: It has a bar of its own on a terminal.
    """
    done, start, ended = [0], time.monotonic(), Event()

    def advance(count: int) -> None:
        done[0] += count

    def lines() -> None:
        while not ended.wait(EVERY):
            report(_line(name, done[0], total, unit, time.monotonic() - start))

    if bar and not are_progress_bars_disabled():
        yield advance
        return
    thread = Thread(target=lines, daemon=True)
    thread.start()
    try:
        yield advance
    finally:
        ended.set()
        thread.join()


def _line(name: str, done: int, total: int | None, unit: str, seconds: float) -> str:
    if not done:
        return f"{name}: {seconds:.0f} s"
    of = "" if total is None else f" of {total:,}"
    return f"{name}: {done:,}{of} {unit} in {seconds:.0f} s, {done / seconds:,.0f} a second"
