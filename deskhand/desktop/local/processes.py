"""Host processes: starting, finding, ending. Invariant: what is started here dies with this process, however it dies.

`PR_SET_PDEATHSIG` fires when the *thread* that started the child ends, so every start goes through one thread that lives as
long as the process. A second net, the warden (`warden.py`), ends what is left by label and removes the folders.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

OWNER_LABEL = "DESKHAND_OWNER"
LEASE_LABEL = "DESKHAND_LEASE"
PROMPT_NICENESS = -10

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
    """`subprocess.Popen` from the long-lived thread, in a session of its own. Raises what `Popen` raises."""
    global _starter
    with _starter_lock:
        if _starter is None or not _starter.is_alive():
            _starter = threading.Thread(target=_starter_loop, name="deskhand-starter", daemon=True)
            _starter.start()
    future: Future[subprocess.Popen[bytes]] = Future()
    options.setdefault("start_new_session", True)
    _starts.put((future, argv, options))
    return future.result()


def process_ids() -> Iterator[int]:
    """Every process id that /proc shows."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            yield int(name)


def labelled(label: str, value: str) -> list[int]:
    """Processes (not zombies) whose start environment holds `label=value`."""
    wanted = f"{label}={value}".encode()
    found = []
    for pid in process_ids():
        try:
            if wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(pid)
        except OSError:
            continue
    return found


def state(pid: int) -> str:
    """The scheduler's letter for the first thread ("R" runs or waits for a processor, "Z" is dead), "" when there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            stat = file.read()
    except OSError:
        return ""
    return chr(stat[stat.rindex(b")") + 2])


def children(parent: int) -> list[int]:
    """Children of `parent`, zombies included."""
    found = []
    try:
        for thread in os.listdir(f"/proc/{parent}/task"):
            with open(f"/proc/{parent}/task/{thread}/children", "rb") as file:
                found += [int(word) for word in file.read().split()]
    except OSError:
        return found
    return found


def descendants(root: int) -> list[int]:
    """Living descendants of `root`, without `root`."""
    found: list[int] = []
    pending = [root]
    while pending:
        for child in children(pending.pop()):
            pending.append(child)
            if state(child) not in ("", "Z"):
                found.append(child)
    return found


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Send a signal; a process that is gone is no error."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def prefer(pid: int) -> None:
    """Let a process that only reacts to input be scheduled promptly on a busy machine, where this user may ask for that."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, PROMPT_NICENESS)


def end_tree(root: int, label: str, value: str, timeout_s: float = 2.0) -> list[int]:
    """End every descendant of `root` and every process labelled `label=value`, `root` last; return those still alive."""
    deadline = time.monotonic() + timeout_s
    while True:
        victims = set(descendants(root)) | set(labelled(label, value))
        victims -= {root, os.getpid()}
        if not victims or time.monotonic() > deadline:
            kill(root)
            return sorted(victims)
        for number in (signal.SIGSTOP, signal.SIGKILL):  # what is stopped cannot multiply
            for pid in victims:
                kill(pid, number)
        time.sleep(0.002)
