"""The walls of the plain level: a small program that gives up rights and then becomes another.

Invariant: a wall that the kernel has is put up, or the program does not run.

Landlock (files, signals) and seccomp (no sockets but local ones) need no privilege and hold for every
descendant, as does the want of all capabilities. Structures and numbers are those of linux/landlock.h, linux/seccomp.h,
linux/filter.h and linux/capability.h. It imports the standard library only, as it runs before every desktop of this level.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import platform
import resource
import struct
import sys
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_READ = 1 << 0 | 1 << 2 | 1 << 3
"""Execute, read a file, read a folder."""
_FILE_ONLY = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 14
_WRITE_BY_VERSION = ((1, (1 << 13) - 1), (2, 1 << 13), (3, 1 << 14))
_KEEP_IN = 1 << 1
"""Signals. Abstract sockets stay open: X clients try one first, and give up where they may not."""
_SET_SUBREAPER, _NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER_MODE = 36, 38, 22, 2
_DROP_FROM_BOUNDING_SET, _CAPABILITIES_VERSION = 24, 0x20080522
_MACHINES = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198)}
"""Name of the architecture in an audit record, number of the call `socket`."""
_IO_URING_SETUP = 425
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000
_LOCAL, _NETLINK = 1, 16


def landlock_version() -> int:
    """Of the kernel; 0 when it has none."""
    return max(0, _LIBC.syscall(_CREATE_RULESET, None, 0, 1))


def machine() -> tuple[int, int] | None:
    """What the network filter has to know of this processor; None when it does not know it."""
    return _MACHINES.get(platform.machine())


def threads_of(uid: int) -> int:
    """How many threads a user has now: the kernel counts them all against its limit of processes."""
    found = 0
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == uid:
                found += len(os.listdir(f"/proc/{name}/task"))
        except OSError:
            continue
    return found


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _give_up_capabilities() -> None:
    """Root that has no other user to become keeps its name and none of its rights: it could set the clock, or end the machine."""
    number = 0
    while _LIBC.prctl(_DROP_FROM_BOUNDING_SET, number, 0, 0, 0) == 0:
        number += 1
    _checked(_LIBC.capset(struct.pack("=Ii", _CAPABILITIES_VERSION, 0), bytes(24)), "capset")


def _keep_files(read: list[str], write: list[str], devices: list[str]) -> None:
    """Nothing but these can be opened from now on; what does not exist is left out."""
    version = landlock_version()
    if version < 1:
        return
    everything = sum(bits for since, bits in _WRITE_BY_VERSION if version >= since)
    attributes = struct.pack("=QQQ", everything, 0, _KEEP_IN if version >= 6 else 0)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    rules = _checked(_LIBC.syscall(_CREATE_RULESET, attributes, size, 0), "landlock_create_ruleset")
    for paths, allowed in ((read, _READ), (write, everything), (devices, _READ | 1 << 1)):
        for path in filter(os.path.exists, paths):
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
            bits = allowed if os.path.isdir(path) else allowed & _FILE_ONLY
            rule = struct.pack("=Qi", bits & everything, descriptor)
            _checked(_LIBC.syscall(_ADD_RULE, rules, 1, rule, 0), f"landlock_add_rule {path}")
            os.close(descriptor)
    _checked(_LIBC.syscall(_RESTRICT_SELF, rules, 0), "landlock_restrict_self")
    os.close(rules)


def network_seccomp_filter(architecture: int, socket_call: int) -> bytes:
    """A program for seccomp: sockets of the local and the netlink family only, no io_uring, no calls of another architecture."""
    load, equal, at_least, give = 0x20, 0x15, 0x35, 0x06
    refuse = _REFUSE | errno.EPERM
    lines = [
        (load, 0, 0, 4),
        (equal, 1, 0, architecture),
        (give, 0, 0, refuse),
        (load, 0, 0, 0),
        (at_least, 0, 1, 0x40000000),  # the 32-bit calls of x86-64
        (give, 0, 0, refuse),
        (equal, 0, 1, _IO_URING_SETUP),
        (give, 0, 0, _REFUSE | errno.ENOSYS),
        (equal, 1, 0, socket_call),
        (give, 0, 0, _ALLOW),
        (load, 0, 0, 16),  # the first argument: the family
        (equal, 2, 0, _LOCAL),
        (equal, 1, 0, _NETLINK),
        (give, 0, 0, _REFUSE | errno.EAFNOSUPPORT),
        (give, 0, 0, _ALLOW),
    ]
    return b"".join(struct.pack("=HBBI", *line) for line in lines)


def _keep_off_the_network() -> None:
    known = machine()
    if known is None:
        return
    program = network_seccomp_filter(*known)
    buffer = ctypes.create_string_buffer(program, len(program))
    header = ctypes.create_string_buffer(struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer)))
    _checked(_LIBC.prctl(_SET_SECCOMP, _FILTER_MODE, header, 0, 0), "seccomp")


def main() -> None:
    """`argv[1]` is JSON: `uid`, `groups`, `limits`, `read`, `write`, `devices`, `command`."""
    rules = json.loads(sys.argv[1])
    _checked(_LIBC.prctl(_SET_SUBREAPER, 1, 0, 0, 0), "prctl")
    Path("/proc/self/oom_score_adj").write_text("1000")
    for name, value in rules["limits"].items():
        _, hard = resource.getrlimit(getattr(resource, f"RLIMIT_{name.upper()}"))
        most = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(getattr(resource, f"RLIMIT_{name.upper()}"), (most, most))
    if rules["uid"] is not None:
        os.setgroups(rules["groups"])
        os.setresgid(rules["uid"], rules["uid"], rules["uid"])
        os.setresuid(rules["uid"], rules["uid"], rules["uid"])
    _give_up_capabilities()
    _checked(_LIBC.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0), "prctl")
    _keep_files(rules["read"], rules["write"], rules["devices"])
    _keep_off_the_network()
    os.execv(rules["command"][0], rules["command"])
