"""Bounds on all guests of a desktop together.

Invariant: a desktop beyond its memory, processes or disk is ended within some periods, and says why; those beside it go on.

Limits of the kernel for single processes (`walls.py`) stop most guests before this does. One thread looks after all desktops of
this process.
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
DISK_SHARE = 0.02
"""Of a processor, for looking at the files of one desktop: the more there are, the less often."""
LARGEST_HOME = 200_000
"""Files and folders; with more of them a desktop is beyond its bounds, whatever their size."""
_PAGE = os.sysconf("SC_PAGE_SIZE")
_MIB = 1024 * 1024


@dataclass
class _Watched:
    limits: ResourceLimits
    disk: bool
    due_at: float = 0.0
    """When its files are to be looked at again."""


_watched: weakref.WeakKeyDictionary[Jail, _Watched] = weakref.WeakKeyDictionary()
_lock = threading.Lock()
_thread: threading.Thread | None = None


def monitor(box: Jail, limits: ResourceLimits, disk: bool) -> None:
    """Look after a box until it ends; `disk`: also after its folders, which nothing else bounds."""
    global _thread
    with _lock:
        _watched[box] = _Watched(limits, disk)
        if _thread is None or not _thread.is_alive():
            _thread = threading.Thread(target=_look, name="deskhand-guard", daemon=True)
            _thread.start()


def _look() -> None:
    pause = threading.Event()
    while not pause.wait(PERIOD_S):
        with _lock:
            boxes = list(_watched.items())
        for box, watched in boxes:
            try:
                if not box.is_running():
                    with _lock:
                        _watched.pop(box, None)
                elif reason := _excess_of(box, watched):
                    box.end_because(reason)
            except Exception:  # one that cannot be looked at must not leave the others unguarded
                log.exception("guard.failed", folder=str(box.folders[0]))


def _excess_of(box: Jail, watched: _Watched) -> str | None:
    began = time.monotonic()
    looks_at_disk = watched.disk and began >= watched.due_at
    reason = exceeded_limit(box.pids(), box.folders if looks_at_disk else [], watched.limits)
    if looks_at_disk:
        ended = time.monotonic()
        watched.due_at = ended + (ended - began) / DISK_SHARE
    return reason


def exceeded_limit(pids: list[int], folders: list[Path], limits: ResourceLimits) -> str | None:
    """What these processes and these folders have beyond their limits, in words."""
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
        return f"its guests use {memory // _MIB} MiB of memory; {limits.memory_mib} are allowed"
    if threads > limits.processes:
        return f"its guests run {threads} processes and threads; {limits.processes} are allowed"
    used = sum(disk_bytes(folder, limits.disk_mib * _MIB) for folder in folders)
    if used > limits.disk_mib * _MIB:
        return (
            f"its files take more than {limits.disk_mib} MiB" if used < LARGEST_HOME * _MIB else "it has too many files"
        )
    return None


def disk_bytes(folder: Path, enough: int) -> int:
    """What the files of a folder take, in bytes; stops counting beyond `enough`, and no link is followed."""
    total, entries, pending = 0, 0, [str(folder)]
    while pending and total <= enough:
        try:
            with os.scandir(pending.pop()) as found_there:
                for entry in found_there:
                    entries += 1
                    if entries > LARGEST_HOME:
                        return LARGEST_HOME * _MIB
                    with contextlib.suppress(OSError):  # one that goes away meanwhile must not hide those after it
                        total += max(entry.stat(follow_symlinks=False).st_blocks * 512, 1024)
                        if entry.is_dir(follow_symlinks=False):
                            pending.append(entry.path)
        except OSError:
            continue
    return total
