"""Control groups: one per desktop, in every hierarchy that this process may change.

Cgroup v2 and v1, or both (a hybrid machine), as root or in a delegated subtree. A group limits memory (private, shared,
memfd, System V and files on a tmpfs), processes and CPU weight, and ends all of its processes, whatever their parent,
session or environment. Where a container mounts them read-only there are none: `guest_user` ends the processes then,
and `resource_monitor` limits them. Files are described in cgroup-v2.rst and cgroup-v1/ of the kernel's documentation.
"""

from __future__ import annotations

import functools
import os
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from deskhand.desktop.local import processes
from deskhand.errors import InfrastructureError

CONTROLLERS = ("memory", "pids", "cpu")
OWNER_GROUP = "deskhand-owner"
"""Group of a delegated subtree's own processes: v2 enables controllers only in a group without processes."""
CPU_WEIGHT = 100
OWNER_CPU_WEIGHT = 1000
KILL_TIMEOUT_S = 2.0
REMOVE_TIMEOUT_S = 1.0
_PREFIX = "deskhand-desktop-"
_MIB = 1024 * 1024
_LIMIT_FILES = {
    True: {"memory": "memory.max", "pids": "pids.max", "cpu": "cpu.weight"},
    False: {"memory": "memory.limit_in_bytes", "pids": "pids.max", "cpu": "cpu.shares"},
}
"""By whether the hierarchy is v2."""
_ENTER = 'while [ "$1" != -- ]; do echo 0 >"$1" || exit 1; shift; done; shift; exec "$@"'


@dataclass(frozen=True)
class Hierarchy:
    """A place for groups: a folder, and the controllers that groups in it have."""

    parent: Path
    is_v2: bool
    controllers: frozenset[str]


def find_parents(mountinfo: str, own_groups: str) -> list[tuple[Path, bool, frozenset[str]]]:
    """Return this process's group in every hierarchy: folder, is v2, controllers (v1).

    The arguments are /proc/self/mountinfo and /proc/self/cgroup.
    """
    own: dict[str, str] = {}
    for line in own_groups.splitlines():
        _, names, path = line.split(":", 2)
        own |= dict.fromkeys(names.split(","), path)  # v2 has the name ""
    found: dict[tuple[bool, frozenset[str]], Path] = {}
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        root, mount_point = before.split()[3:5]
        kind, _, options = after.split(" ", 2)
        if kind not in ("cgroup", "cgroup2"):
            continue
        names = frozenset({""}) if kind == "cgroup2" else frozenset(own) & frozenset(options.split(","))
        controllers = names & frozenset(CONTROLLERS)
        path = next((own[name] for name in names if name in own), None)
        if path is None or (kind == "cgroup" and not controllers):
            continue
        relative = os.path.relpath(path, root)
        if relative.startswith(".."):  # mounted from another place of the hierarchy
            continue
        folder = Path(os.path.normpath(f"{mount_point}/{relative}"))
        found.setdefault((kind == "cgroup2", controllers), folder.parent if folder.name == OWNER_GROUP else folder)
    return [(folder, is_v2, controllers) for (is_v2, controllers), folder in found.items()]


def _own_parents() -> list[tuple[Path, bool, frozenset[str]]]:
    try:
        return find_parents(Path("/proc/self/mountinfo").read_text(), Path("/proc/self/cgroup").read_text())
    except (OSError, ValueError):
        return []


@functools.cache
def hierarchies() -> tuple[tuple[Hierarchy, ...], str]:
    """Return where groups can be made, and a one-line description or reason. Makes and removes a group."""
    parents = _own_parents()
    if not parents:
        return (), "no control groups are mounted at /sys/fs/cgroup"
    found: list[Hierarchy] = []
    reasons: list[str] = []
    for parent, is_v2, _ in parents:
        try:
            if is_v2:
                enable_controllers(parent)
            probe = parent / f"{_PREFIX}probe-{secrets.token_hex(4)}"
            probe.mkdir()
            try:
                files = _LIMIT_FILES[is_v2]
                usable = frozenset(name for name in CONTROLLERS if (probe / files[name]).exists())
            finally:
                probe.rmdir()
            found.append(Hierarchy(parent, is_v2, usable))
        except OSError as error:
            reasons.append(f"{parent}: {error.strerror}")
    if not found:
        return (), "; ".join(dict.fromkeys(reasons))
    names = [name for name in CONTROLLERS if any(name in one.controllers for one in found)]
    kinds = " and ".join(sorted({"v2" if one.is_v2 else "v1" for one in found}))
    return tuple(found), f"{', '.join([*names, 'kill'])} (cgroup {kinds})"


