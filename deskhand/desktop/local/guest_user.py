"""Guest users: which processes belong to a desktop, whatever they do.

As root, every desktop has a user id that no other desktop and no user of this machine has, and that owns only the
desktop's home. Otherwise guests
run as this user, and a *mark* identifies them: the hard limit of file locks, which Linux inherits but does not enforce,
and which only root can raise. Neither depends on parents, sessions or environment variables, which guests can change.
The reaper imports this module without site packages.

Invariant: a user id or mark is reserved again only when no process has it.
"""

from __future__ import annotations

import fcntl
import functools
import grp
import os
import pwd
import shutil
import signal
import struct
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from deskhand.desktop.local import precedence, processes
from deskhand.errors import ConfigError, InfrastructureError

FIRST_UID = 20_000
MAX_GUESTS = 4096
KILL_TIMEOUT_S = 3.0
_MARKED = 1 << 60
_RECORD = struct.Struct("@hhqqi")
"""`struct flock`: type, origin, start, length, process."""
_CURSOR_AT = 2 * MAX_GUESTS
"""Offset of the next number in the reservation file. The bytes before it are only locked."""
_PAUSE_S = 0.01
MIN_SCANS = 6
"""Scans of all processes before a guest counts as a survivor, for a machine on which few of them exceed the timeout."""
MAX_CHASES = 100
"""Attempts to stop the newest processes after a scan that found no guest."""


def guest_uids() -> bool:
    """Return whether guests can have their own user ids: this is root and may change users.

    A missing program is not cached: guests would then run as root for good.
    """
    return os.getuid() == 0 and shutil.which("setpriv") is not None and _may_change_user()


@functools.cache
def _may_change_user() -> bool:
    return subprocess.run(command_as_user(FIRST_UID, ["true"]), capture_output=True, check=False).returncode == 0


def has_name(uid: int) -> bool:
    """Return whether the user database has an entry with this id."""
    with suppress(KeyError):
        return bool(pwd.getpwuid(uid))
    return False


def is_assigned(number: int) -> bool:
    """Return whether a user or group of this machine has this id, so that files may belong to it."""
    with suppress(KeyError):
        return bool(grp.getgrgid(number))
    return has_name(number)


@functools.cache
def unnamed_ids() -> tuple[int, int]:
    """Return the two highest ids below those of guests that no user or group has: for X servers, for all guests."""
    found = (number for number in range(FIRST_UID - 1, FIRST_UID - MAX_GUESTS, -1) if not is_assigned(number))
    return next(found), next(found)


def command_as_user(uid: int | None, command: list[str]) -> list[str]:
    """Return `command` wrapped to run as `uid` without groups; unchanged if `uid` is None."""
    if uid is None:
        return command
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--inh-caps=-all", *command]


def _has_processes(uid: int) -> bool:
    """Return whether a process, or a thread of one, has this real user id. Guests cannot change theirs.

    One system call (getpriority(2)), where reading the status of every process takes milliseconds.
    """
    try:
        os.getpriority(os.PRIO_USER, uid)
    except ProcessLookupError:
        return False
    return True


@functools.cache
def can_mark() -> bool:
    """Return whether processes can be marked: not if their limit is below the marks, and not in gVisor.

    Raises `ConfigError` without prlimit.
    """
    try:
        return subprocess.run(mark_command(_MARKED, ["true"]), capture_output=True, check=False).returncode == 0
    except FileNotFoundError as error:
        raise ConfigError("prlimit: not installed; apt-get install util-linux") from error


def mark_command(mark: int | None, command: list[str]) -> list[str]:
    """Return `command` wrapped to give it a mark; unchanged if `mark` is None."""
    return command if mark is None else [shutil.which("prlimit") or "prlimit", f"--locks={mark}", *command]


def _mark_of(pid: int) -> int | None:
    """Return the hard limit of file locks, None without a limit or process."""
    with suppress(OSError, ValueError), open(f"/proc/{pid}/limits", "rb") as file:
        for line in file:
            if line.startswith(b"Max file locks"):
                return int(line.split()[4])
    return None


