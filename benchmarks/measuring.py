"""Time and peak memory on a machine that others may use too."""

import ctypes
import gc
import itertools
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import torch

Call = Callable[[], Any]
M_MMAP_THRESHOLD = -3  # of glibc's malloc.h
QUIET = 0.25  # cores that others may use in a sample that counts as undisturbed


class Sample(NamedTuple):
    """One timed call: seconds on the clock, CPU seconds of it and its children, cores that others kept busy."""

    seconds: float
    cpu: float
    foreign: float


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def busy_seconds() -> float:
    """Return the CPU seconds that all processes together have used so far."""
    everyone = psutil.cpu_times()
    return everyone.user + everyone.system + getattr(everyone, "irq", 0.0) + getattr(everyone, "softirq", 0.0)


def own_seconds() -> float:
    """Return the CPU seconds that this process and those it started have used so far."""
    children = [child.cpu_times() for child in psutil.Process().children(recursive=True)]
    return time.process_time() + sum(times.user + times.system for times in children)


def sample(call: Call, calls: int = 1, device: str = "cpu") -> Sample:
    """Return the mean of `calls` calls in a row."""
    busy, mine, start = busy_seconds(), own_seconds(), time.perf_counter()
    for _ in range(calls):
        call()
    synchronize(device)
    seconds, mine, busy = time.perf_counter() - start, own_seconds() - mine, busy_seconds() - busy
    return Sample(seconds / calls, mine / calls, max(0.0, (busy - mine) / seconds))


def wait_idle(seconds: float) -> None:
    """Wait until the other processes are quiet, `seconds` at most."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and sample(lambda: time.sleep(0.3)).foreign > QUIET:
        pass


def measure(calls: dict[str, Call], repeats: int, shortest: float, device: str, patience: float) -> list[list[Sample]]:
    """Return one sample of each call per repetition, taken in turns: A B, B A, A B ...

    A sample repeats its call until `shortest` seconds are over, and waits `patience` seconds at most for idle cores.
    """
    for call in calls.values():
        call()
    longest = max(sample(call, device=device).seconds for call in calls.values())
    repetitions = []
    for _, order in zip(range(repeats), itertools.cycle([list(calls), list(calls)[::-1]])):
        taken = {}
        for name in order:
            gc.collect()
            wait_idle(patience)
            taken[name] = sample(calls[name], math.ceil(shortest / longest), device)
        repetitions.append([taken[name] for name in calls])
    return repetitions


def undisturbed(repetitions: list[list[Sample]]) -> list[list[Sample]]:
    """Return the repetitions during which other processes were quiet."""
    return [samples for samples in repetitions if max(one.foreign for one in samples) < QUIET]


def peak_memory(call: Call, device: str) -> float | None:
    """Return by how many MiB this process's memory grows at most during `call`; `None` where nobody tells."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    status = Path("/proc/self/status")
    if not status.exists() or not os.access("/proc/self/clear_refs", os.W_OK):
        return None
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 2**16)  # what is freed goes back, so that the next peak shows
    call()
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = psutil.Process().memory_info().rss / 2**20
    call()
    peak = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return int(peak.split()[1]) / 2**10 - before
