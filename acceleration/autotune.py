"""The choice between two ways to compute the same, by speed on this machine: measured once in each process.

With `VANILLAFORMER_AUTOTUNE=save` what was measured is kept in a file for the next processes.
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

MIN_SPEEDUP = 1.15  # times as fast as the usual way that another one has to be
SAVE = "VANILLAFORMER_AUTOTUNE"
SAVED = Path(HF_HOME) / "vanillaformer" / "products.json"  # speeds by name, processor and version of torch
CHOICES: dict[str, bool] = {}  # the decisions of this process, by name
KEPT: dict[str, bool] = {}  # those of an earlier process of the same run


def keep(choices: Mapping[str, bool]) -> None:
    """Decide as an earlier process of the run did, so that it continues bit for bit; the environment goes first."""
    KEPT.clear()
    KEPT.update(choices)


def chosen() -> dict[str, bool]:
    """Return by name which faster ways this process uses, of those that it has decided on."""
    return dict(CHOICES)


def is_faster(name: str, switch: str, speed: Callable[[], float]) -> bool:
    """Return whether a method is faster on this machine, by the environment or by a measurement, new or saved.

    `switch` is an environment variable, 0 for never and 1 for always; `speed` measures how many times as fast as the
    usual way it is.
    """
    if name not in CHOICES:
        choice = os.environ.get(switch, "")
        if choice in ("0", "1"):
            CHOICES[name] = choice == "1"
        else:
            CHOICES[name] = KEPT[name] if name in KEPT else speed_of(name, speed) >= MIN_SPEEDUP
    return CHOICES[name]


def speed_of(name: str, speed: Callable[[], float]) -> float:
    """Return what `speed` measures, or what it measured in an earlier process on such a machine."""
    save = os.environ.get(SAVE) == "save"
    speeds, key = saved() if save else {}, f"{name}, {processor()}, torch {torch.__version__}"
    if key not in speeds:
        with ThreadPoolExecutor(1) as thread:  # away from the modes that the first product was asked for in
            speeds[key] = thread.submit(speed).result()
        if save:
            with suppress(OSError):  # a folder that cannot be written to: every process measures for itself
                SAVED.parent.mkdir(parents=True, exist_ok=True)
                new = SAVED.with_suffix(f".{os.getpid()}")
                new.write_text(json.dumps(speeds, indent=1), "utf-8")
                new.replace(SAVED)
    return speeds[key]


def speedup(usual: Callable[[], Any], other: Callable[[], Any], rounds: int) -> float:
    """Return how many times as fast as the usual way another one is, by the fastest calls: others were disturbed."""

    def seconds(compute: Callable[[], Any]) -> float:
        start = time.perf_counter()
        compute()
        return time.perf_counter() - start

    times = [(seconds(usual), seconds(other)) for _ in range(rounds)]  # in turns
    return min(time for time, _ in times) / min(time for _, time in times)


def saved() -> dict[str, float]:
    """Return what was measured on this and, if the folder is shared, on other machines."""
    try:
        found = json.loads(SAVED.read_text("utf-8"))
        return {str(key): float(value) for key, value in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):  # none yet, or not what is written here
        return {}


def processor() -> str:
    """Return what products are fast or slow by: the processor's name, instructions and threads that may be used."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        name = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor() or platform.machine()
    instructions = f"{torch.backends.cpu.get_cpu_capability()}{os.environ.get('ONEDNN_MAX_CPU_ISA', '')}"
    return f"{name}, {instructions}, {torch.get_num_threads()} threads"
