"""Where a desktop's guests run. Invariant: when the box is closed, or its owner dies, none of its processes is left.

`namespaces`: bubblewrap with user, pid, ipc, net and host-name namespaces of its own, a private /home/user, and of the host's
files only programs and fonts, read-only. `plain`: no namespaces; the guests are ordinary processes of the same user, found
again as descendants of the box's first process and by their label. In both, a shell inside starts the programs that it is
told to on its standard input.
"""

from __future__ import annotations

import functools
import os
import shlex
import shutil
import stat
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from deskhand.desktop.base import Completed
from deskhand.desktop.embedded import processes
from deskhand.errors import ConfigError, InfrastructureError

Isolation = Literal["namespaces", "plain"]

GUEST_HOME = "/home/user"
START_TIMEOUT_S = 20.0
OUTPUT_LIMIT_BYTES = 16 * 1024 * 1024
FILE_LIMIT_BYTES = 256 * 1024 * 1024
_LOOP = f"NL='\n'; ulimit -c 0; ulimit -f {FILE_LIMIT_BYTES // 512}; echo ready; while IFS= read -r line; do eval \"$line\"; done"
_SUBREAPER = "import ctypes,os,sys; ctypes.CDLL(None).prctl(36, 1, 0, 0, 0); os.execv('/bin/sh', ['sh', '-c', sys.argv[1]])"
_PLAIN_LOOP = _LOOP + "; sleep 5"
_ETC = (
    "alternatives", "fonts", "gtk-2.0", "gtk-3.0", "xdg", "X11", "mime.types", "mailcap", "ld.so.cache", "ld.so.conf",
    "ld.so.conf.d", "localtime", "nsswitch.conf", "dbus-1", "dillo", "profile", "bash.bashrc", "magic", "papersize",
)  # fmt: skip
_VAR = ("cache/fontconfig", "lib/mime", "lib/dbus")


def _quoted(word: str) -> str:
    """`word` for the shell, on one line."""
    return shlex.quote(word).replace("\n", "'\"$NL\"'")


@functools.cache
def available_isolation() -> tuple[Isolation, str]:
    """What this machine allows, and in one sentence why not more."""
    if shutil.which("bwrap") is None:
        return "plain", "bubblewrap is not installed (apt-get install bubblewrap)"
    command = ["bwrap", "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-net", "--ro-bind", "/", "/"]
    command += ["--proc", "/proc", "--dev", "/dev", "true"]
    probe = subprocess.run(command, capture_output=True, text=True, check=False)
    if probe.returncode != 0:
        message = (probe.stderr.strip().splitlines() or ["no message"])[-1]
        return "plain", f"bubblewrap cannot make namespaces here ({message})"
    return "namespaces", "bubblewrap"


@dataclass
class _Job:
    inner_pid: int | None = None
    returncode: int | None = None
    missing: bool = False


