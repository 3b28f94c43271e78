"""Claims on the trainings in a folder that several processes share, possibly on several hosts.

A claim is a file that only one process can create. Its owner keeps touching it; a claim that has become old, or whose
owner on this host has ended, can be taken over.
"""

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread

import psutil

BEAT, OLD = 10.0, 120.0  # seconds between two touches of a claim, and age at which it is free


class Claims:
    """The claims of this process in a folder, by name."""

    def __init__(self, folder: Path):
        self.folder, self.held = folder, set[Path]()
        pid = os.getpid()
        self.me = {"host": socket.gethostname(), "pid": pid, "created": psutil.Process(pid).create_time()}
        Thread(target=self._keep_alive, daemon=True).start()

    def take(self, name: str) -> bool:
        """Claim a name; return whether nobody else had claimed it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / name
        if path.exists() and not self._freed(path):
            return False
        try:
            with path.open("x", encoding="utf-8") as file:
                json.dump(self.me, file)
        except FileExistsError:
            return False
        self.held.add(path)
        return True

    def release(self, name: str) -> None:
        self.held.discard(self.folder / name)
        (self.folder / name).unlink(missing_ok=True)

    @contextmanager
    def holding(self, name: str) -> Iterator[None]:
        """Wait until a name is free, and hold it inside the `with` block."""
        while not self.take(name):
            time.sleep(1)
        try:
            yield
        finally:
            self.release(name)

    def owners(self) -> set[str]:
        """Return the hosts whose processes hold claims."""
        paths = self.folder.glob("[!.]*") if self.folder.exists() else ()
        return {str(self._owner(path).get("host", "another host")) for path in paths if not self._is_free(path)}

    def _keep_alive(self) -> None:
        while True:
            time.sleep(BEAT)
            for path in list(self.held):
                with suppress(OSError):
                    os.utime(path)

    def _owner(self, path: Path) -> dict[str, str | float]:
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):  # released, or not written yet
            return {}

    def _is_free(self, path: Path) -> bool:
        """Return whether a claim's owner has ended, or has not touched it for long by the file system's clock."""
        owner = self._owner(path)
        if owner.get("host") == self.me["host"]:
            try:
                process = psutil.Process(int(owner["pid"]))
                return process.create_time() != owner["created"] or process.status() == psutil.STATUS_ZOMBIE
            except psutil.Error:
                return True
        now = self.folder / f".now-{self.me['host']}-{self.me['pid']}"
        now.touch()
        try:
            return now.stat().st_mtime - path.stat().st_mtime > OLD
        except FileNotFoundError:
            return True
        finally:
            now.unlink(missing_ok=True)

    def _freed(self, path: Path) -> bool:
        """Remove a claim if it is free; return whether the name can be claimed now."""
        with suppress(FileNotFoundError):
            seen = path.stat()
            if not self._is_free(path):
                return False
            aside = path.with_name(f".{path.name}-{self.me['host']}-{self.me['pid']}")
            path.rename(aside)
            moved = aside.stat()
            if (moved.st_ino, moved.st_mtime_ns) != (seen.st_ino, seen.st_mtime_ns):  # another process was faster
                with suppress(FileExistsError):
                    os.link(aside, path)
                aside.unlink()
                return False
            aside.unlink()
        return True
