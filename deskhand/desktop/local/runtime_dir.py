"""Runtime directory: this process's folder for desktops, on a tmpfs.

The folder is named by user and owner. A reaper process waits for this process to end, then kills the processes of its
desktops (by control group, by user id or mark, by label) and removes the folder. Folders whose owner and reaper both
died are removed at the next start.

Invariant: the folder of a living owner is locked by it. Its process id says nothing: owners in other containers may
share the tmpfs, and ids are reused.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import secrets
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

from deskhand.desktop.local import cgroup, file_tree, guest_user, isolation, precedence, processes, xserver
from deskhand.errors import ConfigError

GUEST_FILE = "guest"
"""In a desktop's folder: the user id or mark of its guests."""
LOCK_FILE = "owner"
"""In an owner's folder. The kernel unlocks it when the owner ends; forked children do not inherit the lock."""
REMOVE_TIMEOUT_S = 8.0
REAP_TIMEOUT_S = 600.0
"""How long the reaper tries again: on an overloaded machine guests can outlive the first attempt."""
_PREFIX = "deskhand-"
_lock = threading.Lock()
_current: RuntimeDir | None = None


class RuntimeDir:
    """Use `runtime()`; one per process."""

    def __init__(self, base: Path) -> None:
        self.owner_pid = os.getpid()
        self.token = f"{self.owner_pid}-{secrets.token_hex(4)}"
        self.folder = base / f"{_PREFIX}{os.getuid()}-{self.token}"
        hidden = base / f".{self.folder.name}"
        hidden.mkdir(mode=0o711 if os.getuid() == 0 else 0o700)  # guests with their own user id must pass through
        self._lock = os.open(hidden / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        hidden.rename(self.folder)  # nobody sees it without the lock
        self.reaper = self._start_reaper()

    def _start_reaper(self) -> subprocess.Popen[bytes]:
        return processes.start(
            precedence.with_precedence(
                processes.python_command("deskhand.desktop.local.runtime_dir", self.token, str(self.folder))
            ),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={},
            cwd="/",
        )

    def ensure_reaper(self) -> None:
        """Start the reaper again if it has ended, and log that."""
        if (code := self.reaper.poll()) is not None:
            import structlog  # not at the top: the reaper imports this module without site packages

            structlog.get_logger().error("runtime_dir.reaper_ended", code=code, folder=str(self.folder))
            self.reaper = self._start_reaper()

    def close(self) -> None:
        """Let the reaper clean up and wait for it, for at most 10 s; it continues without this process."""
        if self.reaper.stdin is not None and os.getpid() == self.owner_pid:
            guest_user.release_all()
            self.reaper.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.reaper.wait(timeout=10)


def runtime() -> RuntimeDir:
    """Return the runtime directory of this process; forked children get their own. Raises `ConfigError`."""
    global _current
    with _lock:
        if _current is None or _current.owner_pid != os.getpid():
            base = tmpfs()
            remove_stale(base)
            _current = RuntimeDir(base)
            atexit.register(_current.close)
        else:
            _current.ensure_reaper()
        return _current


def tmpfs() -> Path:
    """Return the tmpfs for desktops. Raises `ConfigError` if there is none or it is full."""
    for candidate in (Path("/dev/shm"), Path(f"/run/user/{os.getuid()}")):
        if candidate.is_dir() and os.access(candidate, os.W_OK | os.X_OK):
            free = shutil.disk_usage(candidate).free
            if free < 64 * 1024 * 1024:
                raise ConfigError(
                    f"{candidate}: needs 64 MiB free, has {free // 2**20} MiB; enlarge it (docker run --shm-size=1g)"
                )
            return candidate
    raise ConfigError("/dev/shm: missing or not writable; mount -t tmpfs tmpfs /dev/shm")


def remove_stale(base: Path) -> None:
    """Remove the folders of this user's dead owners. Logs what fails: it must not keep this process from starting."""
    for folder in base.glob(f"{_PREFIX}{os.getuid()}-*"):
        try:
            if not _has_owner(folder):
                remove(folder.name.removeprefix(f"{_PREFIX}{os.getuid()}-"), folder)
        except Exception:
            import structlog

            structlog.get_logger().exception("runtime_dir.stale_folder", folder=str(folder))


def _has_owner(folder: Path) -> bool:
    if _current is not None and _current.owner_pid == os.getpid() and folder == _current.folder:
        return True  # to open and close the file would unlock it
    try:
        descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:  # of an earlier version, which has no lock
        pid = folder.name.removeprefix(f"{_PREFIX}{os.getuid()}-").split("-")[0]
        return not pid.isdigit() or Path(f"/proc/{pid}").exists()
    except OSError:  # in doubt it lives
        return True
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except OSError:
        return True
    finally:
        os.close(descriptor)


def remove(token: str, folder: Path) -> bool:
    """Kill every process of a dead owner's desktops, whatever they did; remove its folder and X server sockets.

    Returns whether nothing is left. The folder tells who the guests are, so it stays while one of them lives.
    """
    survivors: list[int] = []
    cgroup.remove_owner(token)
    processes.kill_labeled(processes.OWNER_LABEL, token, REMOVE_TIMEOUT_S)
    for guest_file in folder.glob(f"*/{GUEST_FILE}"):
        key = guest_file.read_text(errors="replace")  # empty if the owner died or the disk was full
        if key.isdecimal() and (user := guest_user.GuestUser.of_dead_owner(int(key))) is not None:
            survivors += user.kill()
            user.close()
    cgroup.remove_owner(token)
    if survivors:
        return False
    for display_file in folder.glob("*/display"):
        number = display_file.read_text(errors="replace")
        if number.isdecimal():
            xserver.remove_dead_server(int(number))
    isolation.unmount_below(folder)
    return file_tree.remove_tree(folder)


def main() -> None:
    """The reaper. `argv`: the owner's token, its folder. End of input means that the owner has ended."""
    sys.stdin.buffer.read()
    deadline = time.monotonic() + REAP_TIMEOUT_S
    while not remove(sys.argv[-2], Path(sys.argv[-1])) and time.monotonic() < deadline:
        guest_user.release_all()
        time.sleep(1)
