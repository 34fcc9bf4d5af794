"""Resource monitor: limits on all guests of a desktop together.

One thread polls every desktop of this process. A desktop that exceeds its memory, process or disk limit is killed with
that reason; the others continue. Per-process kernel limits (`isolation`) usually act first.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from dataclasses import dataclass
from pathlib import Path

import structlog

from deskhand.desktop.local.isolation import ResourceLimits
from deskhand.desktop.local.jail import Jail

log = structlog.get_logger()
PERIOD_S = 0.25
DISK_SCAN_CPU_FRACTION = 0.02
"""CPU fraction for scanning the files of one desktop; more files mean fewer scans."""
MAX_ENTRIES = 200_000
"""Files and folders; more exceed the limit, whatever their size."""
_PAGE = os.sysconf("SC_PAGE_SIZE")
_MIB = 1024 * 1024


@dataclass
class _Monitored:
    limits: ResourceLimits
    checks_disk: bool
    due_at: float = 0.0
    """Time of the next disk scan."""


_monitored: weakref.WeakKeyDictionary[Jail, _Monitored] = weakref.WeakKeyDictionary()
_lock = threading.Lock()
_thread: threading.Thread | None = None


def monitor(jail: Jail, limits: ResourceLimits, checks_disk: bool) -> None:
    """Monitor a jail until it ends; `checks_disk`: including its folders, which nothing else limits."""
    global _thread
    with _lock:
        _monitored[jail] = _Monitored(limits, checks_disk)
        if _thread is None or not _thread.is_alive():
            _thread = threading.Thread(target=_run, name="deskhand-resource-monitor", daemon=True)
            _thread.start()


def _run() -> None:
    stop = threading.Event()
    while not stop.wait(PERIOD_S):
        with _lock:
            jails = list(_monitored.items())
        for jail, monitored in jails:
            try:
                if not jail.is_running():
                    with _lock:
                        _monitored.pop(jail, None)
                elif reason := _check(jail, monitored):
                    jail.kill_with_reason(reason)
            except Exception:  # keep monitoring the other jails
                log.exception("resource_monitor.failed", folder=str(jail.folders[0]))


def _check(jail: Jail, monitored: _Monitored) -> str | None:
    started = time.monotonic()
    checks_disk = monitored.checks_disk and started >= monitored.due_at
    reason = exceeded_limit(jail.pids(), jail.folders if checks_disk else [], monitored.limits)
    if checks_disk:
        ended = time.monotonic()
        monitored.due_at = ended + (ended - started) / DISK_SCAN_CPU_FRACTION
    return reason


def exceeded_limit(pids: list[int], folders: list[Path], limits: ResourceLimits) -> str | None:
    """Return which limit these processes and folders exceed, or None."""
    threads, memory = 0, 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/statm", "rb") as file:
                _, resident, shared, *_ = (int(word) for word in file.read().split())
            threads += len(os.listdir(f"/proc/{pid}/task"))
        except (OSError, ValueError):
            continue
        memory += max(0, resident - shared) * _PAGE
    if memory > limits.memory_mib * _MIB:
        return f"guests use {memory // _MIB} MiB of memory; the limit is {limits.memory_mib}"
    if threads > limits.max_processes:
        return f"guests run {threads} processes and threads; the limit is {limits.max_processes}"
    used = sum(disk_bytes(folder, limits.disk_mib * _MIB) for folder in folders)
    if used > limits.disk_mib * _MIB:
        return (
            f"guest files use more than {limits.disk_mib} MiB"
            if used < MAX_ENTRIES * _MIB
            else f"guests created more than {MAX_ENTRIES} files"
        )
    return None


def disk_bytes(folder: Path, limit: int) -> int:
    """Return the disk usage of a folder in bytes; stops counting above `limit`. Links are not followed."""
    total, entries, pending = 0, 0, [str(folder)]
    while pending and total <= limit:
        with contextlib.suppress(OSError), os.scandir(pending.pop()) as found:
            for entry in found:
                entries += 1
                if entries > MAX_ENTRIES:
                    return MAX_ENTRIES * _MIB
                with contextlib.suppress(OSError):  # the file may be gone
                    total += max(entry.stat(follow_symlinks=False).st_blocks * 512, 1024)
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
    return total
