"""Precedence over guests that keep all processors busy, for what ends them and for what reads their files.

Desktops, their reaper and the readers of `deskhand.tasks` use it.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

HIGHEST_PRIORITY_NICE = -20
MAX_RUNNING_PER_CPU = 8
SESSION_NICE_ATTEMPTS = 20

_SESSION_PRIORITY = Path("/proc/self/autogroup")
"""Linux shares processor time between sessions first, which have priorities of their own."""
_lock = threading.Lock()
_num_holders = 0
_usual_session: int | None = None
_usual_threads: dict[int, tuple[int, int]] = {}


def with_precedence(argv: list[str]) -> list[str]:
    """Return `argv` wrapped to run with the highest priority, where this user may; start it in a session of its own.

    Guests that keep all processors busy must not delay it, not even the start of its interpreter.
    """
    nice = str(HIGHEST_PRIORITY_NICE)
    script = f'{{ echo {nice} > {_SESSION_PRIORITY}; }} 2> /dev/null; exec nice -n {nice} "$@"'
    return ["/bin/sh", "-c", script, "sh", *argv]


def is_overloaded() -> bool:
    """Return whether far more threads than processors want to run now, as when guests try to delay everything else."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        running = int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0])
        return running > MAX_RUNNING_PER_CPU * (os.cpu_count() or 1)
    return False


@contextlib.contextmanager
def precedence_if_overloaded() -> Iterator[None]:
    """On an overloaded machine, give this process and its session the highest priority meanwhile, where this user may.

    Guests that keep all processors busy, each process in a session of its own, must not delay what ends them. On other
    machines this would take time from guests.
    """
    global _num_holders, _usual_session, _usual_threads
    if not is_overloaded():
        yield
        return
    with _lock:
        if _num_holders == 0:
            _usual_session = _set_session_nice(HIGHEST_PRIORITY_NICE)
            _usual_threads = _raise_threads()
        _num_holders += 1
    try:
        yield
    finally:
        with _lock:
            _num_holders -= 1
            if _num_holders == 0:
                _restore_threads(_usual_threads)
                if _usual_session is not None:
                    _set_session_nice(_usual_session)


def _set_session_nice(nice: int) -> int | None:
    """Set the niceness of this process's session; return the one before, None if it has none or cannot be set.

    It has none if no process of the session called `setsid` since the machine started, or without such a kernel.
    """
    try:
        before = int(_SESSION_PRIORITY.read_text().split()[-1])
        for attempt in range(SESSION_NICE_ATTEMPTS):
            try:
                _SESSION_PRIORITY.write_text(str(nice))
                break
            except BlockingIOError:  # without CAP_SYS_ADMIN, once in 100 ms on the whole machine
                if attempt == SESSION_NICE_ATTEMPTS - 1:
                    raise
                time.sleep(0.05)
    except (OSError, ValueError, IndexError):
        return None
    # Another process of the session may have raised it. The first to end sets it back for both.
    return 0 if before == HIGHEST_PRIORITY_NICE else before


def _raise_threads() -> dict[int, tuple[int, int]]:
    """Give every thread of this process, but not what it starts, the highest priority; return (policy, niceness)."""
    before = {}
    with contextlib.suppress(OSError):
        for thread in map(int, os.listdir("/proc/self/task")):
            with contextlib.suppress(OSError):  # it has ended, or this user may not
                usual = os.sched_getscheduler(thread), os.getpriority(os.PRIO_PROCESS, thread)
                os.sched_setscheduler(thread, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK, os.sched_param(0))
                before[thread] = usual
                os.setpriority(os.PRIO_PROCESS, thread, HIGHEST_PRIORITY_NICE)
    return before


def _restore_threads(before: dict[int, tuple[int, int]]) -> None:
    for thread, (policy, nice) in before.items():
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, thread, nice)
            os.sched_setscheduler(thread, policy, os.sched_param(0))
