"""Jail: the guest processes of a desktop.

`isolation` builds the sandbox command. A shell inside reads commands from standard input and reports how launched
programs end. A crash of a launched application fails the desktop. The shell is a guest itself: at the plain level other
guests can stop or kill it, so nothing here waits for it or for its pipes without a limit.

Invariant: no process survives `close` or the death of the owner.
"""

from __future__ import annotations

import os
import posixpath
import select
import shlex
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from deskhand.desktop.base import CommandResult
from deskhand.desktop.local import guest_user, isolation, processes
from deskhand.desktop.local.cgroup import Cgroup
from deskhand.desktop.local.guest_user import GuestUser
from deskhand.desktop.local.isolation import GUEST_HOME, IsolationLevel, ResourceLimits
from deskhand.desktop.local.nul_pipes import NulPipes
from deskhand.errors import ConfigError, InfrastructureError

START_TIMEOUT_S = 20.0
LAUNCH_TIMEOUT_S = 10.0
END_TIMEOUT_S = 2.0
EXIT_REPORT_S = 1.0
POLL_S = 0.25
"""Maximum time until the death of the shell is noticed while another process holds its pipe."""
MAX_LINE_BYTES = 256
"""A guest may write to the shell's pipe too."""
MAX_OUTPUT_BYTES = 16 * 1024 * 1024
FALSE_REPORT = -1  # after two different exit codes of a program: a guest can write to the shell's pipe
_LOOP = "NL='\n'; echo 1000 >/proc/self/oom_score_adj; echo ready; while IFS= read -r line; do eval \"$line\"; done"
_PLAIN_LOOP = _LOOP + "; sleep 5"
_KILLED = 128 + signal.SIGKILL
_CRASHES = {128 + getattr(signal, f"SIG{name}") for name in ("KILL", "SEGV", "BUS", "ABRT", "ILL", "FPE")}


def _quoted(word: str) -> str:
    """Quote `word` for the shell, on one line."""
    return shlex.quote(word).replace("\n", "'\"$NL\"'")


@dataclass
class _Job:
    inner_pid: int | None = None
    returncode: int | None = None
    missing: bool = False
    pid: int = 0
    program: str = ""
    required: bool = False  # the desktop fails when this program ends


