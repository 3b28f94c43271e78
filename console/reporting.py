"""Messages of the programs, and the progress of long steps: a bar on a terminal, lines elsewhere."""

import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import TextIO

TOKEN = re.compile(r"hf_[\w-]{4,}")
EVERY = 10.0  # seconds between two lines about a stage
Advance = Callable[[int], None]


def report(message: str, stream: TextIO | None = None) -> None:
    """Print a line, by default to standard output; in a distributed run, only in the first process."""
    if os.environ.get("RANK", "0") == "0":
        print(message, file=stream, flush=True)


def warn(message: str) -> None:
    """Print a line to the standard error stream, as `report` does."""
    report(message, sys.stderr)


@contextmanager
def optional(what: str, failed: list[str] | None = None) -> Iterator[None]:
    """Report an error and continue without the result, which is added to those that failed."""
    try:
        yield
    except Exception as error:  # whatever the library raises
        if failed is not None:
            failed.append(what)
        warn(f"Warning: {what} could not be created: {' '.join(str(error).split()) or type(error).__name__}")


def one_line(error: BaseException) -> str:
    """Return the beginning of an error's message, without line breaks."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 600 else f"{text[:600]} ..."


def redact_tokens(text: str) -> str:
    """Return a text with tokens redacted.

    >>> redact_tokens("Bearer hf_abcdefgh is none")
    'Bearer hf_... is none'
    """
    return TOKEN.sub("hf_...", text)


# ------------------------------------------------------------------------------------------------------------ progress
@contextmanager
def stage(
    name: str,
    total: int | None = None,
    unit: str = "texts",
    *,
    bar: bool = False,
    say: Callable[[str], None] | None = None,
) -> Iterator[Advance]:
    """Print lines about a stage while it lasts, by `report` or `say`, unless it shows its own bar.

    Yields a function to be called with the number of further items done, out of `total` if that is known.
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
