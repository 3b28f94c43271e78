"""Memory that a process on a CPU keeps for its next tensor."""

import ctypes
import os

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # the names are malloc.h's
LARGEST = 2**31 - 1  # bytes; mallopt takes an int


def keep_freed_memory() -> bool:
    """Let tensors on the CPU reuse the memory of those before them, and return whether the C library can do that.

    glibc gives a large block back as soon as it is freed and takes a new one, page by page, for the next tensor: for
    logits of 50 MB the page faults take as long as the arithmetic. A user's own settings (`MALLOC_...`,
    `GLIBC_TUNABLES`) stay unchanged.
    """
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library, another system
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, LARGEST) and mallopt(M_TRIM_THRESHOLD, LARGEST))