def enable_controllers(parent: Path) -> None:
    """Enable the controllers of a v2 group for the groups in it, where this process may.

    A group with processes must be emptied first, unless it is the root: they move to a group in it. Only processes
    that are this process's relatives, or all of a container, are moved, and no shell that somebody uses.
    """
    control = parent / "cgroup.subtree_control"
    with suppress(OSError):
        missing = set(CONTROLLERS) & set((parent / "cgroup.controllers").read_text().split())
        missing -= set(control.read_text().split())
        if not missing:
            return
        if (parent / "cgroup.type").exists() and not _move_processes(parent):
            return
        for name in sorted(missing):
            with suppress(OSError):
                control.write_text(f"+{name}")


def _move_processes(parent: Path) -> bool:
    """Move the processes of a v2 group to a group in it; return whether it is empty."""
    members = _members(parent)
    is_container = Path("/proc/self/cgroup").read_text().strip() == "0::/"
    own = {os.getpid(), *processes.descendants(os.getpid())}
    if not is_container and not set(members) <= own | _ancestors():
        return False
    if any(processes.has_terminal(pid) for pid in members if pid not in own):
        return False
    owner = parent / OWNER_GROUP
    owner.mkdir(exist_ok=True)
    for _ in range(10):  # they may fork meanwhile
        for pid in members:
            with suppress(ProcessLookupError):
                (owner / "cgroup.procs").write_text(str(pid))
        members = _members(parent)
        if not members:
            with suppress(OSError):
                (owner / "cpu.weight").write_text(str(OWNER_CPU_WEIGHT))
            return True
    return False


def _ancestors() -> set[int]:
    pid, found = os.getppid(), set()
    while pid > 0:
        found.add(pid)
        with open(f"/proc/{pid}/stat", "rb") as file:
            pid = int(file.read().rpartition(b")")[2].split()[1])
    return found


def _members(folder: Path) -> list[int]:
    """Return the processes of a group; 0 is one outside this process's namespace."""
    try:
        return [int(word) for word in (folder / "cgroup.procs").read_text().split()]
    except OSError:  # removed
        return []


