"""Running a program on the command line: a user's error is one line, a program's error keeps its traceback.

Exit codes: 0 success, 1 an error reported in one line, 2 wrong usage (argparse), 130 interrupted, 141 the reader of
the output is gone. `VANILLAFORMER_TRACEBACK=1` shows where an error was raised.
"""

import argparse
import gc
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

from huggingface_hub.errors import HTTPError, StrictDataclassError
from huggingface_hub.utils import disable_progress_bars
from safetensors import SafetensorError

from .help_page import HelpPage
from .reporting import redact_tokens

Main = Callable[[Sequence[str] | None], Any]

TRACEBACK = "VANILLAFORMER_TRACEBACK"
INTERRUPTED, BROKEN_PIPE = 130, 141  # 128 + the number of the signal, as a shell reports it
# Mistakes in an argument, a file, the network or the disk
USER_ERRORS = (ValueError, OSError, StrictDataclassError, HTTPError, SafetensorError)


def program(main: Main) -> Callable[..., None]:
    """Return a `main` that ends with an exit code and, after a user's error, one line on standard error."""

    @wraps(main)
    def run(argv: Sequence[str] | None = None) -> None:
        try:
            try:
                main(argv)
                # Leave the process group of a distributed run: its threads may abort an exit. They end with the last
                # reference to the group, and a trainer's references are cycles
                distributed = sys.modules.get("torch.distributed")
                if distributed is not None and distributed.is_available() and distributed.is_initialized():
                    distributed.destroy_process_group()
                    gc.collect()
            finally:
                sys.stdout.flush()  # at shutdown a broken pipe could no longer be caught
        except BrokenPipeError:
            for stream in (sys.stdout, sys.stderr):  # so that closing them at shutdown raises nothing
                try:
                    stream.flush()
                except BrokenPipeError:
                    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            raise SystemExit(BROKEN_PIPE) from None
        except KeyboardInterrupt as error:
            print(f"{name()}: {one_line(error, 'interrupted')}", file=sys.stderr, flush=True)
            raise SystemExit(INTERRUPTED) from None
        except Exception as error:
            if not is_user_error(error) or os.environ.get(TRACEBACK, "") not in ("", "0"):
                raise
            if os.environ.get("RANK", "0") != "0":  # if the first process reports the same, the launcher ends this one
                time.sleep(2)
            raise SystemExit(f"{name()}: {one_line(error)}") from None

    return run


def name() -> str:
    return Path(sys.argv[0]).name


class CommandParser(argparse.ArgumentParser):
    """A parser whose help page is like that of the training programs; `usage` follows the program's name."""

    def __init__(self, description: str, usage: str):
        super().__init__(prog=name(), usage=f"%(prog)s {usage}", description=description)

    def format_help(self) -> str:
        page = HelpPage((), {}, {})
        for group in self._action_groups:
            for action in group._group_actions:
                if action.dest != "help":
                    page.described[action.dest] = group.title or "", action.help or ""
                page.add(action)
        return page.text(self.format_usage(), self.description or "")


def hide_progress_bars() -> None:
    """Hide the progress bars of transformers and huggingface_hub if stderr is not a terminal."""
    from transformers.utils import logging

    if not sys.stderr.isatty():
        logging.disable_progress_bar()
        disable_progress_bars()


def is_user_error(error: BaseException) -> bool:
    """Return whether an error is about something the user can change, such as a missing library."""
    if isinstance(error, ImportError):
        missing = isinstance(error, ModuleNotFoundError) and not str(error.name).startswith("vanillaformer")
        return missing or error.name is None  # without a name it was raised with a message, by hand
    return isinstance(error, USER_ERRORS)


def one_line(error: BaseException, default: str = "") -> str:
    """Return an error's message without line breaks and tokens; for a system error, its file and reason."""
    message = str(error)
    if isinstance(error, OSError) and error.strerror:
        message = f"{error.filename}: {error.strerror}" if error.filename is not None else error.strerror
    return redact_tokens(" ".join(message.split())) or default or type(error).__name__
