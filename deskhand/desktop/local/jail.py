"""Where a desktop's guests run. Invariant: when the box is closed, or its owner dies, none of its processes is left.

What keeps them apart from the host is in `walls.py`. Inside, a shell starts the programs that it is told to on its standard
input, and reports how those that were launched ended: a desktop whose application crashed has failed, and says so.
"""

from __future__ import annotations

import os
import shlex
import signal
import stat
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path

from deskhand.desktop.base import CommandResult
from deskhand.desktop.local import isolation as isolation_module
from deskhand.desktop.local import processes
from deskhand.desktop.local.isolation import GUEST_HOME, Isolation, ResourceLimits
from deskhand.desktop.local.nul_pipes import NulPipes
from deskhand.errors import ConfigError, InfrastructureError

START_TIMEOUT_S = 20.0
OUTPUT_LIMIT_BYTES = 16 * 1024 * 1024
_LOOP = "NL='\n'; echo 1000 >/proc/self/oom_score_adj; echo ready; while IFS= read -r line; do eval \"$line\"; done"
_PLAIN_LOOP = _LOOP + "; sleep 5"
_CRASHES = {
    128 + number
    for number in (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE)
}


def _quoted(word: str) -> str:
    """`word` for the shell, on one line."""
    return shlex.quote(word).replace("\n", "'\"$NL\"'")


@dataclass
class _Job:
    inner_pid: int | None = None
    returncode: int | None = None
    missing: bool = False
    program: str = ""
    needed: bool = False
    """The desktop cannot do without it."""