class Cgroup:
    """The groups of one desktop. Without hierarchies it does nothing. Raises `InfrastructureError`."""

    def __init__(self, name: str, memory_mib: int, max_processes: int) -> None:
        self._memory_mib = memory_mib
        self._folders: list[tuple[Path, Hierarchy]] = []
        self._memory: tuple[Path, Hierarchy] | None = None
        for hierarchy in hierarchies()[0]:
            folder = hierarchy.parent / f"{_PREFIX}{name}"
            try:
                folder.mkdir()
                self._folders.append((folder, hierarchy))
                self._set_limits(folder, hierarchy, memory_mib, max_processes)
            except OSError as error:
                self.close()
                raise InfrastructureError(
                    f"{error.filename or folder}: cannot set up a control group: {error}"
                ) from error

    def _set_limits(self, folder: Path, hierarchy: Hierarchy, memory_mib: int, max_processes: int) -> None:
        cpu = CPU_WEIGHT if hierarchy.is_v2 else 1024 * CPU_WEIGHT // 100
        values = {"memory": memory_mib * _MIB, "pids": max_processes, "cpu": cpu}
        for name in hierarchy.controllers:
            (folder / _LIMIT_FILES[hierarchy.is_v2][name]).write_text(str(values[name]))
        if "memory" in hierarchy.controllers:
            self._memory = folder, hierarchy
            # Without swap accounting these files do not exist.
            extra = {"memory.swap.max": 0, "memory.oom.group": 1} if hierarchy.is_v2 else {}
            extra |= {} if hierarchy.is_v2 else {"memory.memsw.limit_in_bytes": memory_mib * _MIB}
            for name, value in extra.items():
                if (folder / name).exists():
                    (folder / name).write_text(str(value))

    @property
    def exists(self) -> bool:
        return bool(self._folders)

    @property
    def limits_memory(self) -> bool:
        return self._memory is not None

    @property
    def limits_processes(self) -> bool:
        return any("pids" in hierarchy.controllers for _, hierarchy in self._folders)

    def command_inside(self, command: list[str]) -> list[str]:
        """Return `command` wrapped to join the groups before it starts, while it still may."""
        if not self._folders:
            return command
        files = [str(folder / "cgroup.procs") for folder, _ in self._folders]
        return ["/bin/sh", "-c", _ENTER, "sh", *files, "--", *command]

    def exceeded_limit(self) -> str | None:
        """Return the reason if the kernel has killed a guest because the group reached its memory limit.

        It also kills guests because a group above, or the machine, has no memory: then this limit was not reached.
        """
        if self.oom_kills() and self._reached_limit():
            return f"guests use {self._memory_mib} MiB of memory and need more; the limit is {self._memory_mib}"
        return None

    def oom_kills(self) -> int | None:
        """Return how many guests the kernel has killed for want of memory, theirs or the machine's; None if unknown."""
        return self._count("memory.events", "memory.oom_control", "oom_kill")

    def _reached_limit(self) -> bool:
        """Return whether this group's own limit was reached. v1 tells the maximum, which includes reclaimed memory."""
        if self._memory is not None and self._memory[1].is_v2:
            return bool(self._count("memory.events", "", "oom"))
        maximum = self._count("", "memory.max_usage_in_bytes", "")
        return maximum is not None and maximum >= (self._memory_mib - 1) * _MIB

    def _count(self, v2_file: str, v1_file: str, name: str) -> int | None:
        """Return a number of the memory group: by `name`, or the only one of a v1 file. None if unknown."""
        if self._memory is None:
            return None
        folder, hierarchy = self._memory
        try:
            words = (folder / (v2_file if hierarchy.is_v2 else v1_file)).read_text().split()
            return int(words[0] if len(words) == 1 else words[words.index(name) + 1])
        except (OSError, ValueError, IndexError):
            return None

    def pids(self) -> list[int]:
        """Return the processes in the groups. A process is in all of them, unless it is dying."""
        return sorted({pid for folder, _ in self._folders for pid in _members(folder)})

    def kill(self, timeout_s: float = KILL_TIMEOUT_S) -> list[int]:
        """Kill every process; return those that live after `timeout_s`."""
        return _kill([folder for folder, _ in self._folders], timeout_s)

    def end(self) -> bool:
        """Kill every process and remove the groups; return whether the kernel removed some, and none is left.

        It removes no group with a process that can still run code.
        """
        if not self._folders:
            return False
        left = _end([folder for folder, _ in self._folders], KILL_TIMEOUT_S)
        self._folders = [item for item in self._folders if item[0] in left]
        return not self._folders

    def close(self) -> None:
        """Remove the groups; those with a living process stay. Idempotent."""
        left = _remove([folder for folder, _ in self._folders])
        self._folders = [item for item in self._folders if item[0] in left]


def _kill(folders: list[Path], timeout_s: float) -> list[int]:
    """Kill every process of these groups; return those that live after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    for folder in folders:
        for name, value in (("cgroup.kill", "1"), ("pids.max", "0")):  # no process of the group can fork any more
            with suppress(OSError):
                _write_existing(folder / name, value)
    while True:
        living = sorted({pid for folder in folders for pid in _members(folder) if processes.is_alive(pid)})
        if not living or time.monotonic() > deadline:
            return living
        for pid in living:
            processes.kill(pid)
        time.sleep(0.001)


def _write_existing(path: Path, value: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)  # nobody but root may read cgroup.kill
    try:
        os.write(descriptor, value.encode())
    finally:
        os.close(descriptor)


def _remove(folders: list[Path]) -> list[Path]:
    """Remove groups, within `REMOVE_TIMEOUT_S` for all of them; return those that are left.

    Zombies do not keep a group, but a dying process does for a moment, in which it is no member any more.
    """
    deadline = time.monotonic() + REMOVE_TIMEOUT_S
    while True:
        left = [folder for folder in folders if not _is_removed(folder)]
        has_members = any(processes.is_alive(pid) for folder in left for pid in _members(folder))
        if not left or has_members or time.monotonic() > deadline:
            return left
        time.sleep(0.005)


def _is_removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        pass
    except OSError:
        return False
    return True


def _end(folders: list[Path], timeout_s: float) -> list[Path]:
    """Kill every process of these groups and remove them; return the groups that are left after `timeout_s`.

    A command that is being started may join a group after the last look at it: then both are tried again.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        _kill(folders, deadline - time.monotonic())
        folders = _remove(folders)
        if not folders or time.monotonic() > deadline:
            return folders


def remove_owner(token: str, timeout_s: float = KILL_TIMEOUT_S) -> None:
    """Kill the processes of a dead owner's desktops and remove their groups. `token` starts their names."""
    _end([folder for parent, _, _ in _own_parents() for folder in parent.glob(f"{_PREFIX}{token}-*")], timeout_s)
