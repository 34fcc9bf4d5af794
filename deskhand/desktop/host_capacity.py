"""Number of desktops that fit on this machine, from memory, cores and /dev/shm.

Used by `DesktopPool` through `check_fits`. Memory is the request per desktop, not the limit: desktops share most
program pages, and `local.resource_monitor` stops a desktop that exceeds its limit.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from deskhand.errors import ConfigError

DEFAULT_MEMORY_REQUEST_MIB = 160
"""Enough for the X server, window manager and a small application. Office programs and browsers need 400."""
MAX_DESKTOPS_PER_CORE = 24
"""Above this, starting desktops alone saturates a core."""
RESERVED_MIB = 512
SHARED_MEMORY_MIB = 12
"""/dev/shm per desktop: the screen and a fresh home."""


def available_memory_mib() -> float:
    """Return the memory available under the kernel and cgroup limits, in MiB."""
    values = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    available = int(values["MemAvailable"].split()[0]) / 1024
    for limit_file, usage_file in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            available = min(available, (int(Path(limit_file).read_text()) - int(Path(usage_file).read_text())) / 2**20)
        except (OSError, ValueError):
            continue
    return available


def max_desktops(memory_request_mib: float = DEFAULT_MEMORY_REQUEST_MIB) -> tuple[int, str]:
    """Return how many desktops fit and a description of the limiting resource."""
    memory, cores = available_memory_mib(), len(os.sched_getaffinity(0))
    shared = shutil.disk_usage("/dev/shm").free / 2**20 if Path("/dev/shm").is_dir() else 0.0
    memory_text = f"{memory:.0f} MiB of memory available, {memory_request_mib:g} MiB per desktop"
    limits = [
        (int((memory - RESERVED_MIB) // memory_request_mib), memory_text),
        (cores * MAX_DESKTOPS_PER_CORE, f"{cores} cores, {MAX_DESKTOPS_PER_CORE} desktops per core"),
        (int(shared // SHARED_MEMORY_MIB), f"/dev/shm has {shared:.0f} MiB free, {SHARED_MEMORY_MIB} MiB per desktop"),
    ]
    count, why = min(limits)
    return max(0, count), why


def check_fits(desktops: int, memory_request_mib: float = DEFAULT_MEMORY_REQUEST_MIB) -> None:
    """Raise `ConfigError` if `desktops` concurrent desktops do not fit."""
    count, why = max_desktops(memory_request_mib)
    if desktops > count:
        raise ConfigError(f"{desktops} concurrent desktops do not fit on this machine ({why}); request at most {count}")
