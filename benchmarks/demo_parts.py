"""Where the processor time of the demo goes: `python -m benchmarks.demo_parts [--full] [--set KEY=VALUE ...]`.

Runs steps of the demo without evaluations and prints CPU seconds by program and, for Deskhand's own process, by thread.
The kernel reports every task that ends (taskstats, Documentation/accounting/taskstats.rst), so programs that live for
milliseconds count too. The rows are compared with what the kernel charges to the control group of the run (cpuacct), or
else to the process and its children. Needs root. --programs prints instead what each program of `PROGRAMS` costs at its
start, and how much of that a process that was forked when it had loaded would save at most.
"""

from __future__ import annotations

import asyncio
import functools
import os
import socket
import sqlite3
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.thresholds import ROOT, Thresholds, parser_of, print_head
from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.local.desktop import LocalDesktop
from deskhand.tasks import chromium

SIZES = {
    "smoke": ("loop.total_steps=1", "loop.groups_per_step=2", "loop.group_size=4", "loop.max_concurrent_episodes=2"),
    "small": ("loop.total_steps=3",),
    "full": ("loop.total_steps=7",),
}
"""Settings of the run."""
MIN_SHARE = 0.9
"""Least share of the processor time that the rows must explain."""
MIN_ROW = 0.004
"""Share below which rows are added up as "other"."""
REAP_S, MAX_DEPTH = 3.0, 30
"""Seconds in which the processes of a namespace end after its first one, and most ancestors."""
CPUACCT = Path("/sys/fs/cgroup/cpuacct")
PROCESS = "deskhand"
PROGRAMS = {
    "openbox": ("openbox",),
    "xterm": ("xterm",),
    "galculator": ("galculator",),
    "chromium": ("chromium", *chromium.FLAGS, "about:blank"),
}
"""Argument vectors by name."""
AFTER_S = 2.0
"""Seconds in which a program whose window has settled may still be starting."""
_NAMED = (
    "import ctypes, sys, threading; prctl = ctypes.CDLL(None).prctl; started = threading.Thread._bootstrap_inner\n"
    "def named(self): prctl(15, self.name[:15].encode()); started(self)\n"
    "threading.Thread._bootstrap_inner = named\n"
    "from deskhand.__main__ import main; main()"
)
"""Names each thread for the kernel, which Python does not do before 3.14."""
_THREADS = {
    "deskhand-deskto": "thread of each desktop (X requests, settling, start and end)",
    "deskhand-files-": "threads for files and commands of desktops",
    "deskhand-jail-": "threads that read from jails",
    "deskhand-starte": "thread that starts processes",
    "deskhand-resour": "resource monitor",
    "trainer": "trainer",
    "asyncio": "asyncio's threads (frames, store, readers)",
    "python": "event loop",
}
_PROGRAMS = {
    "Xvfb": "X servers",
    "openbox": "window managers",
    "python": "isolated readers",
    "bwrap": "bubblewrap",
    "sh": "jails' shells",
}
_ATTRIBUTE = struct.Struct("=HH")


@dataclass(frozen=True)
class Ended:
    """A task that has ended: its id, its process, the process's parent, its name, its CPU seconds and the time."""

    thread: int
    process: int
    parent: int
    name: str
    cpu_s: float
    at: float


