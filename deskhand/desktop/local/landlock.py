"""Plain-level sandbox: a small program that drops rights and then executes the command.

Landlock (files, signals, abstract sockets), the filter of `seccomp` and dropped capabilities need no privileges and
apply to every descendant. A protection that the kernel supports is applied, or the command does not run. Structures and
numbers are from linux/landlock.h, linux/prctl.h and linux/capability.h. Uses only the standard library, because it runs
before every plain-level desktop.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import resource
import struct
import sys
from contextlib import suppress
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_READ = 1 << 0 | 1 << 2 | 1 << 3
"""Execute, read file, read directory."""
_FILE_ONLY = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 14
_WRITE_BY_VERSION = ((1, (1 << 13) - 1), (2, 1 << 13), (3, 1 << 14))
_SCOPES = 1 << 0 | 1 << 1
"""Abstract sockets and signals."""
_SET_SUBREAPER, _NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER_MODE = 36, 38, 22, 2
_DROP_FROM_BOUNDING_SET, _CAPABILITIES_VERSION = 24, 0x20080522


def landlock_version() -> int:
    """Return the kernel's Landlock ABI version, 0 without Landlock."""
    return max(0, _LIBC.syscall(_CREATE_RULESET, None, 0, 1))


def threads_of(uid: int) -> int:
    """Return the number of threads of a user; the kernel counts them against its process limit."""
    found = 0
    for name in os.listdir("/proc"):
        with suppress(OSError):
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == uid:
                found += len(os.listdir(f"/proc/{name}/task"))
    return found


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _empty_bounding_set() -> None:
    """Drop every capability that a program could add by `execve`, which needs CAP_SETPCAP. Call as root."""
    number = 0
    while _LIBC.prctl(_DROP_FROM_BOUNDING_SET, number, 0, 0, 0) == 0:
        number += 1
    if ctypes.get_errno() not in (errno.EINVAL, errno.EPERM):  # past the last one, or not permitted
        _checked(-1, "prctl")


def _drop_capabilities() -> None:
    """Drop all capabilities. Root without another user id could otherwise set the clock or reboot."""
    _checked(_LIBC.capset(struct.pack("=Ii", _CAPABILITIES_VERSION, 0), bytes(24)), "capset")


def _restrict_files(read: list[str], write: list[str], devices: list[str]) -> None:
    """Deny access to all other files. Missing paths are skipped."""
    version = landlock_version()
    if version < 1:
        return
    all_rights = sum(bits for since, bits in _WRITE_BY_VERSION if version >= since)
    attributes = struct.pack("=QQQ", all_rights, 0, _SCOPES if version >= 6 else 0)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    rules = _checked(_LIBC.syscall(_CREATE_RULESET, attributes, size, 0), "landlock_create_ruleset")
    for paths, allowed in ((read, _READ), (write, all_rights), (devices, _READ | 1 << 1)):
        for path in filter(os.path.exists, paths):
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
            bits = allowed if os.path.isdir(path) else allowed & _FILE_ONLY
            rule = struct.pack("=Qi", bits & all_rights, descriptor)
            _checked(_LIBC.syscall(_ADD_RULE, rules, 1, rule, 0), f"landlock_add_rule {path}")
            os.close(descriptor)
    _checked(_LIBC.syscall(_RESTRICT_SELF, rules, 0), "landlock_restrict_self")
    os.close(rules)


def _restrict_system_calls(program: bytes) -> None:
    buffer = ctypes.create_string_buffer(program, len(program))
    header = ctypes.create_string_buffer(struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer)))
    _checked(_LIBC.prctl(_SET_SECCOMP, _FILTER_MODE, header, 0, 0), "seccomp")


def main() -> None:
    """`argv[1]` is JSON: `uid`, `groups`, `limits`, `read`, `write`, `devices`, `filter`, `command`."""
    rules = json.loads(sys.argv[1])
    _checked(_LIBC.prctl(_SET_SUBREAPER, 1, 0, 0, 0), "prctl")
    Path("/proc/self/oom_score_adj").write_text("1000")
    for name, value in rules["limits"].items():
        _, hard = resource.getrlimit(getattr(resource, f"RLIMIT_{name.upper()}"))
        limit = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(getattr(resource, f"RLIMIT_{name.upper()}"), (limit, limit))
    _empty_bounding_set()
    if rules["uid"] is not None:
        os.setgroups(rules["groups"])
        os.setresgid(rules["uid"], rules["uid"], rules["uid"])
        os.setresuid(rules["uid"], rules["uid"], rules["uid"])
    _drop_capabilities()
    _checked(_LIBC.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0), "prctl")
    _restrict_files(rules["read"], rules["write"], rules["devices"])
    _restrict_system_calls(bytes.fromhex(rules["filter"]))
    os.execv(rules["command"][0], rules["command"])
