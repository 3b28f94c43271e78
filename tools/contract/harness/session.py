"""One run of pytest, in a folder of its own."""

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from .layout import lay_out
from .results import Results, read_junit

CONTRACT = Path(__file__).resolve().parents[1]
FINISHED = (0, 1)  # pytest's exit codes when all tests ran


class SessionFailed(Exception):
    """pytest ended without results."""


@dataclass(frozen=True)
class Session:
    """What to run, and how.

    Args:
        module: The module in this folder that declares the families.
        families: The names of those to run.
        expression: pytest's `-k`.
        workers: Number of processes; 0 runs in this one, and shows what the tests print.
        stop_early: pytest's `-x`.
        test_seconds: A test that takes longer fails.
    """

    module: str
    families: list[str]
    expression: str = ""
    workers: int = 2
    stop_early: bool = False
    test_seconds: int = 300

    def run(self, sdist_tests: Path) -> dict[str, Results]:
        """Run transformers' tests on the families.

        Raises:
            SessionFailed: pytest could not run them.
        """
        with tempfile.TemporaryDirectory(prefix="contract_") as name:
            folder = Path(name)
            test_file = lay_out(sdist_tests, folder / "layout")
            (folder / "tmp").mkdir()
            junit = folder / "junit.xml"
            command = [*self.command(test_file), f"--junitxml={junit}"]
            code = subprocess.run(command, env=self.environment(folder), cwd=folder).returncode
            results = read_junit(junit) if junit.exists() else {}
        if not results or (code not in FINISHED and not self.stop_early):
            raise SessionFailed(f"pytest ended with exit code {code}")
        return results

    def command(self, test_file: Path) -> list[str]:
        """Return pytest's command line."""
        command = [sys.executable, "-m", "pytest", str(test_file), "-c", str(test_file.with_name("pytest.ini"))]
        command += [
            "-p",
            "harness.plugin",
            "-p",
            "no:cacheprovider",
            "-q",
            "--no-header",
            "--no-summary",
            "--tb=short",
        ]
        command += ["-n", str(self.workers), "--dist", "worksteal"] if self.workers else ["--capture=no"]
        command += ["-k", self.expression] if self.expression else []
        command += ["-x"] if self.stop_early else []
        return command

    def environment(self, folder: Path) -> dict[str, str]:
        """Return the environment of pytest, its workers, and the processes that distributed tests start."""
        paths = [str(folder / "layout"), str(CONTRACT), os.environ.get("PYTHONPATH", "")]
        return {
            "OMP_NUM_THREADS": "1",
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "TMPDIR": str(folder / "tmp"),
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "CUDA_VISIBLE_DEVICES": "",
            "CONTRACT_MODULE": self.module,
            "CONTRACT_FAMILIES": " ".join(self.families),
            "CONTRACT_TEST_SECONDS": str(self.test_seconds),
        }
