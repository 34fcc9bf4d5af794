"""System call filter of all guests, at both isolation levels.

`build_filter` generates one program (classic BPF) from the tables below. At the level `namespaces` bubblewrap installs
it, at the plain level `landlock`. Calls that are in no table are allowed. The levels differ in two rules: without a
network namespace there are no internet sockets, and without namespaces there are no nested ones.

`docs/decisions/0011-seccomp-filter.md` says why the program is generated here. Numbers are from asm/unistd_64.h,
asm-generic/unistd.h, linux/seccomp.h, linux/filter.h, linux/audit.h, linux/sched.h and linux/netlink.h. Uses only the
standard library.
"""

from __future__ import annotations

import errno
import platform
import struct

_MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""Audit architectures; the order is that of the numbers in `SYSTEM_CALLS`."""
SYSTEM_CALLS = {
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "shmdt": (67, 197),
    "semget": (64, 190),
    "semop": (65, 193),
    "semctl": (66, 191),
    "semtimedop": (220, 192),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "mq_timedsend": (242, 182),
    "mq_timedreceive": (243, 183),
    "mq_notify": (244, 184),
    "mq_getsetattr": (245, 185),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "clone3": (435, 435),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "ioprio_set": (251, 30),
    "setns": (308, 268),
    "pivot_root": (155, 41),
    "mount": (165, 40),
    "umount2": (166, 39),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "clone": (56, 220),
    "unshare": (272, 97),
}
"""Numbers of each call on the machines above."""
_WITH_RULES = ("socket", "socketpair", "clone", "unshare")
"""Refused depending on their arguments."""
_AS_WITHOUT_THE_FEATURE = ("shm", "sem", "msg", "mq_", "add_key", "request_key", "keyctl", "io_uring_", "clone3")
"""Beginnings of names: ENOSYS, for which programs have a fallback. The objects of the first seven outlive their
process. The arguments of `clone3` are in memory, which a filter cannot read; the C library then uses `clone`."""
REFUSED = {
    name: errno.ENOSYS if name.startswith(_AS_WITHOUT_THE_FEATURE) else errno.EPERM
    for name in SYSTEM_CALLS
    if name not in _WITH_RULES
}
_LOCAL, _INET, _INET6, _NETLINK = 1, 2, 10, 16
_NETLINK_PROTOCOLS = (0, 15)
"""Network interfaces and device events, as `getifaddrs` and udev read them."""
_NEW_TIME, _NEW_MOUNT, _NEW_CGROUP, _NEW_UTS = 0x80, 0x20000, 0x02000000, 0x04000000
_NEW_IPC, _NEW_USER, _NEW_PID, _NEW_NETWORK = 0x08000000, 0x10000000, 0x20000000, 0x40000000
_NEVER_NESTED = _NEW_MOUNT | _NEW_CGROUP | _NEW_UTS
_BROWSER_SANDBOX = _NEW_IPC | _NEW_USER | _NEW_PID | _NEW_NETWORK
"""Namespaces that Chromium's and Firefox's own sandboxes create. At the plain level Chromium runs without one."""
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
"""Offsets in `struct seccomp_data`."""

_Instruction = tuple[int, int, int, int]
"""Code, instructions to skip if true, instructions to skip if false, value."""


def is_supported(machine: str | None = None) -> bool:
    """Return whether there is a filter for this machine's architecture."""
    return (machine or platform.machine()) in _MACHINES


def build_filter(*, has_namespaces: bool, machine: str | None = None) -> bytes:
    """Return the program, an array of `struct sock_filter`. It allows everything on an unknown architecture."""
    machine = machine or platform.machine()
    if machine not in _MACHINES:
        return _packed([(_RETURN, 0, 0, _ALLOW)])
    numbers = {name: each[list(_MACHINES).index(machine)] for name, each in SYSTEM_CALLS.items()}
    program: list[_Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, _MACHINES[machine]),
        _refuse(errno.EPERM),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, 0x40000000),  # the x32 calls of x86-64
        _refuse(errno.EPERM),
    ]
    for name, number in REFUSED.items():
        program += [(_EQUAL, 0, 1, numbers[name]), _refuse(number)]
    families = (_LOCAL, _INET, _INET6) if has_namespaces else (_LOCAL,)
    nested = _NEVER_NESTED | (0 if has_namespaces else _BROWSER_SANDBOX)
    rules = {
        "socket": _socket_rule(families),
        "socketpair": _socket_rule(families),
        "clone": _namespace_rule(nested),  # there, the bit of time namespaces belongs to the signal
        "unshare": _namespace_rule(nested | _NEW_TIME),
    }
    for name, rule in rules.items():
        program += [(_EQUAL, 0, len(rule), numbers[name]), *rule]
    return _packed([*program, (_RETURN, 0, 0, _ALLOW)])


def _socket_rule(families: tuple[int, ...]) -> list[_Instruction]:
    rule: list[_Instruction] = [(_LOAD, 0, 0, _ARGUMENTS)]
    for family in families:
        rule += [(_EQUAL, 0, 1, family), (_RETURN, 0, 0, _ALLOW)]
    rule += [(_EQUAL, 1, 0, _NETLINK), _refuse(errno.EAFNOSUPPORT), (_LOAD, 0, 0, _ARGUMENTS + 2 * 8)]
    for protocol in _NETLINK_PROTOCOLS:
        rule += [(_EQUAL, 0, 1, protocol), (_RETURN, 0, 0, _ALLOW)]
    return [*rule, _refuse(errno.EPROTONOSUPPORT)]


def _namespace_rule(refused: int) -> list[_Instruction]:
    allow = (_RETURN, 0, 0, _ALLOW)
    return [(_LOAD, 0, 0, _ARGUMENTS), (_ANY_BIT, 0, 1, refused), _refuse(errno.EPERM), allow]


def _refuse(number: int) -> _Instruction:
    return _RETURN, 0, 0, _ERRNO | number


def _packed(program: list[_Instruction]) -> bytes:
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
