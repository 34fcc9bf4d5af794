"""Isolation of a desktop's guests from the host, at two levels.

- *namespaces*: guests see their home and read-only programs, their own processes, and a network of their own with a
  loopback interface and the task's destinations.
- *plain*: the same files at their real paths (Landlock); all processes are visible, but signals reach only their own
  (Landlock, and a separate user id if this is root); only local sockets (`seccomp`), in the file system those of all
  programs; no capabilities, even as root.
- Both: the system call filter of `seccomp`, rlimits per process, `cgroup` or `resource_monitor` for all processes
  together, and, as root, a size-limited file system. As root, guests have their own user id (`guest_user`).

`missing_protections` lists what the machine lacks at the plain level.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import json
import os
import resource
import shutil
import stat
import struct
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from deskhand.desktop.local import file_tree, guest_user, landlock, processes, seccomp

IsolationLevel = Literal["namespaces", "plain"]

GUEST_HOME = "/home/user"
_LIBC = ctypes.CDLL(None, use_errno=True)
_NOSUID, _NODEV, _DETACH = 2, 4, 2
_MIB = 1024 * 1024
READ_AND_ENTER = 5
_ACL_ATTRIBUTE, _ACL_VERSION, _ACL_ENTRY = "system.posix_acl_access", struct.Struct("<I"), struct.Struct("<HHI")
_ETC = (
    "alternatives", "fonts", "gtk-2.0", "gtk-3.0", "xdg", "X11", "mime.types", "mailcap", "ld.so.cache", "ld.so.conf",
    "ld.so.conf.d", "localtime", "nsswitch.conf", "dbus-1", "dillo", "profile", "bash.bashrc", "magic", "papersize",
    "libreoffice", "chromium.d", "gimp", "ssl/certs", "ca-certificates.conf", "pulse", "sane.d", "host.conf",
    "services",
)  # fmt: skip
_VAR = ("cache/fontconfig", "lib/mime", "lib/dbus", "lib/libreoffice")
_SYSTEM_FILES = (*(f"/etc/{name}" for name in _ETC), *(f"/var/{name}" for name in _VAR))
_BWRAP = ("bwrap", "--seccomp", "9", "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-net")
_START_BWRAP = 'echo 1000 >/proc/self/oom_score_adj; exec "$@" 9<"$0"'
"""Opens the filter. Guests cannot lower the value again if a process with CAP_SYS_RESOURCE has set it, so this precedes
the change of user."""
TEMPORARY_FOLDERS = ("/dev/shm", "/tmp", "/run")
"""File systems of guests with namespaces, besides their home. bubblewrap limits their size, not the number of files."""
MAX_OPEN_FILES = 1024
"""Limit of one process: all of a desktop together must not use up the table of open files of this machine."""
_SHARED_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue", "/run/lock")
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts")


@dataclass(frozen=True)
class ResourceLimits:
    """Limits of one desktop's guests together. `max_processes` counts threads too."""

    memory_mib: int = 4096
    max_processes: int = 1024
    disk_mib: int = 1024
    file_mib: int = 256
    """Maximum size of one file."""


