"""The lines that a program reads and writes: files, standard input, a terminal."""

import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import BinaryIO, TextIO

from tqdm.auto import tqdm

from vanillaformer.console.reporting import stage

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
STANDARD_INPUT = "standard input"


def read_lines(stream: Iterable[bytes], source: str, report: Callable[[str], None] | None = None) -> Iterator[str]:
    """Yield the lines of a UTF-8 stream, separated by line feeds only: other separators may occur within a sentence.

    A byte order mark at the start and the carriage return of a Windows line end are not part of the text. A line that
    is not UTF-8 is a ValueError, or with `report` empty and reported.
    """
    for number, line in enumerate(stream, start=1):
        data = line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line
        try:
            text = data.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
        except UnicodeDecodeError as error:
            message = f"{source}, line {number}: byte 0x{error.object[error.start]:02x} is not UTF-8"
            if report is None:
                raise ValueError(message) from error
            report(f"{message}: no result")
            text = ""
        yield text


def read_texts(texts: list[str], file: str | None) -> list[str]:
    """Return the texts to work on, not all blank: those given, the lines of a file, or standard input."""
    source = "--text"
    if file is not None:
        source = f"--input_file {file}"
        if texts:
            raise ValueError(f"give --text or {source}, not both")
        if not Path(file).is_file():
            raise ValueError(f"{source} does not exist or is not a file")
        with open(file, "rb") as stream:
            texts = list(read_lines(stream, source))
    elif not texts:
        if sys.stdin.isatty():
            hint("Type texts, one per line; Ctrl-D on an empty line ends the input.")
        texts, source = list(standard_input()), STANDARD_INPUT
    if not any(text.strip() for text in texts):
        raise ValueError(f"{source} has no text in it")
    return texts


def standard_input() -> Iterator[str]:
    stream: BinaryIO | None = getattr(sys.stdin, "buffer", None)
    return read_lines(stream or io.BytesIO(sys.stdin.read().encode()), STANDARD_INPUT)


def check_text(option: str, texts: Iterable[str]) -> None:
    """Raise ValueError for a text with bytes that were not UTF-8, which Python reads as lone surrogates."""
    for text in texts:
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            raise ValueError(f"{option} {text!r} is not UTF-8")


def hint(message: str, end: str = "\n") -> None:
    """Show a message to the person at the terminal, apart from the output."""
    print(message, end=end, file=sys.stderr, flush=True)


@contextmanager
def progress(total: int, unit: str, shown: bool) -> Iterator[Callable[[int], object]]:
    """Show progress on the standard error stream; yield a function to be called with the number of items done."""
    if sys.stderr.isatty():
        with tqdm(total=total, unit=f" {unit}", disable=not shown) as bar:
            yield bar.update
    else:
        with stage("Working", total, unit, bar=not shown, say=hint) as advance:
            yield advance


def prompted(lines: Iterable[str], prompt: str = "> ") -> Iterator[str]:
    """Yield lines, showing a prompt before each."""
    hint(prompt, end="")
    for line in lines:
        yield line
        hint(prompt, end="")
    hint("")


def check_output(path: str | None, source: str | None = None) -> None:
    """Raise ValueError for an output file that cannot be written, or that is the input file.

    Nothing is created: an existing file stays unchanged until there is something to write.
    """
    if path is None:
        return
    file, folder = Path(path), Path(path).parent
    if file.is_dir():
        raise ValueError(f"--output_file {path} is a directory")
    if not folder.is_dir():
        raise ValueError(f"--output_file {path}: {folder} is not a directory")
    if not all(os.access(place, os.W_OK) for place in (file, folder) if place.exists()):
        raise ValueError(f"--output_file {path} cannot be written: permission denied")
    if source is not None and file.exists() and file.samefile(source):
        raise ValueError(f"--output_file {path} is the --input_file")


def output_stream(path: str | None) -> AbstractContextManager[TextIO]:
    """Return the opened file to write to, or standard output."""
    return nullcontext(sys.stdout) if path is None else open(path, "w", encoding="utf-8", newline="\n")