class Box:
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
    ) -> None:
        self.isolation = isolation
        self.home = home
        self._label = label
        self._control = folder / "control"
        self._control.mkdir()
        labels = {processes.LEASE_LABEL: label, processes.OWNER_LABEL: owner}
        self.guest_home = GUEST_HOME if isolation == "namespaces" else str(home)
        self._guest_control = "/run/box" if isolation == "namespaces" else str(self._control)
        self._environment = environment | {"HOME": self.guest_home} | labels
        plain = [sys.executable, "-I", "-S", "-c", _SUBREAPER, _PLAIN_LOOP]
        command = self._bwrap_command(folder, binds) if isolation == "namespaces" else plain
        complaints = folder / "box.log"
        with complaints.open("wb") as log:
            self._process = processes.start(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=self._environment, cwd=str(home)
            )
        self._jobs: dict[int, _Job] = {}
        self._next_job = 0
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

    def _bwrap_command(self, folder: Path, binds: list[Path]) -> list[str]:
        passwd, group = folder / "passwd", folder / "group"
        passwd.write_text(f"root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:User:{GUEST_HOME}:/bin/bash\n")
        group.write_text("root:x:0:\nuser:x:1000:\n")
        command = ["bwrap", "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-net", "--unshare-uts"]
        command += ["--uid", "1000", "--gid", "1000", "--hostname", "desktop", "--die-with-parent", "--new-session"]
        command += ["--ro-bind", "/usr", "/usr"]
        for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
            path = Path("/", name)
            if path.is_symlink():
                command += ["--symlink", os.readlink(path), str(path)]
            elif path.is_dir():
                command += ["--ro-bind", str(path), str(path)]
        for name in _ETC:
            command += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
        for name in _VAR:
            command += ["--ro-bind-try", f"/var/{name}", f"/var/{name}"]
        command += ["--ro-bind", str(passwd), "/etc/passwd", "--ro-bind", str(group), "/etc/group"]
        command += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/run"]
        command += ["--perms", "0700", "--dir", "/run/user"]
        for path in binds:
            command += ["--ro-bind", str(path), str(path)]
        command += ["--bind", str(self._control), "/run/box", "--bind", str(self.home), GUEST_HOME, "--chdir", GUEST_HOME]
        return [*command, "/bin/sh", "-c", _LOOP]

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
                    elif words[0] == b"missing":
                        job.missing = True
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

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
            raise InfrastructureError("the desktop's box has ended") from error

    def _new_job(self) -> tuple[int, _Job]:
        with self._changed:
            self._next_job += 1
            job = self._jobs[self._next_job] = _Job()
            return self._next_job, job

    def _program(self, argv: list[str], env: dict[str, str] | None, cwd: str | None, prefix: str = "") -> str:
        """One shell line that becomes the program."""
        if not argv or any("\0" in word for word in [*argv, *(env or {}).values(), cwd or ""]):
            raise ConfigError("a command needs a program name, and no word of it may hold a NUL")
        if wrong := [name for name in env or {} if not (name.isascii() and name.isidentifier())]:
            raise ConfigError(f"{wrong[0]!r} is no name of an environment variable")
        words = [f"cd {_quoted(cwd or self.guest_home)}"]
        words += [f"export {name}={_quoted(value)}" for name, value in (env or {}).items()]
        words.append(f"exec {prefix}{' '.join(map(_quoted, argv))}")
        return " && ".join(words)

    def launch(self, argv: list[str], env: dict[str, str] | None = None, cwd: str | None = None, timeout_s: float = 10.0) -> int:
        """Start a program; returns its host process id. Raises `ConfigError` when there is no such program."""
        number, job = self._new_job()
        program = self._program(argv, env, cwd)
        self._tell(
            f"if command -v {_quoted(argv[0])} >/dev/null; then ({program}) </dev/null >/dev/null 2>&1 & "
            f'echo "started {number} $!"; else echo "missing {number}"; fi'
        )
        if not self._wait(lambda: job.inner_pid is not None or job.missing, timeout_s):
            raise InfrastructureError(f"the desktop's box did not start {argv[0]} within {timeout_s:g} s")
        self._jobs.pop(number, None)
        if job.missing:
            raise ConfigError(f"{argv[0]} is not installed; apt-get install the package that holds it")
        assert job.inner_pid is not None
        return self._host_pid(job.inner_pid)

    def run(self, argv: list[str], timeout_s: float, env: dict[str, str] | None = None, cwd: str | None = None) -> Completed:
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
            raise InfrastructureError(f"the desktop's box ended while {argv[0]} ran")
        self._jobs.pop(number, None)
        outputs = [self._take_output(f"{number}.{kind}") for kind in ("out", "err")]
        return Completed(job.returncode if finished and job.returncode is not None else 124, *outputs)

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
        raise InfrastructureError("a program ended as soon as it was started")

    def pids(self) -> list[int]:
        """Host process ids of everything in the box."""
        return processes.descendants(self._process.pid)

    def busy(self) -> bool:
        """Whether a process of the box runs or waits for a processor."""
        return any(processes.state(pid) == "R" for pid in self.pids())

    def alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        """End every process of the box. Idempotent."""
        if self._process.poll() is None:
            if self.isolation == "plain":
                processes.end_tree(self._process.pid, processes.LEASE_LABEL, self._label)
            else:
                for child in processes.children(self._process.pid):
                    processes.kill(child)  # the namespace's first process: the kernel ends the rest, bwrap reaps it and ends
                try:
                    self._process.wait(timeout=2.0)
                except subprocess.TimeoutExpired:
                    self._process.kill()
            self._process.wait()
        self._reader.join(timeout=1.0)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:
                    continue
