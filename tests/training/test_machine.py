import os
import subprocess
import sys

import pytest
import torch

from vanillaformer.training.machine import limit_threads

# Prints the page faults of 20 tensors of 64 MiB, one after the other, behind a line that prepares the process.
FAULTS = """
import resource
import torch
from vanillaformer.training.machine import keep_freed_memory
{}
torch.ones(2**24)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    torch.ones(2**24)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_threads_are_only_ever_lowered(monkeypatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("vanillaformer.training.machine.cpu_count", lambda: 64)
    limit_threads()
    assert torch.get_num_threads() == 1  # what the tests run with
    monkeypatch.setitem(os.environ, "OMP_NUM_THREADS", "1")
    monkeypatch.setattr("vanillaformer.training.machine.cpu_count", lambda: 1 / 0)
    limit_threads()


def faults(line: str, **environment: str) -> int:
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", FAULTS.format(line)]
    return int(subprocess.run(command, env=own | environment, check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif("linux" not in sys.platform or os.confstr("CS_GNU_LIBC_VERSION") is None, reason="not glibc")
def test_memory_is_taken_from_the_system_once() -> None:
    plain, kept = faults(""), faults("assert keep_freed_memory()")
    assert plain > 300  # 640 with huge pages
    assert kept < plain / 20


def test_settings_of_the_users_own_stay() -> None:
    assert faults("assert not keep_freed_memory()", MALLOC_ARENA_MAX="4") >= 0
