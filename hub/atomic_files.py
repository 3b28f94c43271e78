"""Files and folders that appear complete or not at all, even if the power fails."""

import os
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


def flush(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:  # Windows opens no folder
        return
    try:
        os.fsync(descriptor)
    except OSError:
        if not path.is_dir():  # some file systems do not flush folders
            raise
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Replace the text of a file, completely or not at all even if the power fails."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(text, encoding="utf-8")
    flush(part)
    os.replace(part, path)
    flush(path.parent)


@contextmanager
def new_folder(path: str | Path) -> Iterator[Path]:
    """Yield a folder to write into, which becomes `path` if all goes well and is deleted otherwise.

    Files left by a killed process are deleted by the next one that writes to `path`. Raises ValueError if `path` is a
    file or a folder that is not empty, cannot be created, or is being written.
    """
    path = Path(path)
    check_free(path)
    partial = path.parent / f".{path.name}.part"
    try:
        partial.mkdir(parents=True, exist_ok=True)
        lock = locked(partial)
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error}") from error
    # Only the main thread can catch signals, and a handler that was not set from Python cannot be restored
    in_main_thread = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM) if in_main_thread else None
    try:
        if before is not None:
            signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C
        for old in partial.iterdir():
            if old.is_dir() and not old.is_symlink():
                shutil.rmtree(old)
            else:
                old.unlink()
        yield partial
        if path.exists():
            path.rmdir()
        partial.rename(path)
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)
        shutil.rmtree(partial, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def locked(folder: Path) -> int | None:
    """Return an open descriptor of a folder that is locked until it is closed or the process ends."""
    if fcntl is None:
        return None
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not folder.exists() or not os.path.samestat(os.fstat(lock), folder.stat()):
            raise BlockingIOError  # it was renamed in between
    except BlockingIOError as error:
        os.close(lock)
        raise BlockingIOError("another process is writing it") from error
    return lock


def check_free(path: Path) -> None:
    """Raise ValueError if a path exists, unless it is an empty folder."""
    if path.is_symlink() or (path.exists() and (not path.is_dir() or any(path.iterdir()))):
        raise ValueError(f"{path} exists already and is not an empty folder: choose another one")
