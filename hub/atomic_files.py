"""Files that are replaced as a whole, even if the power fails."""

import os
from pathlib import Path


def flush(path: Path) -> None:
    """Have a file, or the names in a folder, on the disk before this returns."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:  # Windows opens no folder
        return
    try:
        os.fsync(descriptor)
    except OSError:
        if not path.is_dir():  # which some file systems do not flush
            raise
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Replace a file by another text, as a whole even if the power fails."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(text, encoding="utf-8")
    flush(part)
    os.replace(part, path)
    flush(path.parent)
