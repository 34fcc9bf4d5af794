"""How many desktops this machine has room for. Invariant: a pool that would not fit is refused before anything starts.

Memory is what a desktop is expected to use (`EXPECTED_MIB`), not what its guests may use at most: desktops share most of their
programs' pages, and `embedded/guard.py` ends one that goes beyond its bound.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from deskhand.errors import ConfigError

EXPECTED_MIB = 160
"""X server, window manager and a small application; with an office program or a browser 400."""
PER_CORE = 24
"""Beyond this the starting of desktops alone fills a processor."""
RESERVED_MIB = 512
SHARED_MEMORY_MIB = 12
"""Of /dev/shm for each: the screen and a fresh home."""


def available_memory_mib() -> float:
    """What the kernel, or the container's bound, leaves; MiB."""
    values = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    found = int(values["MemAvailable"].split()[0]) / 1024
    for most, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            found = min(found, (int(Path(most).read_text()) - int(Path(used).read_text())) / 2**20)
        except (OSError, ValueError):
            continue
    return found


def max_desktops(expected_mib: float = EXPECTED_MIB) -> tuple[int, str]:
    """How many desktops fit, and what sets the bound, in words."""
    memory, cores = available_memory_mib(), len(os.sched_getaffinity(0))
    shared = shutil.disk_usage("/dev/shm").free / 2**20 if Path("/dev/shm").is_dir() else 0.0
    bounds = [
        (
            int((memory - RESERVED_MIB) // expected_mib),
            f"{memory:.0f} MiB of memory are available, {expected_mib:g} each",
        ),
        (cores * PER_CORE, f"{cores} cores, {PER_CORE} desktops each"),
        (int(shared // SHARED_MEMORY_MIB), f"/dev/shm has {shared:.0f} MiB free, {SHARED_MEMORY_MIB} each"),
    ]
    count, why = min(bounds)
    return max(0, count), why


def check_fits(desktops: int, expected_mib: float = EXPECTED_MIB) -> None:
    """Raises `ConfigError` when so many desktops would not fit."""
    count, why = max_desktops(expected_mib)
    if desktops > count:
        raise ConfigError(
            f"{desktops} desktops at a time do not fit on this machine, {count} do ({why}); ask for fewer"
        )
