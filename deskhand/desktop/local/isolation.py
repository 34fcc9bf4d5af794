"""What keeps a desktop's guests apart from the host. Invariant: a guest never has more rights than its level says, and the level in
force can be asked for.

- *namespaces*: of files a guest sees its home and read-only programs, of processes its own, of networks a loopback of its own and
  what its task allows.
- *plain*: the same files, in their real places, by Landlock; all processes, but signals reach its own only (Landlock, and a user
  of its own when this is root); no sockets but local ones (seccomp); no capabilities, also as root.
- Both: rlimits for each process, the guard (`guard.py`) for all together, and as root a file system of limited size.

What of the plain level the machine cannot give is named by `weaknesses`. As root, guests run under a user id that no other
desktop has at the time, and that owns nothing but the desktop's home.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import json
import os
import pwd
import shutil
import struct
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from deskhand.desktop.local import landlock, posix_acl
from deskhand.errors import ConfigError, InfrastructureError

Isolation = Literal["namespaces", "plain"]

GUEST_HOME = "/home/user"
FIRST_UID = 20_000
GUESTS = FIRST_UID - 2
"""A group that no user has: all guests of the plain level that have a user id of their own are in it."""
MOST_UIDS = 4096
_USERS = "/dev/shm/deskhand-users"
"""Each byte of it that is locked is a user id that is taken."""
_LIBC = ctypes.CDLL(None, use_errno=True)
_NOSUID, _NODEV, _DETACH = 2, 4, 2
_MIB = 1024 * 1024
_ETC = (
    "alternatives", "fonts", "gtk-2.0", "gtk-3.0", "xdg", "X11", "mime.types", "mailcap", "ld.so.cache", "ld.so.conf",
    "ld.so.conf.d", "localtime", "nsswitch.conf", "dbus-1", "dillo", "profile", "bash.bashrc", "magic", "papersize",
    "libreoffice", "chromium.d", "gimp", "ssl/certs", "ca-certificates.conf", "pulse", "sane.d", "host.conf", "services",
)  # fmt: skip
_VAR = ("cache/fontconfig", "lib/mime", "lib/dbus", "lib/libreoffice")
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts")


@dataclass(frozen=True)
class ResourceLimits:
    """Of one desktop's guests together. `processes` counts threads too. Raises `ConfigError` for what no application fits in."""

    memory_mib: int = 4096
    processes: int = 1024
    disk_mib: int = 1024
    file_mib: int = 256
    """One file at most."""

    def __post_init__(self) -> None:
        lowest = {"memory_mib": 64, "processes": 16, "disk_mib": 16, "file_mib": 1}
        for name, least in lowest.items():
            if getattr(self, name) < least:
                raise ConfigError(f"limit {name} of {getattr(self, name)}: give {least} or more")


@functools.cache
def available_isolation() -> tuple[Isolation, str]:
    """What this machine allows, and in one sentence why not more."""
    if shutil.which("bwrap") is None:
        return "plain", "bubblewrap is not installed (apt-get install bubblewrap)"
    command = ["bwrap", "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-net", "--ro-bind", "/", "/"]
    command += ["--proc", "/proc", "--dev", "/dev", "true"]
    probe = subprocess.run(
        as_user(FIRST_UID if guest_uids() else None, command), capture_output=True, text=True, check=False
    )
    if probe.returncode != 0:
        message = (probe.stderr.strip().splitlines() or ["no message"])[-1]
        return "plain", f"bubblewrap cannot make namespaces here ({message})"
    return "namespaces", "bubblewrap"


def missing_protections(level: Isolation) -> list[str]:
    """What a guest of this level can do that one of another machine could not; empty when nothing is missing."""
    if level == "namespaces":
        return []
    found = ["guests can knock at the local sockets of other programs"]
    if not guest_uids():
        found.append("they do so as this user, and count towards its limits")
    version = landlock.landlock_version()
    if version < 1:
        found.append("the kernel has no Landlock: guests read every file that their user may read")
    if version < 6:
        found.append("the kernel's Landlock cannot keep signals in")
        if not guest_uids():
            found.append("guests can end every process of this user")
    if landlock.machine() is None:
        found.append("this processor has no table of calls here: guests reach the network")
    return found


