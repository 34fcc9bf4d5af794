"""Duration of event-loop callbacks; every callback inside `watched` is measured.

A callback's *held* time is its wall time minus the time its thread waited for a CPU (from /proc/thread-self/schedstat;
0 if unavailable). Blocking calls, waits for the GIL and garbage collection count as held.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass
class Watch:
    """Longest callbacks, in seconds."""

    callbacks: int = 0
    longest_wall_s: float = 0.0
    longest_cpu_s: float = 0.0
    """CPU time of the thread."""
    longest_held_s: float = 0.0
    longest_name: str = ""
    """Name of the callback with the longest held time."""

    def note(self, wall_s: float, cpu_s: float, waited_s: float, handle: Any) -> None:
        held_s = max(0.0, wall_s - waited_s)
        self.callbacks += 1
        self.longest_wall_s = max(self.longest_wall_s, wall_s)
        self.longest_cpu_s = max(self.longest_cpu_s, cpu_s)
        if held_s > self.longest_held_s:
            self.longest_held_s, self.longest_name = held_s, _name(handle)


@contextmanager
def watched() -> Iterator[Watch]:
    """Measure every callback of the event loops of this thread."""
    watch, original = Watch(), asyncio.Handle._run
    try:
        schedule = open("/proc/thread-self/schedstat", "rb", buffering=0)  # noqa: SIM115 (closed when the last callback has ended)
    except OSError:
        schedule = None

    def queued_s() -> float:
        return int(os.pread(schedule.fileno(), 96, 0).split()[1]) / 1e9 if schedule else 0.0

    def run(handle: Any) -> None:
        began, cpu, queued = time.perf_counter(), time.thread_time(), queued_s()
        try:
            original(handle)
        finally:
            wall_s, cpu_s = time.perf_counter() - began, time.thread_time() - cpu
            watch.note(wall_s, cpu_s, queued_s() - queued, handle)

    asyncio.Handle._run = run  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield watch
    finally:
        asyncio.Handle._run = original  # pyright: ignore[reportAttributeAccessIssue]


def _name(handle: Any) -> str:
    """Return the name of a task's coroutine or of the callback."""
    callback = getattr(handle, "_callback", None)
    task = getattr(callback, "__self__", None)
    if isinstance(task, asyncio.Task):
        return getattr(task.get_coro(), "__qualname__", repr(task))
    return getattr(callback, "__qualname__", repr(callback))
