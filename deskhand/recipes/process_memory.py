"""Memory of this process: what it holds, and how much the C library may keep of what was freed.

Used by `recipes.train` (`limit_arenas`) and `recipes.training_loop`.
"""

from __future__ import annotations

import ctypes
import gc
import os
import re
import resource
from pathlib import Path

MAX_ARENAS = 8
_M_ARENA_MAX = -8
"""glibc's `malloc.h`."""
MIB = 1 << 20


def limit_arenas(count: int = MAX_ARENAS) -> bool:
    """Limit glibc's heaps of threads, each of which keeps its own peak of freed memory; return whether it is glibc.

    Its default is eight per core. Only threads that start later are affected.
    """
    try:
        return bool(ctypes.CDLL(None).mallopt(_M_ARENA_MAX, count))
    except (OSError, AttributeError):  # another C library
        return False


def return_freed_memory() -> bool:
    """Collect garbage, then give freed memory of all heaps back to the system; return whether the C library is glibc.

    It keeps what a training step has freed, often twice what the process needs between steps. Ended episodes are cycles
    that hold screenshots, few objects for the memory they take: by itself a full collection would come very late.
    """
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):  # another C library
        return False
    return True


def memory_metrics() -> dict[str, float]:
    """Return the resident memory of this process and its peak so far, in MiB.

    The peak is `VmHWM`: `ru_maxrss` begins with the memory of the process that started this one.
    """
    try:
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        (peak_kib,) = re.findall(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    except (OSError, IndexError, ValueError):
        resident, peak_kib = 0, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak = max(resident, 1024 * int(peak_kib))  # the kernel's peak may lag
    return {"memory/rss_mib": resident / MIB, "memory/peak_mib_total": peak / MIB}