def guest_uids() -> bool:
    """Whether guests can be given user ids of their own: root that may change to them. That a program was not found once is not
    kept: guests would run as root from then on."""
    return os.getuid() == 0 and shutil.which("setpriv") is not None and _may_change_user()


@functools.cache
def _may_change_user() -> bool:
    return subprocess.run(as_user(FIRST_UID, ["true"]), capture_output=True, check=False).returncode == 0


class GuestUser:
    """`uid` is that of one desktop's guests, and of no other desktop on this machine until `close`; None: they run as this user."""

    def __init__(self) -> None:
        self.uid: int | None = None
        self._file: int | None = None
        if not guest_uids():
            return
        self._file = os.open(_USERS, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        for number in range(MOST_UIDS):
            with suppress(BlockingIOError, PermissionError):
                fcntl.fcntl(
                    self._file, fcntl.F_OFD_SETLK, struct.pack("@hhqqi", fcntl.F_WRLCK, os.SEEK_SET, number, 1, 0)
                )
                self.uid = FIRST_UID + number
                return
        self.close()
        raise InfrastructureError(f"{MOST_UIDS} desktops run on this machine already")

    def close(self) -> None:
        """Another desktop may have the user id from now on. Idempotent."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


@functools.cache
def shared_folders_are_closed() -> bool:
    """Close the host's folders for temporary files to all guests of the plain level, for good; whether that worked.

    Landlock keeps guests out of them in any case, but says so only when something is written. A program that looks whether it may
    (LibreOffice does, and then goes elsewhere) needs a plain no.
    """
    if not guest_uids():
        return False
    try:
        for path in ("/tmp", "/var/tmp"):
            posix_acl.grant_group(path, GUESTS, posix_acl.READ_AND_ENTER)
    except OSError:
        return False
    return True


def has_name(uid: int | None) -> bool:
    """Whether a user id (None: that of this process) is in this machine's list of users."""
    try:
        pwd.getpwuid(os.getuid() if uid is None else uid)
    except KeyError:
        return False
    return True


def server_uid() -> int | None:
    """The user id of all X servers; None when they run as this user."""
    return FIRST_UID - 1 if guest_uids() else None


def as_user(uid: int | None, command: list[str]) -> list[str]:
    """`command` run by a user id without groups, or as it is."""
    if uid is None:
        return command
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--inh-caps=-all", *command]


def size_limited_folder(folder: Path, mib: int) -> bool:
    """Make an empty folder a file system of its own with room for `mib`, where this process may; whether it did."""
    if os.getuid() != 0:
        return False
    options = f"size={mib * _MIB},mode={folder.stat().st_mode & 0o777:o}".encode()
    return _LIBC.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", _NOSUID | _NODEV, options) == 0


def unbound_folders(below: Path) -> None:
    """Undo `bound_folder` for `below` and every folder in it, also when it was another process that did it."""
    if os.getuid() != 0:
        return
    for line in reversed(Path("/proc/self/mounts").read_text().splitlines()):
        place = line.split()[1]
        if Path(place).is_relative_to(below):
            _LIBC.umount2(os.fsencode(place), _DETACH)


def runtime_folder(folder: Path, level: Isolation) -> str:
    """XDG_RUNTIME_DIR as the guests name it; `folder` is the desktop's own on the host."""
    return "/run/user" if level == "namespaces" else str(folder / "tmp")


def end_user(uid: int | None) -> None:
    """End every process of a guest's own user id at once, however fast they multiply."""
    if uid is not None:
        subprocess.run(as_user(uid, ["/bin/sh", "-c", "kill -KILL -1"]), capture_output=True, check=False)


def chown_to_guest(folder: Path, uid: int | None) -> None:
    """Make a file, or a folder and all in it, the guest's own. Must be called before any guest runs."""
    if uid is None:
        return
    os.chown(folder, uid, uid, follow_symlinks=False)
    for base, folders, files in os.walk(folder):
        for name in (*folders, *files):
            os.chown(os.path.join(base, name), uid, uid, follow_symlinks=False)


def _limited(limits: ResourceLimits, command: list[str]) -> list[str]:
    data = limits.memory_mib * _MIB
    return [
        "prlimit",
        "--core=0",
        f"--fsize={limits.file_mib * _MIB}",
        f"--nproc={limits.processes}",
        f"--data={data}",
        *command,
    ]


def namespaces_command(
    folder: Path,
    home: Path,
    control: Path,
    binds: list[Path],
    uid: int | None,
    limits: ResourceLimits,
    command: list[str],
) -> list[str]:
    """bubblewrap around `command`: `folder` is the desktop's own on the host; `binds` are shown read-only under their own names."""
    own = {
        "passwd": f"root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:User:{GUEST_HOME}:/bin/bash\n",
        "group": "root:x:0:\nuser:x:1000:\n",
        "hosts": "127.0.0.1 localhost desktop\n",
    }
    for name, text in own.items():
        (folder / name).write_text(text)
    words = ["bwrap", "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-net", "--unshare-uts"]
    words += ["--uid", "1000", "--gid", "1000", "--hostname", "desktop", "--die-with-parent", "--new-session"]
    words += ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        path = Path("/", name)
        if path.is_symlink():
            words += ["--symlink", os.readlink(path), str(path)]
        elif path.is_dir():
            words += ["--ro-bind", str(path), str(path)]
    for name in _ETC:
        words += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    for name in _VAR:
        words += ["--ro-bind-try", f"/var/{name}", f"/var/{name}"]
    for name in own:
        words += ["--ro-bind", str(folder / name), f"/etc/{name}"]
    words += ["--proc", "/proc", "--dev", "/dev"]
    for path in ("/dev/shm", "/tmp", "/run"):
        words += ["--perms", "1777", "--size", str(limits.disk_mib * _MIB), "--tmpfs", path]
    words += ["--remount-ro", "/dev", "--perms", "0700", "--dir", "/run/user"]
    for path in binds:
        words += ["--ro-bind", str(path), str(path)]
    words += ["--bind", str(control), "/run/box", "--bind", str(home), GUEST_HOME, "--chdir", GUEST_HOME]
    return as_user(uid, [*words, *_limited(limits, command)])


def plain_command(
    folder: Path,
    home: Path,
    control: Path,
    binds: list[Path],
    uid: int | None,
    limits: ResourceLimits,
    command: list[str],
) -> list[str]:
    """`confine.py` around `command`; the guest's /tmp is a folder beside its home."""
    temporary = folder / "tmp"
    readable = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/tmp/.X11-unix"]
    readable += [f"/etc/{name}" for name in (*_ETC, "passwd", "group", "hosts")] + [f"/var/{name}" for name in _VAR]
    rules = {
        "uid": uid,
        "groups": [GUESTS],
        "read": [*readable, *map(str, binds)],
        "write": [str(home), str(control), str(temporary)],
        "devices": [f"/dev/{name}" for name in _DEVICES],
        "limits": {
            "core": 0,
            "fsize": limits.file_mib * _MIB,
            "nproc": limits.processes + (0 if uid is not None else landlock.threads_of(os.getuid())),
            "data": limits.memory_mib * _MIB,
        },
        "command": command,
    }
    package_root = Path(__file__).resolve().parents[3]
    program = f"import sys; sys.path.insert(0, {str(package_root)!r}); from deskhand.desktop.local.landlock import main; main()"
    return [sys.executable, "-I", "-S", "-c", program, json.dumps(rules)]
