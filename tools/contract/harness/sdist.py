"""Fetches the tests of the installed transformers, which only its source distribution has."""

import importlib.metadata
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PIP_DOWNLOAD = ["pip", "download", "--quiet", "--no-deps", "--no-build-isolation", "--no-binary", "transformers"]


class Unavailable(Exception):
    """The tests could not be fetched."""


def transformers_version() -> str:
    """Return the version of the installed transformers."""
    return importlib.metadata.version("transformers")


def fetch_tests(cache: Path) -> Path:
    """Return the folder of transformers' common tests, downloaded into `cache` on the first call.

    Raises:
        Unavailable: pip could not download the source distribution, or it has no tests.
    """
    version = transformers_version()
    name = f"transformers-{version}"
    tests = cache / name / "tests"
    if tests.is_dir():
        return tests
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        command = [sys.executable, "-m", *PIP_DOWNLOAD, "--dest", folder, f"transformers=={version}"]
        pip = subprocess.run(command, capture_output=True, text=True)
        if pip.returncode:
            raise Unavailable((pip.stderr.strip().splitlines() or ["pip failed"])[-1])
        extract_tests(next(Path(folder).glob("*.tar.gz")), Path(folder))
        if not Path(folder, name, "tests").is_dir():
            raise Unavailable("it has no tests")
        Path(folder, name).rename(cache / name)  # at once, so that a broken download leaves nothing behind
    return tests


def extract_tests(archive: Path, folder: Path) -> None:
    """Extract the Python files directly in the archive's `tests` folder."""
    with tarfile.open(archive) as tar:
        files = [member for member in tar if Path(member.name).match("transformers-*/tests/*.py")]
        tar.extractall(folder, members=files, filter="data")