class _Reservations:
    """Numbers that are reserved by the processes of this machine: locked bytes of a file.

    The kernel unlocks them when their process ends. Forked children do not inherit these locks.
    """

    def __init__(self) -> None:
        self.process = os.getpid()
        self._lock = threading.Lock()
        self._own: set[int] = set()
        name = "deskhand-users" if os.getuid() == 0 else f"deskhand-users-{os.getuid()}"
        folder = "/dev/shm" if os.access("/dev/shm", os.W_OK | os.X_OK) else f"/run/user/{os.getuid()}"
        path = Path(folder, name)
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be opened ({error.strerror}); correct it, or remove it") from error
        if os.fstat(self._file).st_uid != os.getuid():
            raise ConfigError(f"{path}: belongs to another user; remove it")

    def take(self, number: int) -> bool:
        """Reserve a number; return whether it was free."""
        with self._lock:
            if number in self._own:
                return False
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
            except OSError:
                return False
            self._own.add(number)
            return True

    def take_next(self) -> int | None:
        """Reserve the next free number, so that a number is reused as late as possible; None if there is none."""
        record = os.pread(self._file, 8, _CURSOR_AT)
        cursor = int.from_bytes(record if len(record) == 8 else os.urandom(8), "little")
        for number in ((cursor + offset) % MAX_GUESTS for offset in range(MAX_GUESTS)):
            if self.take(number):
                os.pwrite(self._file, (number + 1).to_bytes(8, "little"), _CURSOR_AT)
                return number
        return None

    def is_taken(self, number: int) -> bool:
        if number in self._own or not 0 <= number < MAX_GUESTS:
            return number in self._own
        found = fcntl.fcntl(self._file, fcntl.F_GETLK, _RECORD.pack(fcntl.F_WRLCK, os.SEEK_SET, number, 1, 0))
        return _RECORD.unpack(found)[0] != fcntl.F_UNLCK

    def free(self, number: int) -> None:
        with self._lock, suppress(OSError):  # all may have been released
            if number in self._own:
                fcntl.lockf(self._file, fcntl.LOCK_UN, 1, number)
                self._own.discard(number)

    def close(self) -> None:
        os.close(self._file)


_reservations_lock = threading.Lock()
_current: _Reservations | None = None


def _reservations() -> _Reservations:
    global _current
    with _reservations_lock:
        if _current is None or _current.process != os.getpid():
            _current = _Reservations()
        return _current


def _kill_every_process_of(uid: int, timeout_s: float) -> None:
    """Kill all processes of a guest's user id in one system call, in which none of them can fork."""
    command = precedence.with_precedence(command_as_user(uid, ["/bin/sh", "-c", "kill -KILL -1"]))
    seconds = max(0.1, timeout_s)
    with suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(command, capture_output=True, check=False, timeout=seconds, cwd="/", start_new_session=True)


def release_all() -> None:
    """Release every reservation of this process, so that the reaper may end what has them."""
    global _current
    with _reservations_lock:
        if _current is not None and _current.process == os.getpid():
            _current.close()
            _current = None


