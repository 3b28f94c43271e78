"""SIGINT and SIGTERM: they end a run at once while nothing is being trained, and with a checkpoint otherwise."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopping:
    """The signals that this process has been sent; children handle theirs themselves.

    Attributes:
        training: Whether a training is under way, which then ends itself.
        number: The first signal; 0 for none. A second one ends the process at once.
    """

    def __init__(self) -> None:
        self.training, self.number, self.process = False, 0, os.getpid()

    def __call__(self, number: int, frame: Any) -> None:
        forked = os.getpid() != self.process
        if forked and (self.training or number == signal.SIGINT):
            return  # a terminal sends a signal to all: the parent needs this process to finish, and ends it afterwards
        if forked or self.number:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        self.number = number
        if not self.training:
            raise KeyboardInterrupt

    @contextmanager
    def handling(self) -> Iterator[None]:
        """Receive SIGINT and SIGTERM while this lasts, if this is the main thread, which alone can."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