class Jail:
    """Starts the box; `environment` is the guests' whole environment. Raises `InfrastructureError` when it does not start."""

    def __init__(
        self,
        folder: Path,
        home: Path,
        label: str,
        owner: str,
        environment: dict[str, str],
        binds: list[Path],
        isolation: Isolation,
        uid: int | None = None,
        limits: ResourceLimits | None = None,
    ) -> None:
        self.isolation = isolation
        self.folders = [home, folder / "control", folder / "tmp"]
        """Where its guests can write on the host."""
        self.launched: list[int] = []
        """Host process ids of the programs that were started, in this order; some may have ended."""
        self.crashes_fail = True
        """Whether a program that was launched may not crash."""
        self.failure: str | None = None
        """Why the desktop is no longer what it was; set once."""
        self._label = label
        self._uid = uid
        self._control = folder / "control"
        labels = {processes.LEASE_LABEL: label, processes.OWNER_LABEL: owner}
        boxed = isolation == "namespaces"
        self.guest_home = GUEST_HOME if boxed else str(home)
        self._guest_control = "/run/box" if boxed else str(self._control)
        runtime = isolation_module.runtime_folder(folder, isolation)
        places = {"HOME": self.guest_home, "XDG_RUNTIME_DIR": runtime, "TMPDIR": "/tmp" if boxed else runtime}
        if not boxed:
            places["XDG_CONFIG_HOME"] = f"{home}/.config"  # a user without a name has no home but this
        self._environment = places | environment | labels
        for own in (self._control, folder / "tmp"):
            own.mkdir(mode=0o700)
        for own in (self._control, folder / "tmp", home):
            isolation_module.chown_to_guest(own, uid)
        build = isolation_module.namespaces_command if boxed else isolation_module.plain_command
        shell = ["/bin/sh", "-c", _LOOP if boxed else _PLAIN_LOOP]
        command = build(folder, home, self._control, binds, uid, limits or ResourceLimits(), shell)
        complaints = folder / "box.log"
        with complaints.open("wb") as log:
            self._process = processes.start(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=self._environment, cwd="/"
            )
        self._jobs: dict[int, _Job] = {}
        self._next_job = 0
        self._pipes: list[NulPipes] = []
        self._changed = threading.Condition()
        self._ready = False
        self._ended = False
        self._shell_pid: int | None = None
        self._reader = threading.Thread(target=self._read_replies, name=f"deskhand-box-{label}", daemon=True)
        self._reader.start()
        if not self._wait(lambda: self._ready, START_TIMEOUT_S):
            self.close()
            lines = complaints.read_text(errors="replace").strip().splitlines() or ["no message"]
            raise InfrastructureError(f"the {isolation} box did not start: {lines[-1]}")

    def _read_replies(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            words = line.split()
            with self._changed:
                if words == [b"ready"]:
                    self._ready = True
                elif len(words) >= 2 and words[1].isdigit() and (job := self._jobs.get(int(words[1]))):
                    number = int(words[2]) if len(words) == 3 and words[2].isdigit() else 0
                    if words[0] == b"started":
                        job.inner_pid = number
                    elif words[0] == b"ended":
                        job.returncode = number
                        self._judge_end(job)
                    elif words[0] == b"missing":
                        job.missing = True
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._fail("the desktop's box has ended")
            self._changed.notify_all()

    def _judge_end(self, job: _Job) -> None:
        """A program that is needed may not end, and one that was launched may not crash."""
        if job.needed:
            self._fail(f"{job.program} has ended")
        elif self.crashes_fail and job.program and job.returncode in _CRASHES:
            self._fail(f"{job.program} was ended by {signal.Signals(job.returncode - 128).name}")

    def _fail(self, reason: str) -> None:
        if self.failure is None:
            self.failure = reason

    def end_because(self, reason: str) -> None:
        """End every process of the box; the desktop has failed for this reason."""
        self._fail(reason)
        self._end_processes()

    def _wait(self, condition, timeout_s: float) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: condition() or self._ended, timeout_s)
            return bool(condition())

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except (OSError, ValueError) as error:
            raise InfrastructureError(self.failure or "the desktop's box has ended") from error

    def _new_job(self) -> tuple[int, _Job]:
        with self._changed:
            self._next_job += 1
            job = self._jobs[self._next_job] = _Job()
            return self._next_job, job

    def _program(
        self, argv: list[str], env: dict[str, str] | None, cwd: str | None, prefix: str = "", suffix: str = ""
    ) -> str:
        """One shell line that becomes the program."""
        if not argv or any("\0" in word for word in [*argv, *(env or {}).values(), cwd or ""]):
            raise ConfigError("a command needs a program name, and no word of it may hold a NUL")
        if wrong := [name for name in env or {} if not (name.isascii() and name.isidentifier())]:
            raise ConfigError(f"{wrong[0]!r} is no name of an environment variable")
        words = [f"cd {_quoted(cwd or self.guest_home)}"]
        words += [f"export {name}={_quoted(value)}" for name, value in (env or {}).items()]
        words.append(f"exec {prefix}{' '.join(map(_quoted, argv))}{suffix}")
        return " && ".join(words)

    def launch(
        self,
        argv: list[str],
        env: dict[str, str] | None = None,
        cwd: str | None = None,
        timeout_s: float = 10.0,
        *,
        needed: bool = False,
        suffix: str = "",
    ) -> int:
        """Start a program; returns its host process id, 0 for one that has ended already. Raises `ConfigError` when there is none.

        When it crashes (or, if it is `needed`, ends at all), `failure` says so.
        """
        number, job = self._new_job()
        job.program, job.needed = argv[0], needed
        program = self._program(argv, env, cwd, suffix=suffix)
        self._tell(
            f"if command -v {_quoted(argv[0])} >/dev/null; then (({program}) </dev/null >/dev/null 2>&1 & inner=$!; "
            f'echo "started {number} $inner"; wait $inner; echo "ended {number} $?") & else echo "missing {number}"; fi'
        )
        if not self._wait(lambda: job.inner_pid is not None or job.missing, timeout_s):
            raise InfrastructureError(f"the desktop's box did not start {argv[0]} within {timeout_s:g} s")
        if job.missing:
            self._jobs.pop(number, None)
            raise ConfigError(f"{argv[0]} is not installed; apt-get install the package that holds it")
        assert job.inner_pid is not None
        pid = self._host_pid(job.inner_pid)
        if pid:
            self.launched.append(pid)
        return pid

    def launch_piped(self, argv: list[str], env: dict[str, str] | None = None, cwd: str | None = None) -> NulPipes:
        """As `launch`, for a program that reads messages from its descriptor 3 and writes them to its descriptor 4."""
        name = f"pipe-{len(self._pipes)}"
        pipes = NulPipes(self._control / name, self._uid)
        self._pipes.append(pipes)
        guest = _quoted(f"{self._guest_control}/{name}")
        self.launch(argv, env, cwd, suffix=f" 3<{guest}.in 4>{guest}.out")
        return pipes

    def run(
        self, argv: list[str], timeout_s: float, env: dict[str, str] | None = None, cwd: str | None = None
    ) -> CommandResult:
        """Run a program to its end. Past `timeout_s` its session is killed and the return code is 124, as timeout(1) has it.

        Each file that it writes, its output included, may have `OUTPUT_LIMIT_BYTES` at most.
        """
        number, job = self._new_job()
        program = self._program(argv, env, cwd, prefix="setsid ")
        base = _quoted(f"{self._guest_control}/{number}")
        self._tell(
            f"(ulimit -f {OUTPUT_LIMIT_BYTES // 512}; ({program}) </dev/null >{base}.out 2>{base}.err & "
            f'inner=$!; echo "started {number} $inner"; wait $inner; echo "ended {number} $?") &'
        )
        finished = self._wait(lambda: job.returncode is not None, timeout_s)
        if not finished and job.inner_pid is not None and not self._ended:
            self._tell(f"kill -9 -{job.inner_pid}")
            self._wait(lambda: job.returncode is not None, 2.0)
        if self._ended and not finished:
            raise InfrastructureError(f"the desktop's box ended while {argv[0]} ran: {self.failure}")
        self._jobs.pop(number, None)
        outputs = [self._take_output(f"{number}.{kind}") for kind in ("out", "err")]
        return CommandResult(job.returncode if finished and job.returncode is not None else 124, *outputs)

    def _take_output(self, name: str) -> bytes:
        path = self._control / name
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return b""
        with os.fdopen(descriptor, "rb") as file:
            data = file.read(OUTPUT_LIMIT_BYTES) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
        path.unlink(missing_ok=True)
        return data

    def _host_pid(self, inner_pid: int) -> int:
        if self.isolation == "plain":
            return inner_pid
        for pid in processes.descendants(self._process.pid):
            try:
                for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                    if line.startswith("NSpid:") and int(line.split()[-1]) == inner_pid:
                        return pid
            except OSError:
                continue
        return 0

    def first_pid(self) -> int:
        """Host process id of the first process behind the walls."""
        if self.isolation == "plain":
            return self._process.pid
        found = processes.children(self._process.pid)
        if not found:
            raise InfrastructureError("the desktop's box has ended")
        return found[0]

    def pids(self) -> list[int]:
        """Host process ids of everything in the box."""
        return processes.descendants(self._process.pid)

    def busy(self) -> bool:
        """Whether a process of the box runs or waits for a processor."""
        return any(processes.state(pid) == "R" for pid in self.pids())

    def is_running(self) -> bool:
        return self._process.poll() is None

    def _end_processes(self) -> None:
        if self._process.poll() is not None:
            return
        if self.isolation == "plain":
            isolation_module.end_user(self._uid)
            processes.end_tree(self._process.pid, processes.LEASE_LABEL, self._label)
        else:
            for child in processes.children(self._process.pid):
                processes.kill(
                    child
                )  # the namespace's first process: the kernel ends the rest, bwrap reaps it and ends
            try:
                self._process.wait(timeout=2.0)
            except subprocess.TimeoutExpired:
                self._process.kill()

    def close(self) -> None:
        """End every process of the box. Idempotent."""
        self._end_processes()
        self._process.wait()
        self._reader.join(timeout=1.0)
        for pipes in self._pipes:
            pipes.close()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:
                    continue