class EndedTasks:
    """Listens for the ends of all tasks of this machine. Raises `OSError` without root, or without taskstats."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 16)  # NETLINK_GENERIC
        self._socket.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
        self._socket.bind((0, 0))
        self._socket.settimeout(0.2)
        self._send(16, 3, 2, b"TASKSTATS\0")  # CTRL_CMD_GETFAMILY, CTRL_ATTR_FAMILY_NAME
        ids = [data for kind, data in _attributes(self._socket.recv(1 << 16)[20:]) if kind == 1]
        if not ids:
            raise OSError("this kernel has no taskstats")
        (family,) = struct.unpack("=H", ids[0])
        self._send(family, 1, 3, Path("/sys/devices/system/cpu/possible").read_bytes().strip() + b"\0")  # REGISTER
        self.found: list[Ended] = []
        self._is_closed = False
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _send(self, family: int, command: int, attribute: int, data: bytes) -> None:
        body = _ATTRIBUTE.pack(4 + len(data), attribute) + data
        body += b"\0" * (-len(body) % 4)
        self._socket.send(struct.pack("=IHHIIBBH", 20 + len(body), family, 1, 1, 0, command, 1, 0) + body)

    def _listen(self) -> None:
        while not self._is_closed:
            try:
                message = self._socket.recv(1 << 16)
            except TimeoutError:
                continue
            for kind, data in _attributes(message[20:]):
                if kind == 4:  # TASKSTATS_TYPE_AGGR_PID
                    self.found += [_ended(stats) for inner, stats in _attributes(data) if inner == 3]

    def close(self) -> None:
        self._is_closed = True
        self._thread.join()
        self._socket.close()


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 4 <= len(data):
        size, kind = _ATTRIBUTE.unpack_from(data, at)
        if size < 4:
            return
        yield kind & 0x3FFF, data[at + 4 : at + size]
        at += size + 3 & ~3


def _ended(stats: bytes) -> Ended:
    """Read `struct taskstats` (linux/taskstats.h, version 12 or later)."""
    thread, parent = struct.unpack_from("=II", stats, 128)
    user_us, system_us = struct.unpack_from("=QQ", stats, 152)
    (process,) = struct.unpack_from("=I", stats, 368)
    name = stats[80:112].split(b"\0")[0].decode(errors="replace")
    return Ended(thread, process, parent, name, (user_us + system_us) / 1e6, time.monotonic())


def cpu_by_part(ended: Sequence[Ended], root: int) -> dict[str, float]:
    """Return the CPU seconds of the process `root` by thread and of its descendants by program.

    A process usually ends before its parent. The first process of a namespace ends before all others, though, and ids
    are used again: the parent is the process of that id that ended within the last seconds, or else the next to end.
    """
    processes: dict[int, list[Ended]] = {}
    for task in ended:
        if task.thread == task.process:
            processes.setdefault(task.process, []).append(task)

    def instance(process: int, at: float) -> Ended | None:
        found = processes.get(process, [])
        return next((each for each in found if each.at >= at - REAP_S), None)

    @functools.cache
    def is_ours(task: Ended, depth: int = 0) -> bool:
        if root in (task.process, task.parent):
            return True
        parent = instance(task.parent, task.at)
        return parent is not None and depth < MAX_DEPTH and is_ours(parent, depth + 1)

    found: dict[str, float] = defaultdict(float)
    for task in ended:
        if task.process == root:
            prefix = next((name for name in _THREADS if task.name.startswith(name)), "")
            found[f"{PROCESS}: {_THREADS.get(prefix, task.name)}"] += task.cpu_s
        elif is_ours(instance(task.process, task.at) or task):
            found[_PROGRAMS.get(task.name, task.name)] += task.cpu_s
    return found


@contextmanager
def accounted_group() -> Iterator[Path | None]:
    """Yield a control group that counts processor time; None where there are none."""
    folder = CPUACCT / f"deskhand-demo-parts-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError:
        yield None
        return
    try:
        yield folder
    finally:
        folder.rmdir()


def measure(settings: Sequence[str]) -> tuple[dict[str, float], float, int, float]:
    """Run the demo; return CPU seconds by part, CPU seconds in all, scored episodes, and episodes per minute."""
    listener = EndedTasks()
    with tempfile.TemporaryDirectory() as folder, accounted_group() as group:
        run_dir = f"{folder}/run"
        words = [sys.executable, "-c", _NAMED, "train", str(ROOT / "configs" / "tiny_cpu.yaml"), run_dir]
        for value in ("evaluation.num_episodes=0", *settings):
            words += ["--set", value]
        entered = ["sh", "-c", 'echo $$ >"$0/cgroup.procs"; exec "$@"', str(group)] if group else []
        before = os.times()
        process = subprocess.Popen([*entered, *words], cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"})
        if process.wait():
            raise SystemExit(f"the demo ended with {process.returncode}")
        after = os.times()
        cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
        if group is not None:
            cpu_s = int((group / "cpuacct.usage").read_text()) / 1e9
        with sqlite3.connect(f"{run_dir}/run.sqlite") as database:
            rows = database.execute(
                "SELECT COUNT(*), MIN(started_at), MAX(finished_at) FROM episodes "
                "WHERE group_id IS NOT NULL AND value IS NOT NULL"
            ).fetchone()
    listener.close()
    return cpu_by_part(listener.found, process.pid), cpu_s, rows[0], 60 * rows[0] / (rows[2] - rows[1])


async def program_starts(repetitions: int) -> None:
    """Print the CPU milliseconds of `PROGRAM --version` (loading, linking, and what a program does before it connects)
    and of the program until its window has settled and `AFTER_S` later, medians on fresh desktops."""
    for program, argv in PROGRAMS.items():
        version_ms, start_ms, wall_ms = [], [], []
        for _ in range(repetitions):
            desktop = LocalDesktop()
            try:
                await desktop.reset(DesktopSpec("plain", 320, 256))
                command = f"for i in 1 2 3 4 5; do {program} --version >/dev/null 2>&1; done; times"
                said = (await desktop.run(["bash", "-c", command])).stdout.decode().split()
                version_ms.append(sum(map(_milliseconds, said[-2:])) / 5)
                if program == "openbox":
                    start_ms.append(_used_ms(desktop.parts()["window manager"]))
                    continue
                began = time.perf_counter()
                await desktop.launch([*argv])
                await desktop.wait_window(program)
                wall_ms.append(1e3 * (time.perf_counter() - began))
                await desktop.observe()
                await asyncio.sleep(AFTER_S)
                start_ms.append(_used_ms(desktop.parts()["applications"]))
            finally:
                await desktop.close()
        waited = f", window after {statistics.median(wall_ms):.0f} ms" if wall_ms else ""
        print(
            f"{program:12s} start {statistics.median(start_ms):6.0f} CPU-ms, of which --version takes "
            f"{statistics.median(version_ms):6.0f}{waited}, n {repetitions}",
            flush=True,
        )


def _milliseconds(text: str) -> float:
    """Read "0m0.123s", as the shell prints times."""
    minutes, _, seconds = text.rstrip("s").partition("m")
    return 1e3 * (60 * int(minutes) + float(seconds))


def _used_ms(pids: Sequence[int]) -> float:
    """Return the CPU milliseconds of all threads of these processes and of their descendants that still run."""
    found = 0
    family = {*pids, *(child.pid for pid in pids for child in psutil.Process(pid).children(recursive=True))}
    for pid in family:
        for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            found += int(path.read_text().split()[0])
    return found / 1e6


def main() -> None:
    parser = parser_of(__doc__, "seven steps of the demo instead of three")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="another setting of the run")
    parser.add_argument("--programs", action="store_true", help="only the start of each program of `PROGRAMS`")
    options, thresholds = parser.parse_args(), Thresholds()
    print_head()
    if options.programs:
        asyncio.run(program_starts(1 if options.size == "smoke" else 7))
        thresholds.finish()
        return
    parts, cpu_s, episodes, rate = measure([*SIZES[options.size], *options.set])
    explained = sum(parts.values())
    other = sum(seconds for seconds in parts.values() if seconds < MIN_ROW * cpu_s)
    ordered = sorted(parts.items(), key=lambda part: -part[1])
    rows = [(name, seconds) for name, seconds in ordered if seconds >= MIN_ROW * cpu_s]
    for name, seconds in [*rows, ("other", other), ("not explained", cpu_s - explained), ("all", cpu_s)]:
        print(
            f"{name:72s} {seconds:8.2f} CPU-s {100 * seconds / cpu_s:6.1f} % {1e3 * seconds / episodes:8.1f} ms/episode"
        )
    print(f"{episodes} episodes, {rate:.0f} per minute")
    share = explained / cpu_s
    thresholds.check("explained", share >= MIN_SHARE, f"{share:.1%}", f">= {MIN_SHARE:.0%}")
    thresholds.finish()


if __name__ == "__main__":
    main()