class Jail:
    """Starts the jail; `environment` is the guests' whole environment. Raises `InfrastructureError` on failure."""

    def __init__(
        self,
        folder: Path,
        home: Path,
        environment: dict[str, str],
        binds: list[Path],
        isolation_level: IsolationLevel,
        user: GuestUser,
        cgroup: Cgroup,
        limits: ResourceLimits,
    ) -> None:
        self.isolation_level = isolation_level
        self.folders = [home, folder / "control", folder / "tmp"]
        """Host folders that guests can write to."""
        self.launched: list[int] = []
        """Host process ids of launched programs, in order; some may have ended."""
        self.crashes_fail = True
        """Whether a crash of a launched program fails the desktop."""
        self.failure: str | None = None  # why the desktop failed; set once
        self.failed_by_guests = False
        """Whether guests caused `failure`, and not `close` or, for want of memory, the host's kernel."""
        self._oom_kills = processes.oom_kills()
        self._label = environment[processes.LEASE_LABEL]
        self.user = user
        self.cgroup = cgroup
        self.is_closed = False
        self._control = folder / "control"
        has_namespaces = isolation_level == "namespaces"
        self.guest_home = GUEST_HOME if has_namespaces else str(home)
        self._guest_control = "/run/jail" if has_namespaces else str(self._control)
        runtime = isolation.guest_runtime_dir(folder, isolation_level)
        temporary = "/tmp" if has_namespaces else runtime
        variables = {"HOME": self.guest_home, "XDG_RUNTIME_DIR": runtime, "TMPDIR": temporary}
        if not has_namespaces:
            variables["XDG_CONFIG_HOME"] = f"{home}/.config"  # a user without a passwd entry has no other home
        for directory in self.folders:
            directory.mkdir(mode=0o700, exist_ok=directory == home)
            isolation.chown_to_guest(directory, user.uid)
        build = isolation.namespaces_command if has_namespaces else isolation.plain_command
        shell = ["/bin/sh", "-c", _LOOP if has_namespaces else _PLAIN_LOOP]
        command = build(folder, home, binds, user.uid, limits, guest_user.mark_command(user.mark, shell))
        command = cgroup.command_inside(command)
        log_file = folder / "jail.log"
        with log_file.open("wb") as log:
            streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log}
            self._process = processes.start(command, **streams, env=variables | environment, cwd="/", bufsize=0)
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        self._send_lock = threading.Lock()
        self._jobs: dict[int, _Job] = {}
        self._next_job = 0
        self._pipes: list[NulPipes] = []
        self._changed = threading.Condition()
        self._is_ready = False
        self._has_exited = False
        self._reader = threading.Thread(target=self._read_replies, name=f"deskhand-jail-{folder.name}", daemon=True)
        self._reader.start()
        if not self._wait(lambda: self._is_ready, START_TIMEOUT_S):
            self.close()
            lines = log_file.read_text(errors="replace").strip().splitlines() or ["no message"]
            raise InfrastructureError(f"the {isolation_level} jail did not start: {lines[-1]}")

    def _read_replies(self) -> None:
        for line in self._lines():
            with self._changed:
                self._take_reply(line.split())
                self._changed.notify_all()
        processes.wait_bounded(self._process, POLL_S)
        code = self._process.poll() or 0
        with self._changed:
            self._has_exited = True
            self._fail(f"the jail has exited{f' by {processes.signal_name(-code)}' if code < 0 else ''}", is_kill=True)
            self._changed.notify_all()

    def _take_reply(self, words: list[bytes]) -> None:
        if words == [b"ready"]:
            self._is_ready = True
        elif len(words) >= 2 and words[1].isdigit() and (job := self._jobs.get(int(words[1]))):
            number = int(words[2]) if len(words) == 3 and words[2].isdigit() else 0
            if words[0] == b"started":
                job.inner_pid = number
            elif words[0] == b"ended":
                job.returncode = number if job.returncode in (None, number) else FALSE_REPORT
                self._judge_end(job)
            elif words[0] == b"missing":
                job.missing = True

    def _lines(self) -> Iterator[bytes]:
        """Yield the shell's lines until it ends or closes its output, even if another process holds the pipe."""
        assert self._process.stdout is not None
        descriptor, pending = self._process.stdout.fileno(), b""
        poller = select.poll()  # select() rejects descriptors above 1023
        poller.register(descriptor, select.POLLIN)
        ended_at: float | None = None
        while True:
            has_data = bool(poller.poll(1000 * POLL_S))
            if not self.is_running():
                ended_at = ended_at or time.monotonic()
                if not has_data or time.monotonic() > ended_at + POLL_S:
                    return
            if not has_data:
                continue
            chunk = os.read(descriptor, 1 << 16)
            *lines, pending = (pending + chunk).split(b"\n")
            yield from (line[:MAX_LINE_BYTES] for line in lines)
            if not chunk:
                return
            pending = pending[:MAX_LINE_BYTES]

    def _judge_end(self, job: _Job) -> None:
        if job.required:
            self._fail(f"{job.program} has exited", is_kill=job.returncode in (None, 0, _KILLED))
        elif self.crashes_fail and job.program and job.returncode is not None and job.returncode in _CRASHES:
            name = processes.signal_name(job.returncode - 128)
            self._fail(f"{job.program} was killed by {name}", is_kill=job.returncode == _KILLED)

    def _fail(self, reason: str, *, is_kill: bool = False) -> None:
        """Set `failure`. If `is_kill`, the kernel may have been the killer, for want of memory.

        The control group counts its own processes that the kernel has killed, and knows its own limit. Without one, any
        that it has killed on this machine may have been the one.
        """
        if self.failure is None:
            limit, of_group = self.cgroup.exceeded_limit(), self.cgroup.oom_kills()
            by_kernel = is_kill and (processes.oom_kills() != self._oom_kills if of_group is None else of_group > 0)
            self.failed_by_guests = not self.is_closed and (limit is not None or not by_kernel)
            self.failure = limit or reason

    def has_failed(self) -> bool:
        """Return whether the jail has failed. The end of its first process is a failure; guests may keep its pipes."""
        if not self.is_running():
            self._wait(lambda: self.failure is not None, EXIT_REPORT_S)
            self._fail("the jail has exited", is_kill=True)
        return self.failure is not None

    def kill_with_reason(self, reason: str) -> None:
        """Kill every process; the desktop fails with this reason."""
        self._fail(reason)
        self._kill_processes()

    def _wait(self, condition, timeout_s: float) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: condition() or self._has_exited, timeout_s)
            return bool(condition())

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        data = memoryview(line.encode() + b"\n")
        poller = select.poll()
        deadline = time.monotonic() + LAUNCH_TIMEOUT_S
        try:
            with self._send_lock:
                poller.register(self._process.stdin.fileno(), select.POLLOUT)
                while data:
                    left_s = deadline - time.monotonic()
                    if left_s < 0 or self.is_closed or self._has_exited:
                        self._fail("the jail's shell reads no commands")  # it may have half a line
                        raise InfrastructureError(self.failure)
                    if poller.poll(1000 * min(POLL_S, left_s)):
                        with suppress(BlockingIOError):
                            data = data[os.write(self._process.stdin.fileno(), data) :]
        except (OSError, ValueError) as error:
            raise InfrastructureError(self.failure or "the jail has exited") from error

    def _new_job(self) -> tuple[int, _Job]:
        with self._changed:
            self._next_job += 1
            job = self._jobs[self._next_job] = _Job()
            return self._next_job, job

    def _shell_line(
        self, argv: list[str], env: dict[str, str] | None, cwd: str | None, prefix: str = "", suffix: str = ""
    ) -> str:
        if not argv or any("\0" in word for word in [*argv, *(env or {}).values(), cwd or ""]):
            raise ConfigError("invalid command: needs a program name and no NUL characters")
        if invalid := [name for name in env or {} if not (name.isascii() and name.isidentifier())]:
            raise ConfigError(f"invalid environment variable name: {invalid[0]!r}")
        folder = posixpath.join(self.guest_home, cwd) if cwd else self.guest_home
        words = [f"cd {_quoted(folder)}"]
        words += [f"export {name}={_quoted(value)}" for name, value in (env or {}).items()]
        words.append(f"exec {prefix}{' '.join(map(_quoted, argv))}{suffix}")
        return " && ".join(words)

    def launch(
        self,
        argv: list[str],
        env: dict[str, str] | None = None,
        cwd: str | None = None,
        *,
        required: bool = False,
        suffix: str = "",
    ) -> int:
        """Start a program; return its host process id, 0 if it has already ended.

        A crash (or, if `required`, any exit) sets `failure`. Raises `ConfigError` if the program does not exist.
        """
        number, job = self._new_job()
        job.program, job.required = argv[0], required
        program = self._shell_line(argv, env, cwd, suffix=suffix)
        self._send(
            f"if command -v {_quoted(argv[0])} >/dev/null; then (({program}) </dev/null >/dev/null 2>&1 & inner=$!; "
            f'echo "started {number} $inner"; wait $inner; echo "ended {number} $?") & else echo "missing {number}"; fi'
        )
        if not self._wait(lambda: job.inner_pid is not None or job.missing, LAUNCH_TIMEOUT_S):
            raise InfrastructureError(self.failure or f"the jail did not start {argv[0]} within {LAUNCH_TIMEOUT_S:g} s")
        if job.missing:
            self._jobs.pop(number, None)
            raise ConfigError(f"{argv[0]}: not installed; apt-get install its package")
        job.pid = self._host_pid(job.inner_pid or 0)
        if job.pid:
            self.launched.append(job.pid)
        return job.pid

    def exit_codes(self) -> dict[int, int]:
        """Return the exit codes of launched programs that have ended, by host process id."""
        jobs = [job for job in list(self._jobs.values()) if job.pid and not processes.is_alive(job.pid)]
        return {job.pid: job.returncode for job in jobs if job.returncode is not None}

    def launch_piped(self, argv: list[str], env: dict[str, str] | None = None, cwd: str | None = None) -> NulPipes:
        """Like `launch`, for a program that reads messages from descriptor 3 and writes them to descriptor 4."""
        name = f"pipe-{len(self._pipes)}"
        pipes = NulPipes(self._control / name, self.user.uid)
        self._pipes.append(pipes)
        guest = _quoted(f"{self._guest_control}/{name}")
        self.launch(argv, env, cwd, suffix=f" 3<{guest}.in 4>{guest}.out")
        return pipes

    def run(
        self, argv: list[str], timeout_s: float, env: dict[str, str] | None = None, cwd: str | None = None
    ) -> CommandResult:
        """Run a program to completion; past `timeout_s` it is killed and the return code is 124, as in timeout(1).

        Each file that it writes, including its output, is limited to `MAX_OUTPUT_BYTES`.
        """
        number, job = self._new_job()
        program = self._shell_line(argv, env, cwd, prefix="setsid ")
        base = _quoted(f"{self._guest_control}/{number}")
        self._send(
            f"(ulimit -f {MAX_OUTPUT_BYTES // 512}; ({program}) </dev/null >{base}.out 2>{base}.err & "
            f'inner=$!; echo "started {number} $inner"; wait $inner; echo "ended {number} $?") &'
        )
        finished = self._wait(lambda: job.returncode is not None, timeout_s)
        if not finished and job.inner_pid is not None and not self._has_exited:
            self._send(f"kill -9 -{job.inner_pid}")
            self._wait(lambda: job.returncode is not None, 2.0)
        if self._has_exited and not finished:
            raise InfrastructureError(f"the jail exited while {argv[0]} ran: {self.failure}")
        self._jobs.pop(number, None)
        outputs = [self._read_output(f"{number}.{kind}") for kind in ("out", "err")]
        return CommandResult(job.returncode if finished and job.returncode is not None else 124, *outputs)

    def _read_output(self, name: str) -> bytes:
        path = self._control / name
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return b""
        with os.fdopen(descriptor, "rb") as file:
            data = file.read(MAX_OUTPUT_BYTES) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
        path.unlink(missing_ok=True)
        return data

    def _host_pid(self, inner_pid: int) -> int:
        return inner_pid if self.isolation_level == "plain" else processes.host_pid(self._process.pid, inner_pid)

    def first_pid(self) -> int:
        """Return the host process id of the first process in the sandbox."""
        if self.isolation_level == "plain":
            return self._process.pid
        found = processes.children(self._process.pid)
        if not found:
            raise InfrastructureError("the jail has exited")
        return found[0]

    def pids(self) -> list[int]:
        """Return the host process ids of all processes in the jail."""
        return processes.descendants(self._process.pid)

    def busy(self) -> bool:
        """Return whether a process in the jail runs or waits for the CPU."""
        return processes.has_running(self._process.pid)

    def has_stopped_programs(self) -> bool:
        """Return whether a guest has stopped a launched program or a helper of it."""
        return processes.has_stopped(self.launched, set(self.pids()))

    def is_stopped(self) -> bool:
        """Return whether a guest has stopped the shell, which then ignores every command."""
        path = [self._process.pid]
        if self.isolation_level == "namespaces":  # bwrap, the first process of the namespace, and its oldest child
            for _ in range(2):
                path += processes.children(path[-1])[:1]
        return processes.state(path[-1]) in ("T", "t") and processes.is_stopped_by(path[-1], self.pids())

    def is_running(self) -> bool:
        return self._process.poll() is None

    def _kill_processes(self) -> None:
        """Kill every process of this desktop, whether the shell lives or not."""
        self.user.is_unused = self.user.is_unused or self._end_namespace() or self.cgroup.end()
        if not self.user.is_unused:
            self.user.kill()
            if self.user.uid is None and self.user.mark is None:
                processes.kill_labeled(processes.LEASE_LABEL, self._label, END_TIMEOUT_S)
        if self.is_running():
            self._process.kill()

    def _end_namespace(self) -> bool:
        """Kill its first process; return whether bwrap has reaped it. The kernel kills the others before."""
        if self.isolation_level == "plain" or not self.is_running():
            return False
        for child in processes.children(self._process.pid):
            processes.kill(child)
        return processes.wait_bounded(self._process, END_TIMEOUT_S)

    def close(self) -> None:
        """Kill every process, within a bounded time. Idempotent."""
        self.is_closed = True
        self._kill_processes()
        processes.wait_bounded(self._process, END_TIMEOUT_S)
        self._reader.join(timeout=2 * POLL_S)
        for pipes in self._pipes:
            pipes.close()
        with self._send_lock:
            for pipe in filter(None, (self._process.stdin, self._process.stdout)):
                with suppress(OSError):
                    pipe.close()