class GuestUser:
    """The user id of a desktop's guests, or their mark. Use `reserve`."""

    def __init__(self, key: int) -> None:
        self.key = key
        """The user id or the mark."""
        self.uid = key if key < _MARKED else None
        self.mark = key if self.uid is None and can_mark() else None
        """None also where processes cannot be marked."""
        self._base = FIRST_UID if self.uid is not None else _MARKED + (os.getuid() << 16)
        self._reservations = _reservations()
        self._is_reserved = False
        self.is_unused = False
        """Whether all guests have ended, and there can be no more."""

    @classmethod
    def reserve(cls) -> GuestUser:
        """Return a user id or mark that no living process has. Raises `InfrastructureError` if there is none."""
        has_uid = guest_uids()
        base = FIRST_UID if has_uid else _MARKED + (os.getuid() << 16)
        reservations, refused = _reservations(), []
        try:
            while (number := reservations.take_next()) is not None:
                # Read while no other owner can start a process with it.
                is_used = (
                    _has_processes(base + number) if has_uid else base + number in processes_by_key(has_marks=True)
                )
                if not is_used and not (has_uid and is_assigned(base + number)):
                    user = cls(base + number)
                    user._is_reserved = True
                    return user
                refused.append(number)
        finally:
            for number in refused:
                reservations.free(number)
        raise InfrastructureError(
            f"no user id is free for a desktop; at most {MAX_GUESTS}, less those that this machine's users have"
        )

    @classmethod
    def of_dead_owner(cls, key: int) -> GuestUser | None:
        """Return what a dead owner had reserved; None if another desktop has it, because no process is left then."""
        user = cls(key)
        number = key - user._base
        user._is_reserved = 0 <= number < MAX_GUESTS and user._reservations.take(number)
        return user if user._is_reserved else None

    def owns(self, pid: int, status: processes.ProcessStatus | None) -> bool:
        """Return whether a living process is one of this desktop's guests.

        A guest can lower its mark. One with a mark that no desktop has belongs to every desktop of this user.
        """
        if status is None or not status.is_alive:
            return False
        if self.uid is not None:
            return self.uid in status.uids
        mark = _mark_of(pid) if self.mark is not None and os.getuid() in status.uids else None
        if mark is None or mark == self.mark:
            return mark is not None
        is_guest = status.is_confined and not status.is_in_container
        return is_guest and not self._reservations.is_taken(mark - self._base)

    def pids(self) -> list[int]:
        """Return the living guests. Reads the status of every process of the machine."""
        return [pid for pid in processes.all_pids() if self.owns(pid, processes.status(pid))]

    def kill(self, timeout_s: float = KILL_TIMEOUT_S) -> list[int]:
        """Kill every guest, however fast they fork; return those that live after `timeout_s`.

        Call it when nothing starts guests any more.
        """
        survivors = self._kill_marked(timeout_s) if self.uid is None else self._kill_user(self.uid, timeout_s)
        self.is_unused = not survivors
        return survivors

    def _kill_user(self, uid: int, timeout_s: float) -> list[int]:
        deadline = time.monotonic() + timeout_s
        num_scans = 0
        while True:
            _kill_every_process_of(uid, deadline - time.monotonic())
            survivors = self.pids()
            num_scans += 1
            if not survivors or (num_scans >= MIN_SCANS and time.monotonic() > deadline):
                return survivors
            for pid in survivors:
                processes.kill(pid)
            time.sleep(_PAUSE_S)

    def _kill_marked(self, timeout_s: float) -> list[int]:
        """Stop all processes first, because each that is killed makes room for another to fork."""
        started = time.monotonic()
        stopped: set[int] = set()
        num_scans = num_empty = 0
        while True:
            found = self._stop(processes.all_pids())
            for _ in range(0 if found else MAX_CHASES):  # one that moves to a new process id is faster than a scan
                if found := self._stop(processes.newest_pids()):
                    break
            num_scans += 1
            elapsed_s = time.monotonic() - started
            num_empty = 0 if found else num_empty + 1
            if found <= stopped or elapsed_s > timeout_s / 2:
                for pid in found:
                    processes.kill(pid)
            if num_empty == 2 or (num_scans >= MIN_SCANS and elapsed_s > timeout_s):
                return sorted(found)
            stopped = found
            time.sleep(_PAUSE_S if found else 0)

    def _stop(self, pids: Iterable[int]) -> set[int]:
        """Stop those that are guests, each at once; return them."""
        found: set[int] = set()
        for pid in pids:
            if self.owns(pid, processes.status(pid)):
                processes.kill(pid, signal.SIGSTOP)
                found.add(pid)
        return found

    def close(self) -> list[int]:
        """Release the user id or mark; it stays reserved if a process still has it. Return these. Idempotent."""
        survivors = self.pids() if self._is_reserved and not self.is_unused else []
        if self._is_reserved and not survivors:
            self._is_reserved = False
            self._reservations.free(self.key - self._base)
        return survivors


def processes_by_key(*, has_marks: bool) -> dict[int, list[int]]:
    """Return all living processes by user id and, if `has_marks`, those of this user by mark."""
    found: dict[int, list[int]] = defaultdict(list)
    for pid in processes.all_pids():
        status = processes.status(pid)
        if status is None or not status.is_alive:
            continue
        for uid in status.uids:
            found[uid].append(pid)
        if has_marks and os.getuid() in status.uids and (mark := _mark_of(pid)) is not None:
            found[mark].append(pid)
    return found
