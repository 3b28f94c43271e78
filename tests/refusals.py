"""What is refused: a call that has to end in an error, by what it says."""

from collections.abc import Callable
from typing import Any

import pytest


def refused(message: str, call: Callable[..., Any], *arguments: Any, error: Any = ValueError, **options: Any) -> None:
    """Call with these arguments, and expect an error of this class of which a part matches the message."""
    __tracebackhide__ = True
    with pytest.raises(error, match=message):
        call(*arguments, **options)


def ends(message: str, main: Callable[[list[str]], Any], *words: object) -> None:
    """Run a program on a command line, and expect it to end with a message of which a part matches this one."""
    __tracebackhide__ = True
    refused(message, main, [str(word) for word in words], error=SystemExit)
