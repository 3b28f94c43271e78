"""Which of two ways to compute the same is faster on this machine: measured once, and kept.

Equal runs choose equally, and so round equally.
"""

import json
import os
import platform
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch
from huggingface_hub.constants import HF_HOME

PAYS = 1.15
"""Times as fast as the usual way that another one has to be."""
MEASURED = Path(HF_HOME) / "vanillaformer" / "products.json"
"""What was measured, by what was compared, processor and version of torch."""


@cache
def is_faster(name: str, switch: str, speed: Callable[[], float]) -> bool:
    """Tell whether a way to compute pays on this machine: what the environment says, or what is or was measured.

    Args:
        name: What is compared.
        switch: Environment variable: 0 for never, 1 for always.
        speed: Measures how many times as fast as the usual way it is.
    """
    if (choice := os.environ.get(switch, "")) in ("0", "1"):
        return choice == "1"
    speeds, key = measured(), f"{name} in float32, {processor()}, torch {torch.__version__}"
    if key not in speeds:
        with ThreadPoolExecutor(1) as thread:  # away from the modes that the first product was asked for in
            speeds[key] = thread.submit(speed).result()
        with suppress(OSError):  # a folder that cannot be written to: every process measures for itself
            MEASURED.parent.mkdir(parents=True, exist_ok=True)
            own = MEASURED.with_suffix(f".{os.getpid()}")
            own.write_text(json.dumps(speeds, indent=1), "utf-8")
            own.replace(MEASURED)
    return speeds[key] >= PAYS


def measured() -> dict[str, float]:
    """Return what was measured on this and, if the folder is shared, on other machines."""
    try:
        found = json.loads(MEASURED.read_text("utf-8"))
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
