"""Host processes: start, find, kill.

`PR_SET_PDEATHSIG` fires when the *thread* that started the child ends, so one long-lived thread starts every process.
The label in the environment finds Deskhand's own programs, such as X servers. A guest can remove its label, so guests
are found by their `guest_user` and `cgroup`.
"""

from __future__ import annotations

import contextlib
import os
import queue
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Container
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OWNER_LABEL = "DESKHAND_OWNER"
LEASE_LABEL = "DESKHAND_LEASE"
HIGH_PRIORITY_NICE = -10
_FIELDS = re.compile(
    rb"^(State|TracerPid|Uid|NSpid|RssAnon|RssShmem|VmSwap|VmPTE|Threads|NoNewPrivs|Seccomp):\t(.*)$", re.MULTILINE
)
"""Lines of /proc/PID/status. The kernel escapes line breaks in a process's name."""

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
    for pid in all_pids():
        with contextlib.suppress(OSError):
            if entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(pid)
    return found


@dataclass(frozen=True)
class ProcessStatus:
    """From /proc/PID/status, which a process cannot hide from other users. Sizes in KiB."""

    is_alive: bool
    uids: frozenset[int]
    threads: int
    private_kib: int
    """Anonymous memory, including swapped memory. Pages shared with a forked parent count in both."""
    tables_kib: int
    """Page tables. They also map memory that is never written, of which a process may have any amount."""
    shared_kib: int
    """Mapped shared memory: MAP_SHARED, memfd, System V segments, mapped files of a tmpfs."""
    is_confined: bool
    """Has `no_new_privs` and a seccomp filter, like every guest at the plain level."""
    is_in_container: bool
    """In a process namespace below that of this process."""


def status(pid: int) -> ProcessStatus | None:
    """Return the status of a process, None if there is no such process.

    A process whose first thread has ended looks like a zombie while its other threads run.
    """
    fields = _status_fields(f"/proc/{pid}/status")
    if fields is None:
        return None
    threads = int(fields.get(b"Threads", b"0"))
    is_zombie = fields[b"State"][:1] in (b"Z", b"X")
    uids = frozenset(int(word) for word in fields[b"Uid"].split())
    is_alive = not is_zombie or threads > 1
    if is_zombie and is_alive:
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                other = _status_fields(f"/proc/{pid}/task/{thread}/status")
                fields = other if other and b"RssAnon" in other else fields

    def kib(*names: bytes) -> int:
        return sum(int(fields[name].split()[0]) for name in names if name in fields)

    is_confined = fields.get(b"NoNewPrivs") == b"1" and fields.get(b"Seccomp") == b"2"
    is_in_container = len(fields.get(b"NSpid", b"0").split()) > 1
    memory = kib(b"RssAnon", b"VmSwap"), kib(b"VmPTE"), kib(b"RssShmem")
    return ProcessStatus(is_alive, uids, threads, *memory, is_confined, is_in_container)


def _status_fields(path: str) -> dict[bytes, bytes] | None:
    try:
        with open(path, "rb", buffering=0) as file:
            fields = dict(_FIELDS.findall(file.read()))
    except OSError:
        return None
    return fields if b"State" in fields and b"Uid" in fields else None


def all_pids() -> list[int]:
    """Return every process id that this process can see, including zombies, in ascending order."""
    return sorted(int(name) for name in os.listdir("/proc") if name.isdigit())


def newest_pids() -> list[int]:
    """Return the process ids that the kernel assigned last, newest first; some may be of threads, or gone."""
    with contextlib.suppress(OSError, ValueError), open("/proc/loadavg", "rb") as file:
        last = int(file.read().split()[4])
        return [pid for pid in range(last, last - 3, -1) if pid > 1]
    return []


def state(pid: int) -> str:
    """Return the scheduler state of the first thread ("R" running or runnable, "Z" zombie), "" if there is none."""
    fields = _stat_fields(pid)
    return fields[0].decode() if fields else ""


