"""Progress of what takes long: a bar on a terminal, elsewhere a line about every ten seconds."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

from .reporting import report

EVERY = 10.0
"""Seconds between two lines."""

Advance = Callable[[int], None]


@contextmanager
def stage(
    name: str,
    total: int | None = None,
    unit: str = "texts",
    *,
    bar: bool = False,
    say: Callable[[str], None] | None = None,
) -> Iterator[Advance]:
    """Print lines on a stage while it lasts; it gets a function to be called with how many more are done.

    Args:
        name: What is being done.
        total: How many there are, if known.
        unit: What they are.
        bar: It shows a bar of its own, in place of lines.
        say: Prints a line; `report` by default.
    """
    done, start, ended = [0], time.monotonic(), Event()

    def advance(count: int) -> None:
        done[0] += count

    def lines() -> None:
        while not ended.wait(EVERY):
            (say or report)(_line(name, done[0], total, unit, time.monotonic() - start))

    if bar:
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
    speed = done / seconds
    of = "" if total is None else f" of {total:,}"
    left = f", {(total - done) / speed:,.0f} s left" if total is not None and total > done else ""
    return f"{name}: {done:,}{of} {unit} in {seconds:.0f} s, {speed:,.{0 if speed >= 10 else 1}f} a second{left}"
