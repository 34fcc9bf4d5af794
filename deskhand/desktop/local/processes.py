"""Host processes: start, find, kill.

`PR_SET_PDEATHSIG` fires when the *thread* that started the child ends, so one long-lived thread starts every process.
The reaper (`runtime_dir`) additionally kills leftovers by label and removes their folders.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

OWNER_LABEL = "DESKHAND_OWNER"
LEASE_LABEL = "DESKHAND_LEASE"
HIGH_PRIORITY_NICE = -10

_starts: queue.SimpleQueue[tuple[Future[subprocess.Popen[bytes]], list[str], dict[str, Any]]] = queue.SimpleQueue()
_starter: threading.Thread | None = None
_starter_lock = threading.Lock()


def _starter_loop() -> None:
    while True:
        future, argv, options = _starts.get()
        try:
            process: Any = subprocess.Popen(argv, **options)
            future.set_result(process)
        except BaseException as error:
            future.set_exception(error)


def start(argv: list[str], **options: Any) -> subprocess.Popen[bytes]:
    """Call `subprocess.Popen` in the long-lived thread, with a new session. Raises what `Popen` raises."""
    global _starter
    with _starter_lock:
        if _starter is None or not _starter.is_alive():
            _starter = threading.Thread(target=_starter_loop, name="deskhand-starter", daemon=True)
            _starter.start()
    future: Future[subprocess.Popen[bytes]] = Future()
    options.setdefault("start_new_session", True)
    _starts.put((future, argv, options))
    return future.result()


def python_command(module: str, *arguments: str) -> list[str]:
    """Return a command that runs `main()` of a module, in isolated mode and without site packages."""
    root = str(Path(__file__).resolve().parents[3])
    program = f"import sys; sys.path.insert(0, {root!r}); from {module} import main; main()"
    return [sys.executable, "-I", "-S", "-c", program, *arguments]


def find_labeled(label: str, value: str) -> list[int]:
    """Return the processes (not zombies) whose initial environment contains `label=value`."""
    entry = f"{label}={value}".encode()
    found = []
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        with contextlib.suppress(OSError):
            if entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(pid)
    return found


def state(pid: int) -> str:
    """Return the scheduler state of the first thread ("R" running or runnable, "Z" zombie), "" if there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            stat = file.read()
    except OSError:
        return ""
    return chr(stat[stat.rindex(b")") + 2])


def oom_kills() -> int:
    """Return how many processes the kernel of this machine has killed for want of memory; -1 if it does not say."""
    with contextlib.suppress(OSError), open("/proc/vmstat", "rb") as file:
        for line in file:
            if line.startswith(b"oom_kill "):
                return int(line.split()[1])
    return -1


def children(parent: int) -> list[int]:
    """Return the children of `parent`, including zombies."""
    found = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{parent}/task"):
            with open(f"/proc/{parent}/task/{thread}/children", "rb") as file:
                found += [int(word) for word in file.read().split()]
    return found


def descendants(root: int) -> list[int]:
    """Return the living descendants of `root`, without `root`."""
    found: list[int] = []
    pending = [root]
    while pending:
        for child in children(pending.pop()):
            pending.append(child)
            if state(child) not in ("", "Z"):
                found.append(child)
    return found


def has_run_commands(root: int) -> bool | None:
    """Return whether `root` or a descendant has waited for a child that ended; None if the kernel does not count.

    The kernel adds the page faults of such a child, which has some, to a counter of its parent.
    """
    own, of_children = 0, 0
    for pid in [root, *descendants(root)]:
        with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
            own, of_children = own + int(fields[7]), of_children + int(fields[8])
    return of_children > 0 if own else None


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Send a signal; ignore processes that are gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def raise_priority(pid: int) -> None:
    """Raise the priority of a process that only reacts to input, where this user may. Its children have the usual one:
    a guest can make the window manager start programs."""
    with contextlib.suppress(OSError):
        os.sched_setscheduler(pid, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK, os.sched_param(0))
        os.setpriority(os.PRIO_PROCESS, pid, HIGH_PRIORITY_NICE)


def kill_tree(root: int, label: str, value: str, timeout_s: float = 2.0) -> list[int]:
    """Kill the descendants of `root` and all processes labeled `label=value`, `root` last; return survivors."""
    deadline = time.monotonic() + timeout_s
    while True:
        victims = set(descendants(root)) | set(find_labeled(label, value))
        victims -= {root, os.getpid()}
        if not victims or time.monotonic() > deadline:
            kill(root)
            return sorted(victims)
        for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped processes cannot fork
            for pid in victims:
                kill(pid, number)
        time.sleep(0.002)
