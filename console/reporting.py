"""Messages of the programs."""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

TOKEN = re.compile(r"hf_[\w-]{4,}")


def report(message: str) -> None:
    """Print a line, in the first of the processes of a distributed run only."""
    _print(message, sys.stdout)


def warn(message: str) -> None:
    """Print a line to the standard error stream, in the first of the processes of a distributed run only."""
    _print(message, sys.stderr)


def _print(message: str, stream: TextIO) -> None:
    if os.environ.get("RANK", "0") == "0":
        print(message, file=stream, flush=True)


@contextmanager
def optional(what: str, failed: list[str] | None = None) -> Iterator[None]:
    """Report an error and continue without the result, which is noted among those that failed."""
    try:
        yield
    except Exception as error:  # whatever the library raises
        if failed is not None:
            failed.append(what)
        warn(f"Warning: {what} could not be made: {' '.join(str(error).split()) or type(error).__name__}")


def one_line(error: BaseException) -> str:
    """Return the start of what an error says, without line breaks."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 600 else f"{text[:600]} ..."


def redact_tokens(text: str) -> str:
    """Return a text with tokens left out.

    >>> redact_tokens("Bearer hf_abcdefgh is none")
    'Bearer hf_... is none'
    """
    return TOKEN.sub("hf_...", text)
