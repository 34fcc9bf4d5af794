"""This process's folder for desktops. Invariant: when this process has died, its guests and its folder are removed by somebody.

The folder is on a tmpfs and named by user and owner. A warden process (one for all desktops of this process) waits for this
process to end, then ends what carries the owner's label and removes the folder. Folders of owners that died together with
their warden are swept at the next start.
"""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

from deskhand.desktop.local import isolation, processes, xserver
from deskhand.errors import ConfigError

_PREFIX = "deskhand-"
_lock = threading.Lock()
_current: RuntimeDir | None = None


class RuntimeDir:
    """Use `runtime()`; one per process."""

    def __init__(self, base: Path) -> None:
        self.owner_pid = os.getpid()
        self.token = f"{self.owner_pid}-{secrets.token_hex(4)}"
        self.folder = base / f"{_PREFIX}{os.getuid()}-{self.token}"
        self.folder.mkdir(mode=0o711 if os.getuid() == 0 else 0o700)  # guests with a user of their own pass through
        self._warden = processes.start(
            [sys.executable, "-I", "-S", "-c", _warden_program(), self.token, str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={},
            cwd="/",
        )

    def close(self) -> None:
        """Tell the warden to clean up and wait for it."""
        if self._warden.stdin is not None and os.getpid() == self.owner_pid:
            self._warden.stdin.close()
            try:
                self._warden.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self._warden.send_signal(signal.SIGKILL)


def _warden_program() -> str:
    package_root = Path(__file__).resolve().parents[3]
    return (
        f"import sys; sys.path.insert(0, {str(package_root)!r}); from deskhand.desktop.local.reaper import main; main()"
    )


def runtime() -> RuntimeDir:
    """The runtime of this process (a forked child gets its own). Raises `ConfigError` when there is no tmpfs to work on."""
    global _current
    with _lock:
        if _current is None or _current.owner_pid != os.getpid():
            base = tmpfs()
            remove_stale(base)
            _current = RuntimeDir(base)
            atexit.register(_current.close)
        return _current


def tmpfs() -> Path:
    """Where desktops live. Raises `ConfigError` when there is no such place or it is full."""
    for candidate in (Path("/dev/shm"), Path(f"/run/user/{os.getuid()}")):
        if candidate.is_dir() and os.access(candidate, os.W_OK | os.X_OK):
            free = shutil.disk_usage(candidate).free
            if free < 64 * 1024 * 1024:
                raise ConfigError(
                    f"{candidate} has {free // 2**20} MiB free; give it 64 MiB or more (docker run --shm-size=1g)"
                )
            return candidate
    raise ConfigError("/dev/shm is missing or not writable; mount a tmpfs there (mount -t tmpfs tmpfs /dev/shm)")


def remove_stale(base: Path) -> None:
    """Remove what dead owners of this user left behind."""
    for folder in base.glob(f"{_PREFIX}{os.getuid()}-*"):
        token = folder.name.removeprefix(f"{_PREFIX}{os.getuid()}-")
        pid = token.split("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            remove(token, folder)


def remove(token: str, folder: Path) -> None:
    """End every process of the owner and remove its folder and the sockets of its X servers."""
    while victims := [pid for pid in processes.labelled(processes.OWNER_LABEL, token) if pid != os.getpid()]:
        for pid in victims:
            for child in processes.descendants(pid):
                processes.kill(child)
            processes.kill(pid)
    for note in folder.glob("*/display"):
        number = note.read_text(errors="replace")
        if number.isdecimal():  # it is empty where the owner died, or the disk was full, before the number was written
            xserver.remove_dead_socket(int(number))
    isolation.unbound_folders(folder)
    shutil.rmtree(folder, ignore_errors=True)
