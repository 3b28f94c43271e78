"""The choice between two implementations of a computation, measured once per process on this machine.

With `VANILLAFORMER_AUTOTUNE=save` the measurements are saved to a file for later processes.
"""

import json
import os
import platform
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.constants import HF_HOME

MIN_SPEEDUP = 1.15  # over the usual implementation, from which another one is used
SAVE = "VANILLAFORMER_AUTOTUNE"
SAVED = Path(HF_HOME) / "vanillaformer" / "products.json"  # speedups by name, processor and torch version
CHOICES: dict[str, bool] = {}  # the decisions of this process, by name
KEPT: dict[str, bool] = {}  # the decisions of an earlier process of the same run


def keep(choices: Mapping[str, bool]) -> None:
    """Decide as an earlier process of the run, so that it continues bit for bit; the environment takes precedence."""
    KEPT.clear()
    KEPT.update(choices)


def chosen() -> dict[str, bool]:
    """Return the decisions that this process has made: for each name, whether the faster implementation is used."""
    return dict(CHOICES)


def is_faster(name: str, switch: str, speed: Callable[[], float]) -> bool:
    """Return whether an implementation is faster here, by the environment, an earlier process or a measurement.

    `switch` is an environment variable, 0 for never and 1 for always; `speed` measures the speedup over the usual
    implementation.
    """
    if name not in CHOICES:
        choice = os.environ.get(switch, "")
        if choice in ("0", "1"):
            CHOICES[name] = choice == "1"
        else:
            CHOICES[name] = KEPT[name] if name in KEPT else speed_of(name, speed) >= MIN_SPEEDUP
    return CHOICES[name]


def speed_of(name: str, speed: Callable[[], float]) -> float:
    """Return the speedup that `speed` measures, or measured in an earlier process on such a machine."""
    save = os.environ.get(SAVE) == "save"
    speeds, key = saved() if save else {}, f"{name}, {processor()}, torch {torch.__version__}"
    if key not in speeds:
        with ThreadPoolExecutor(1) as thread:  # without the caller's gradient and autocast modes
            speeds[key] = thread.submit(speed).result()
        if save:
            with suppress(OSError):  # a read-only folder: every process measures for itself
                SAVED.parent.mkdir(parents=True, exist_ok=True)
                new = SAVED.with_suffix(f".{os.getpid()}")
                new.write_text(json.dumps(speeds, indent=1), "utf-8")
                new.replace(SAVED)
    return speeds[key]


def speedup(usual: Callable[[], Any], other: Callable[[], Any], rounds: int) -> float:
    """Return the speedup of `other` over `usual`, by the fastest call of each: slower ones were disturbed."""

    def seconds(compute: Callable[[], Any]) -> float:
        start = time.perf_counter()
        compute()
        return time.perf_counter() - start

    times = [(seconds(usual), seconds(other)) for _ in range(rounds)]  # alternating
    return min(time for time, _ in times) / min(time for _, time in times)


def saved() -> dict[str, float]:
    """Return the saved speedups, of this machine and, if the folder is shared, of others."""
    try:
        found = json.loads(SAVED.read_text("utf-8"))
        return {str(key): float(value) for key, value in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):  # no file yet, or unexpected content
        return {}


def processor() -> str:
    """Return what speed depends on: the processor's name, its instructions and the number of threads."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        name = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor() or platform.machine()
    instructions = f"{torch.backends.cpu.get_cpu_capability()}{os.environ.get('ONEDNN_MAX_CPU_ISA', '')}"
    return f"{name}, {instructions}, {torch.get_num_threads()} threads"