@functools.cache
def available_isolation() -> tuple[IsolationLevel, str]:
    """Return the best available level and a one-line reason."""
    if shutil.which("bwrap") is None:
        return "plain", "bubblewrap is not installed (apt-get install bubblewrap)"
    command = ["--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "true"]
    uid = guest_user.FIRST_UID if guest_user.guest_uids() else None
    with tempfile.NamedTemporaryFile() as filter_file:
        command = _bwrap_command(Path(filter_file.name), uid, command)
        probe = subprocess.run(command, capture_output=True, text=True, check=False)
    if probe.returncode != 0:
        message = (probe.stderr.strip().splitlines() or ["no message"])[-1]
        return "plain", f"bubblewrap cannot make namespaces here ({message})"
    return "namespaces", "bubblewrap"


def guests_can_kill_this_user(level: IsolationLevel) -> bool:
    """Return whether guests of this level can end and stop every process of this user."""
    return level == "plain" and not guest_user.guest_uids() and landlock.landlock_version() < 6


def missing_protections(level: IsolationLevel) -> list[str]:
    """Return what guests of this level can do to the host; empty if nothing."""
    unfiltered = "unsupported CPU architecture: guests can make every system call"
    if level == "namespaces":
        return [] if seccomp.is_supported() else [unfiltered]
    missing = ["guests can connect to other programs' sockets in the file system"]
    if not guest_user.guest_uids():
        missing.append("guests run as this user and count toward its limits")
        if not guest_user.can_mark():
            missing.append("guests that clear their environment can outlive their desktop, except in control groups")
    version = landlock.landlock_version()
    if version < 1:
        missing.append("the kernel has no Landlock: guests can read every file that their user can read")
    if version < 6:
        missing.append("the kernel's Landlock cannot restrict signals and abstract sockets")
    if guests_can_kill_this_user(level):
        missing.append("guests can kill every process of this user")
    if not seccomp.is_supported():
        missing.append(f"{unfiltered} and reach the network")
    return missing


@functools.cache
def close_shared_folders() -> None:
    """Deny plain-level guests to write to folders that all users share, permanently, where this process may.

    Landlock denies it anyway, but only when a file is written. Programs that check permissions first, such as
    LibreOffice, need the permissions to say no. Without Landlock this alone keeps files, POSIX shared memory and
    semaphores of one episode from the next.
    """
    for path in _SHARED_FOLDERS if guest_user.guest_uids() else ():
        with suppress(OSError):
            grant_group(path, guest_group(), READ_AND_ENTER)


def grant_group(path: str, group: int, rights: int) -> None:
    """Set the rights of `group` on a folder to exactly `rights`, even if others have more. Raises `OSError`.

    Changes no other user's or group's rights. The access control list (POSIX draft 1003.1e) is an extended attribute,
    laid out as in linux/posix_acl_xattr.h.
    """
    owner, owning_group, named_group, mask, other = 0x01, 0x04, 0x08, 0x10, 0x20
    nobody = 0xFFFFFFFF
    try:
        data = os.getxattr(path, _ACL_ATTRIBUTE)[_ACL_VERSION.size :]
        entries = {(tag, who): bits for tag, bits, who in _ACL_ENTRY.iter_unpack(data)}
    except OSError as error:
        if error.errno != errno.ENODATA:
            raise
        mode = stat.S_IMODE(os.stat(path).st_mode)
        entries = {(owner, nobody): mode >> 6 & 7, (owning_group, nobody): mode >> 3 & 7, (other, nobody): mode & 7}
    if entries.get((named_group, group)) == rights:
        return
    entries[named_group, group] = rights
    entries.setdefault((mask, nobody), entries[owning_group, nobody] | rights)
    packed = b"".join(_ACL_ENTRY.pack(tag, bits, who) for (tag, who), bits in sorted(entries.items()))
    os.setxattr(path, _ACL_ATTRIBUTE, _ACL_VERSION.pack(2) + packed)


def x_server_uid() -> int | None:
    """Return the user id of all X servers, or None if they run as this user."""
    return guest_user.unnamed_ids()[0] if guest_user.guest_uids() else None


def guest_group() -> int:
    """Return the group of plain-level guests that have their own user id. It has no other members."""
    return guest_user.unnamed_ids()[1]


def size_limited_folder(folder: Path, mib: int) -> bool:
    """Mount a file system of `mib` MiB on an empty folder if this process may; return whether it did.

    The number of files is limited too: each takes a kilobyte of the kernel's memory, also if it is empty.
    """
    if os.getuid() != 0:
        return False
    size = f"size={mib * _MIB},nr_inodes={file_tree.MAX_ENTRIES}"
    options = f"{size},mode={folder.stat().st_mode & 0o777:o}".encode()
    return _LIBC.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", _NOSUID | _NODEV, options) == 0


def unmount_below(below: Path) -> None:
    """Unmount `below` and every folder in it, including mounts of other processes."""
    if os.getuid() != 0:
        return
    for line in reversed(Path("/proc/self/mounts").read_text().splitlines()):
        mount_point = line.split()[1]
        if f"{mount_point}/".startswith(f"{below}/"):
            _LIBC.umount2(os.fsencode(mount_point), _DETACH)


def guest_runtime_dir(folder: Path, level: IsolationLevel) -> str:
    """Return XDG_RUNTIME_DIR as seen by guests; `folder` is the desktop's folder on the host."""
    return "/run/user" if level == "namespaces" else str(folder / "tmp")


def chown_to_guest(folder: Path, uid: int | None) -> None:
    """Make the guest the owner of a file, or of a folder and its content. Call before any guest runs."""
    if uid is None:
        return
    os.chown(folder, uid, uid, follow_symlinks=False)
    for base, folders, files in os.walk(folder):
        for name in (*folders, *files):
            os.chown(os.path.join(base, name), uid, uid, follow_symlinks=False)


def _bwrap_command(filter_file: Path, uid: int | None, words: list[str]) -> list[str]:
    filter_file.write_bytes(seccomp.build_filter(has_namespaces=True))
    return ["/bin/sh", "-c", _START_BWRAP, str(filter_file), *guest_user.command_as_user(uid, [*_BWRAP, *words])]


def namespaces_command(
    folder: Path, home: Path, binds: list[Path], uid: int | None, limits: ResourceLimits, command: list[str]
) -> list[str]:
    """Return `command` wrapped in bubblewrap.

    `folder` is the desktop's folder on the host; `binds` are mounted read-only at the same paths.
    """
    etc_files = {
        "passwd": f"root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:User:{GUEST_HOME}:/bin/bash\n",
        "group": "root:x:0:\nuser:x:1000:\n",
        "hosts": "127.0.0.1 localhost desktop\n",
    }
    for name, text in etc_files.items():
        (folder / name).write_text(text)
    words = [
        "--unshare-uts",
        "--uid",
        "1000",
        "--gid",
        "1000",
        "--hostname",
        "desktop",
        "--die-with-parent",
        "--new-session",
    ]
    words += ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        path = Path("/", name)
        if path.is_symlink():
            words += ["--symlink", os.readlink(path), str(path)]
        elif path.is_dir():
            words += ["--ro-bind", str(path), str(path)]
    for path in _SYSTEM_FILES:
        words += ["--ro-bind-try", path, path]
    for name in etc_files:
        words += ["--ro-bind", str(folder / name), f"/etc/{name}"]
    # The guest's user owns these namespaces and could change their settings in /proc/sys.
    words += ["--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys", "--dev", "/dev"]
    for path in TEMPORARY_FOLDERS:
        words += ["--perms", "1777", "--size", str(limits.disk_mib * _MIB), "--tmpfs", path]
    words += ["--remount-ro", "/dev", "--perms", "0700", "--dir", "/run/user"]
    for path in binds:
        words += ["--ro-bind", str(path), str(path)]
    words += ["--bind", str(folder / "control"), "/run/jail", "--bind", str(home), GUEST_HOME, "--chdir", GUEST_HOME]
    words += ["--remount-ro", "/"]  # it is a tmpfs without a limit
    words += ["prlimit", "--core=0", f"--fsize={limits.file_mib * _MIB}", f"--nproc={limits.max_processes}"]
    open_files = min(MAX_OPEN_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    words += ["--nice=0", "--rtprio=0", f"--data={limits.memory_mib * _MIB}", f"--nofile={open_files}", *command]
    return _bwrap_command(folder / "filter", uid, words)


def plain_command(
    folder: Path, home: Path, binds: list[Path], uid: int | None, limits: ResourceLimits, command: list[str]
) -> list[str]:
    """Return `command` wrapped in `landlock`; the guest's /tmp is a folder next to its home."""
    readable = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/tmp/.X11-unix"]
    readable += [*_SYSTEM_FILES, "/etc/passwd", "/etc/group", "/etc/hosts"]
    rules = {
        "uid": uid,
        "groups": [guest_group()],
        "read": [*readable, *map(str, binds)],
        "write": [str(path) for path in (home, folder / "control", folder / "tmp")],
        "devices": [f"/dev/{name}" for name in _DEVICES],
        "limits": {
            "core": 0,
            "fsize": limits.file_mib * _MIB,
            "nproc": limits.max_processes + (0 if uid is not None else landlock.threads_of(os.getuid())),
            "data": limits.memory_mib * _MIB,
            "nice": 0,
            "rtprio": 0,
            "nofile": MAX_OPEN_FILES,
        },
        "filter": seccomp.build_filter(has_namespaces=False).hex(),
        "command": command,
    }
    return processes.python_command("deskhand.desktop.local.landlock", json.dumps(rules))
