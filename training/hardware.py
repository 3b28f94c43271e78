"""The hardware that a program runs on: threads, precision, how memory is taken from the system, and its facts."""

import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path

import psutil
import torch
from joblib import cpu_count

from vanillaformer.acceleration.plug_in import keep_freed_memory
from vanillaformer.console.reporting import warn

PACKAGES = ("vanillaformer", "transformers", "torch", "tokenizers", "datasets")
CPU_INFO = Path("/proc/cpuinfo")
INTERVAL = 0.2  # seconds; the system counts CPU time in hundredths


def configure_cpu() -> None:
    """Prepare this process for the work of a training program or of `generate`: its threads, and its memory."""
    set_free_threads()
    keep_freed_memory()


def set_free_threads() -> None:
    """Use as many CPU threads as there are cores that other processes leave free.

    Threads that share a core wait for each other at every operation: two threads next to one busy process on two cores
    are several times slower than one. `OMP_NUM_THREADS` fixes the number; it is never larger than it was at first, nor
    than the number of cores this process may use (in a container torch may count the host's).
    """
    if "OMP_NUM_THREADS" in os.environ:
        return
    process = psutil.Process()
    process.cpu_percent()  # starts the measurement
    busy = psutil.cpu_percent(INTERVAL, percpu=True)
    allowed = process.cpu_affinity() if hasattr(process, "cpu_affinity") else range(len(busy))
    free = sum(100 - busy[number] for number in allowed) + process.cpu_percent()
    most = min(torch.get_num_threads(), cpu_count())
    torch.set_num_threads(max(1, min(most, round(free / 100))))


def has_bfloat16() -> bool:
    """Return whether the CPU has instructions for bfloat16 products; without them they are emulated, 20 times slower.

    oneDNN's answer is yes for all AVX-512 CPUs, of which only some have them.
    """
    x86 = torch.cpu._is_avx2_supported()
    return torch.ops.mkldnn._is_mkldnn_bf16_supported() and (not x86 or torch.cpu._is_avx512_bf16_supported())


def inference_dtype(device: str, bf16: bool) -> torch.dtype | str:
    """Return the dtype to load a model in: the one it was saved in ("auto"), or float32 where bfloat16 is emulated."""
    if bf16:
        warn_of_emulation("--bf16", device)
        return torch.bfloat16
    return torch.float32 if emulates_bfloat16(device) else "auto"


def emulates_bfloat16(device: str | torch.device) -> bool:
    """Return whether bfloat16 products are slow on a device."""
    return torch.device(device).type == "cpu" and not has_bfloat16()


def warn_of_emulation(option: str, device: str | torch.device) -> None:
    """Print a warning if an option asks for bfloat16 on a device that emulates it."""
    if emulates_bfloat16(device):
        warn(f"{option}: this CPU has no instructions for bfloat16 and emulates it; float32 is several times faster.")


def memory_of_process(device: torch.device) -> int:
    """Return the bytes of a device's memory; of a CPU's, the share of each process on this machine."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return int(psutil.virtual_memory().total) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def hardware(processes: int, device: torch.device) -> dict[str, str]:
    """Return the hardware that this process, one of `processes` with a model on `device`, runs on, by heading."""
    facts = {}
    if device.type == "cuda":
        facts["GPU"] = f"{torch.cuda.get_device_name(device)}, {memory_of_process(device) / 2**30:.0f} GiB"
        facts["GPU memory used"] = f"{torch.cuda.max_memory_allocated(device) / 2**30:.2f} GiB at most"
    elif device.type != "cpu":
        facts["device"] = device.type
    cores, threads = psutil.cpu_count(logical=False) or os.cpu_count() or 1, torch.get_num_threads()
    text = CPU_INFO.read_text(encoding="utf-8", errors="replace") if CPU_INFO.exists() else ""
    entries = (line.partition(":") for line in text.splitlines())
    names = (value.strip() for name, _, value in entries if name.strip() == "model name" and value.strip())
    name = next(names, platform.processor() or platform.machine())
    facts["CPU"] = f"{name}, {cores} core{'s' if cores > 1 else ''}"
    facts["memory"] = f"{psutil.virtual_memory().total / 2**30:.0f} GiB"
    facts["processes"] = f"{processes}, of {threads} thread{'s' if threads > 1 else ''}"
    return facts


def software() -> str:
    python = ".".join(map(str, sys.version_info[:3]))
    return ", ".join([f"Python {python}", *(f"{package} {version(package)}" for package in PACKAGES)])
