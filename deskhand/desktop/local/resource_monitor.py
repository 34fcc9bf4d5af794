"""Resource monitor: limits on all guests of a desktop together.

One thread polls every desktop of this process until it is closed. A desktop that exceeds its memory, process or disk
limit is killed with that reason; the others continue. The kernel limits memory and processes itself where there are
control groups (`cgroup`); the monitor then reports it. Per-process kernel limits (`isolation`) usually act first.

Without control groups, memory that no process has mapped counts only while a process has it open, and a process that
left its parents is found by a scan of all processes, for which time is limited.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
import time
import weakref
from dataclasses import dataclass
from pathlib import Path

import structlog

from deskhand.desktop.local import file_tree, guest_user, isolation, processes
from deskhand.desktop.local.isolation import ResourceLimits
from deskhand.desktop.local.jail import Jail
from deskhand.errors import InfrastructureError

log = structlog.get_logger()
PERIOD_S = 0.25
SCAN_CPU_FRACTION = 0.02
"""CPU fraction for scanning the files of one desktop, and for the processes of all; more of them mean fewer scans."""
_MIB = 1024 * 1024


@dataclass
class _Monitored:
    limits: ResourceLimits
    checks_disk: bool
    due_at: float = 0.0
    """Time of the next file scan."""
    open_bytes: int = 0
    """Size of the deleted files and memfds that the guests had open at the last file scan."""


_monitored: weakref.WeakKeyDictionary[Jail, _Monitored] = weakref.WeakKeyDictionary()
_lock = threading.Lock()
_thread: threading.Thread | None = None


def monitor(jail: Jail, limits: ResourceLimits, checks_disk: bool) -> None:
    """Monitor a jail until it is killed or closed; `checks_disk`: including its folders, which nothing else limits."""
    global _thread
    with _lock:
        _monitored[jail] = _Monitored(limits, checks_disk)
        if _thread is None or not _thread.is_alive():
            _thread = threading.Thread(target=_run, name="deskhand-resource-monitor", daemon=True)
            _thread.start()


def _run() -> None:
    stop = threading.Event()
    scan_due_at = 0.0
    by_key: dict[int, list[int]] = {}
    while not stop.wait(PERIOD_S):
        with _lock:
            jails = list(_monitored.items())
        started = time.monotonic()
        ungrouped = [jail for jail, _ in jails if not jail.cgroup.exists]
        if ungrouped and started >= scan_due_at:
            by_key = guest_user.processes_by_key(has_marks=any(jail.user.mark is not None for jail in ungrouped))
            ended = time.monotonic()
            scan_due_at = ended + (ended - started) / SCAN_CPU_FRACTION
        for jail, monitored in jails:
            try:
                reason = None if jail.is_closed else _check(jail, monitored, by_key)
                if reason:
                    jail.kill_with_reason(reason)
                if reason or jail.is_closed:
                    with _lock:
                        _monitored.pop(jail, None)
            except Exception:  # keep monitoring the other jails
                log.exception("resource_monitor.failed", folder=str(jail.folders[0]))


def _check(jail: Jail, monitored: _Monitored, by_key: dict[int, list[int]]) -> str | None:
    """Return why the jail must be killed, or None. `by_key`: `processes_by_key`, some time ago."""
    if jail.is_stopped():
        return "guests stopped the jail's shell"
    limits, pids = monitored.limits, _guests(jail, by_key)
    started = time.monotonic()
    folders: list[Path] = []
    if started >= monitored.due_at:
        monitored.open_bytes = 0 if jail.cgroup.limits_memory else open_bytes(pids)
        folders = jail.folders if monitored.checks_disk else []
    reason = jail.cgroup.exceeded_limit() or exceeded_limit(
        pids, folders, limits, None if jail.cgroup.limits_memory else monitored.open_bytes
    )
    if not reason and jail.isolation_level == "namespaces" and _num_temporary_files(jail) > file_tree.MAX_ENTRIES:
        reason = f"guests created more than {file_tree.MAX_ENTRIES} files"
    if started >= monitored.due_at:
        ended = time.monotonic()
        monitored.due_at = ended + (ended - started) / SCAN_CPU_FRACTION
    return reason


def _num_temporary_files(jail: Jail) -> int:
    """Return how many files the guests have outside their home, as the kernel counts them."""
    counts = [0]
    with contextlib.suppress(OSError, InfrastructureError):  # it ends, or this user may not look
        for folder in isolation.TEMPORARY_FOLDERS:
            found = os.statvfs(f"/proc/{jail.first_pid()}/root{folder}")
            counts.append(found.f_files - found.f_ffree)
    return sum(counts)


def _guests(jail: Jail, by_key: dict[int, list[int]]) -> list[int]:
    """Return the guests whose memory and number the kernel does not limit."""
    if jail.cgroup.exists:
        return [] if jail.cgroup.limits_memory and jail.cgroup.limits_processes else jail.cgroup.pids()
    found = set(jail.pids())
    others = set(by_key.get(jail.user.key, ())) - found
    return [*found, *(pid for pid in others if jail.user.owns(pid, processes.status(pid)))]  # ids may be reused


def exceeded_limit(
    pids: list[int], folders: list[Path], limits: ResourceLimits, num_open_bytes: int | None = 0
) -> str | None:
    """Return which limit these processes and folders exceed, or None.

    `num_open_bytes` is from `open_bytes`; None if the kernel limits memory.
    """
    found = [status for pid in pids if (status := processes.status(pid)) is not None]
    threads = sum(status.threads for status in found)
    if num_open_bytes is not None:
        private, shared = sum(status.private_kib for status in found), sum(status.shared_kib for status in found)
        if private + shared > limits.memory_mib * 1024:  # what processes share counted in each of them
            private, shared = _proportional_kib(pids)
        tables = sum(status.tables_kib for status in found)
        memory_mib = (private + tables + max(shared, num_open_bytes // 1024)) // 1024
        if memory_mib > limits.memory_mib:
            return f"guests use {memory_mib} MiB of memory; the limit is {limits.memory_mib}"
    if threads > limits.max_processes:
        return f"guests run {threads} processes and threads; the limit is {limits.max_processes}"
    try:
        used = sum(file_tree.disk_bytes(folder, limits.disk_mib * _MIB) for folder in folders)
    except file_tree.TreeTooLarge as error:
        return str(error)
    return f"guest files use more than {limits.disk_mib} MiB" if used > limits.disk_mib * _MIB else None


def _proportional_kib(pids: list[int]) -> tuple[int, int]:
    """Return the private and shared memory of processes, each page divided by the number of its users."""
    private = shared = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
                lines = file.read().splitlines()[1:]
            fields = {name: int(rest.split()[0]) for name, rest in (line.split(b":", 1) for line in lines)}
            private += fields[b"Pss_Anon"] + fields.get(b"SwapPss", 0)
            shared += fields[b"Pss_Shmem"]
        except (OSError, ValueError, KeyError):  # it hides its memory: count all of it
            if (status := processes.status(pid)) is not None:
                private, shared = private + status.private_kib, shared + status.shared_kib
    return private, shared


def open_bytes(pids: list[int]) -> int:
    """Return the size of the memfds and deleted files that processes have open; no folder contains them."""
    sizes: dict[tuple[int, int], int] = {}
    for pid in pids:
        with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as found:
            for entry in found:
                with contextlib.suppress(OSError):
                    file = os.stat(entry.path)
                    if stat.S_ISREG(file.st_mode) and file.st_nlink == 0:
                        sizes[file.st_dev, file.st_ino] = file.st_blocks * 512
    return sum(sizes.values())