def _stat_fields(pid: int) -> list[bytes]:
    """Return the fields of /proc/PID/stat from the third, the state; empty if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []


def run_time_s(pid: int) -> float:
    """Return the processor time of a process in seconds, 0 if there is none. Does not count waiting for a processor."""
    fields = _stat_fields(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def has_terminal(pid: int) -> bool:
    """Return whether a process has a controlling terminal, which stops programs by Ctrl-Z and in the background."""
    fields = _stat_fields(pid)
    return bool(fields) and fields[4] != b"0"


def is_stopped_by(pid: int, others: Container[int]) -> bool:
    """Return whether a process is stopped, and not by its terminal or by a debugger other than `others`."""
    now = state(pid)
    if now == "t":
        fields = _status_fields(f"/proc/{pid}/status") or {}
        return int(fields.get(b"TracerPid", b"0")) in others
    return now == "T" and not has_terminal(pid)


def has_stopped(programs: list[int], guests: set[int]) -> bool:
    """Return whether one of `guests` has stopped one of these programs or a descendant.

    What runs in a terminal is not looked at: there a stopped program is usual, and the host needs none.
    """
    pending = list(programs)
    while pending:
        pid = pending.pop()
        if pid in guests and not has_terminal(pid):
            if is_stopped_by(pid, guests):
                return True
            pending += children(pid)
    return False


def is_alive(pid: int) -> bool:
    """Return whether any thread of a process runs."""
    first_thread = state(pid)
    if first_thread in ("", "Z", "X"):
        found = status(pid) if first_thread else None
        return found is not None and found.is_alive
    return True


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
            if is_alive(child):
                found.append(child)
    return found


def has_running(root: int) -> bool:
    """Return whether a descendant of `root` runs or waits for the CPU."""
    pending = children(root)
    while pending:
        pid = pending.pop()
        if state(pid) == "R":
            return True
        pending += children(pid)
    return False


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


def kill_labeled(label: str, value: str, timeout_s: float) -> None:
    """Kill the processes whose initial environment contains `label=value`, and their descendants."""
    deadline = time.monotonic() + timeout_s
    while pids := [pid for pid in find_labeled(label, value) if pid != os.getpid()]:
        for pid in pids:
            for victim in (*descendants(pid), pid):
                kill(victim)
        if time.monotonic() > deadline:
            return
        time.sleep(0.002)


def wait_bounded(process: subprocess.Popen[bytes], timeout_s: float) -> bool:
    """Wait for a killed child; return whether it has ended. One in uninterruptible sleep may never end."""
    if process.poll() is not None:
        return True
    timeout_s = max(0.0, timeout_s)
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError:  # another thread has collected it, or the kernel has no such call
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout_s)
        return process.returncode is not None
    try:  # `process.wait` polls, at intervals of up to 50 ms
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        if not poller.poll(1000 * timeout_s):
            return False
    finally:
        os.close(descriptor)
    process.wait()
    return True


def raise_priority(pid: int) -> None:
    """Raise the priority of a process that only reacts to input, where this user may.

    Its children get the usual priority, because a guest can make the window manager start programs.
    """
    with contextlib.suppress(OSError):
        os.sched_setscheduler(pid, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK, os.sched_param(0))
        os.setpriority(os.PRIO_PROCESS, pid, HIGH_PRIORITY_NICE)


def signal_name(number: int) -> str:
    """Return the name of a signal; most real-time signals have none."""
    return next((each.name for each in signal.Signals if each == number), f"signal {number}")


def host_pid(root: int, inner_pid: int) -> int:
    """Return the id of the descendant of `root` that has `inner_pid` in its own PID namespace; 0 if it is gone."""
    for pid in descendants(root):
        try:
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith("NSpid:") and int(line.split()[-1]) == inner_pid:
                    return pid
        except OSError:
            continue
    return 0
