import os
import resource
import subprocess
import sys

import psutil
import pytest
import torch

from vanillaformer.training import hardware

# Prints the page faults of six tensors of 64 MiB, one after the other, before freed memory is kept and afterwards.
FAULTS = """
import resource
import ctypes
import torch
from vanillaformer.training.hardware import keep_freed_memory
ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE: whether there are huge pages depends on the moment
for prepare in (bool, keep_freed_memory):
    kept = prepare()
    for _ in range(12):  # the first few may not fit in the gaps that others left
        torch.ones(2**24)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(6):
        torch.ones(2**24)
    print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


class Load:
    """A machine of some cores on which other processes keep `busy` of them busy, and this one another."""

    def __init__(self, cores: int, busy: float):
        self.cores, self.busy, self.time, self.idle = cores, busy, 0.0, 0.0

    def __call__(self) -> tuple[float, float, float]:
        self.time += 1
        self.idle += self.cores - 1 - self.busy
        return self.time, self.idle, self.time


@pytest.fixture
def set_threads(monkeypatch) -> list[int]:
    """The numbers of threads that are set, on a machine where torch starts with eight."""
    numbers: list[int] = []
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.setattr(torch, "set_num_threads", numbers.append)
    return numbers


@pytest.mark.parametrize(("cores", "busy", "allowed", "threads"), [
    *((8, 0, 8, 8), (8, 3, 8, 5), (8, 3.4, 8, 5), (8, 7, 8, 1)),
    *((2, 1, 2, 1), (2, 0.1, 2, 2), (64, 0, 4, 4), (64, 0, 99, 8)),
])  # fmt: skip
def test_threads_are_as_many_as_cores_are_free(monkeypatch, set_threads, cores, busy, allowed, threads) -> None:
    monkeypatch.setattr(hardware, "cpu_seconds", Load(cores, busy))
    monkeypatch.setattr(hardware, "INTERVAL", 0)
    monkeypatch.setattr(hardware, "cpu_count", lambda: allowed)
    hardware.set_free_threads()
    assert set_threads == [threads]


def test_a_number_of_threads_that_is_given_stays(monkeypatch, set_threads) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    hardware.set_free_threads()
    assert set_threads == []


def test_own_time_is_measured() -> None:
    start = hardware.cpu_seconds()
    while hardware.cpu_seconds()[2] - start[2] < 0.1:
        pass
    elapsed, idle, own = (new - old for new, old in zip(hardware.cpu_seconds(), start))
    assert own >= 0.1
    assert 0 <= idle <= elapsed * psutil.cpu_count() + 0.1  # counted in hundredths of a second, core by core


@pytest.mark.skipif("linux" not in sys.platform or os.confstr("CS_GNU_LIBC_VERSION") is None, reason="not glibc")
@pytest.mark.parametrize("own", [{}, {"MALLOC_ARENA_MAX": "4"}])
def test_memory_is_taken_from_the_system_once_but_settings_of_the_users_own_stay(own: dict[str, str]) -> None:
    """A tensor in new memory costs a fault for each page."""
    others = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", FAULTS]
    done = subprocess.run(command, env=others | own, check=True, capture_output=True, text=True)
    (_, before), (kept, after) = map(str.split, done.stdout.splitlines())
    pages = 64 * 2**20 // resource.getpagesize()
    assert kept == str(not own)
    assert int(before) >= 6 * pages
    assert own or int(after) < pages


@pytest.mark.parametrize(
    ("mkldnn", "avx2", "avx512_bf16", "expected"),
    [(True, True, True, True), (True, True, False, False), (False, True, True, False), (True, False, False, True)],
)
def test_bfloat16_needs_instructions_for_it(monkeypatch, mkldnn, avx2, avx512_bf16, expected) -> None:
    """oneDNN says yes for every AVX-512 CPU, and on Arm for those that have them."""
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: mkldnn)
    monkeypatch.setattr(torch.cpu, "_is_avx2_supported", lambda: avx2)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512_bf16)
    assert hardware.has_bfloat16() is expected


@pytest.mark.parametrize(("device", "fast", "bf16", "dtype", "warned"), [
    ("cpu", False, False, torch.float32, False), ("cpu", False, True, torch.bfloat16, True),
    ("cpu", True, False, "auto", False), ("cpu", True, True, torch.bfloat16, False),
    ("cuda:1", False, False, "auto", False), ("cuda", False, True, torch.bfloat16, False),
])  # fmt: skip
def test_bfloat16_is_avoided_where_it_is_emulated(monkeypatch, capsys, device, fast, bf16, dtype, warned) -> None:
    monkeypatch.setattr(hardware, "has_bfloat16", lambda: fast)
    assert hardware.inference_dtype(device, bf16) == dtype
    assert ("--bf16: this CPU has no instructions" in capsys.readouterr().err) is warned
