"""System calls that guests can make: one table for both isolation levels, on this kernel and in the program."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import platform
import resource
import socket
from pathlib import Path

import pytest
from classic_bpf import errno_of
from desktops import ISOLATIONS, embedded

from deskhand.actions.ops import Key
from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.local import guest_user, isolation, processes, seccomp

SMALL = DesktopSpec("plain", 256, 192)
NO_SUCH_CALL = (
    "shmget shmat shmctl shmdt semget semop semctl semtimedop msgget msgsnd msgrcv msgctl mq_open mq_unlink "
    "mq_timedsend mq_timedreceive mq_notify mq_getsetattr add_key request_key keyctl io_uring_setup io_uring_enter "
    "io_uring_register clone3"
)
NOT_PERMITTED = (
    "bpf perf_event_open userfaultfd ioprio_set setns pivot_root mount umount2 open_tree move_mount fsopen fsconfig "
    "fsmount fspick mount_setattr open_tree_attr"
)
WANTED = dict.fromkeys(NO_SUCH_CALL.split(), errno.ENOSYS) | dict.fromkeys(NOT_PERMITTED.split(), errno.EPERM)
UNIX, INET, INET6, NETLINK, VSOCK = 1, 2, 10, 16, 40
FAMILIES = range(64)
NETLINK_PROTOCOLS = range(32)
NEW_TIME, NEW_MOUNT, NEW_CGROUP, NEW_UTS = 0x80, 0x20000, 0x02000000, 0x04000000
NEW_IPC, NEW_USER, NEW_PID, NEW_NETWORK = 0x08000000, 0x10000000, 0x20000000, 0x40000000
NAMESPACES = {
    # wanted at namespaces, at plain
    0: (0, 0),
    NEW_USER: (0, errno.EPERM),
    NEW_USER | NEW_PID | NEW_NETWORK: (0, errno.EPERM),  # Chromium's sandbox
    NEW_USER | NEW_IPC | NEW_NETWORK: (0, errno.EPERM),  # Firefox's
    NEW_USER | NEW_MOUNT: (errno.EPERM, errno.EPERM),
    NEW_USER | NEW_CGROUP: (errno.EPERM, errno.EPERM),
    NEW_USER | NEW_UTS: (errno.EPERM, errno.EPERM),
}
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""From linux/audit.h."""

GUEST = """
import ctypes, json, os, sys
asked = json.load(sys.stdin if len(sys.argv) < 2 else open(sys.argv[1]))
libc = ctypes.CDLL(None, use_errno=True)

def call(number, *arguments):
    ctypes.set_errno(0)
    result = libc.syscall(number, *map(ctypes.c_long, arguments))
    return result, ctypes.get_errno() if result == -1 else 0

def opened(number, *arguments):
    result, error = call(number, *arguments)
    if result >= 0:
        os.close(result)
    return error

def in_a_child(number, flags):
    child = os.fork()
    if child == 0:
        os._exit(call(number, flags)[1])
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def cloned(number, flags):
    child, error = call(number, flags | 17, 0, 0, 0, 0)
    if child == 0:
        os._exit(0)
    if child > 0:
        os.waitpid(child, 0)
    return error

pair = ctypes.addressof((ctypes.c_int * 2)())
numbers = asked["numbers"]
print(json.dumps({
    "calls": {name: call(numbers[name], *[-1] * 6)[1] for name in asked["calls"]},
    "families": [opened(numbers["socket"], each, 2, 0) for each in asked["families"]],
    "pairs": [call(numbers["socketpair"], each, 2, 0, pair)[1] for each in asked["families"]],
    "netlink": [opened(numbers["socket"], 16, 2, each) for each in asked["protocols"]],
    "unshare": [in_a_child(numbers["unshare"], each) for each in asked["namespaces"]],
    "clone": [cloned(numbers["clone"], each) for each in asked["namespaces"]],
}))
"""


def numbers_on(machine: str) -> dict[str, int]:
    return {name: each[list(ARCHITECTURES).index(machine)] for name, each in seccomp.SYSTEM_CALLS.items()}


def families_of(level: str) -> tuple[int, ...]:
    return (UNIX, INET, INET6, NETLINK) if level == "namespaces" else (UNIX, NETLINK)


def exists_here(family: int) -> bool:
    try:
        socket.socket(family, socket.SOCK_DGRAM).close()
    except OSError:
        return False
    return True


@pytest.mark.skipif(not seccomp.is_supported(), reason="there is no filter for this architecture")
@pytest.mark.parametrize("level", ISOLATIONS)
async def test_guests_get_the_errno_of_the_table(level):
    asked = {
        "numbers": numbers_on(platform.machine()),
        "calls": list(WANTED),
        "families": list(FAMILIES),
        "protocols": list(NETLINK_PROTOCOLS),
        "namespaces": list(NAMESPACES),
    }
    async with embedded(SMALL, isolation_level=level) as desktop:
        await desktop.push("asked.json", json.dumps(asked).encode())
        done = await desktop.run(["python3", "-c", GUEST, "asked.json"])
    assert done.returncode == 0, done.stderr
    got = json.loads(done.stdout)
    assert got["calls"] == WANTED
    allowed = [family for family in families_of(level) if exists_here(family)]
    assert got["families"] == [0 if each in allowed else errno.EAFNOSUPPORT for each in FAMILIES]
    pairs = {UNIX: 0, INET: errno.EOPNOTSUPP, INET6: errno.EOPNOTSUPP, NETLINK: errno.EOPNOTSUPP}
    assert got["pairs"] == [pairs[each] if each in allowed else errno.EAFNOSUPPORT for each in FAMILIES]
    assert got["netlink"] == [0 if each in (0, 15) else errno.EPROTONOSUPPORT for each in NETLINK_PROTOCOLS]
    wanted = [each[level == "plain"] for each in NAMESPACES.values()]
    assert got["unshare"] == got["clone"] == wanted


@pytest.mark.parametrize("machine", ARCHITECTURES)
@pytest.mark.parametrize("level", ["namespaces", "plain"])
def test_the_program_refuses_what_the_table_says_and_nothing_else(machine, level):
    program = seccomp.build_filter(has_namespaces=level == "namespaces", machine=machine)
    architecture, numbers = ARCHITECTURES[machine], numbers_on(machine)
    refused = {number: each for number in range(1024) if (each := errno_of(program, architecture, number, UNIX))}
    assert refused == {numbers[name]: wanted for name, wanted in WANTED.items()}
    for name in ("socket", "socketpair"):
        for family in (*FAMILIES, 2**32 - 1):
            wanted = 0 if family in families_of(level) else errno.EAFNOSUPPORT
            assert errno_of(program, architecture, numbers[name], family, 2, 0) == wanted, family
        for protocol in (*NETLINK_PROTOCOLS, 2**32 - 1):
            wanted = 0 if protocol in (0, 15) else errno.EPROTONOSUPPORT
            assert errno_of(program, architecture, numbers[name], NETLINK, 3, protocol) == wanted, protocol
    for flags, wanted in NAMESPACES.items():
        for name in ("clone", "unshare"):
            assert errno_of(program, architecture, numbers[name], flags) == wanted[level == "plain"]
    assert errno_of(program, architecture, numbers["unshare"], NEW_USER | NEW_TIME) == errno.EPERM
    threads_and_signals = 0x3D0F00, 0x1200011, 0x4111  # pthread_create, fork, vfork
    assert [errno_of(program, architecture, numbers["clone"], flags) for flags in threads_and_signals] == [0, 0, 0]


@pytest.mark.parametrize("level", ["namespaces", "plain"])
def test_calls_of_another_architecture_are_refused(level):
    program = seccomp.build_filter(has_namespaces=level == "namespaces", machine="x86_64")
    i386, x32 = 0x40000003, 0x40000000
    for number in range(600):
        assert errno_of(program, i386, number, UNIX) == errno.EPERM
        assert errno_of(program, ARCHITECTURES["x86_64"], number | x32, UNIX) == errno.EPERM
    assert errno_of(program, ARCHITECTURES["aarch64"], 0) == errno.EPERM


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_call_numbers_are_those_of_libseccomp(machine):
    try:
        resolve = ctypes.CDLL("libseccomp.so.2").seccomp_syscall_resolve_name_arch
    except OSError:
        pytest.skip("libseccomp is not installed (apt-get install libseccomp2)")
    resolve.argtypes = (ctypes.c_uint32, ctypes.c_char_p)
    known = {name: resolve(ARCHITECTURES[machine], name.encode()) for name in seccomp.SYSTEM_CALLS}
    unknown = {name for name, number in known.items() if number == -1}
    assert unknown <= {"open_tree_attr"}  # Linux 6.15
    assert {name: number for name, number in numbers_on(machine).items() if name not in unknown} == {
        name: number for name, number in known.items() if name not in unknown
    }


def test_an_unknown_architecture_is_a_missing_protection(monkeypatch):
    monkeypatch.setattr(seccomp.platform, "machine", lambda: "riscv64")
    for level in ("namespaces", "plain"):
        assert any("every system call" in each for each in isolation.missing_protections(level))
        assert errno_of(seccomp.build_filter(has_namespaces=level == "namespaces"), 0, 41, VSOCK) == 0


def has_capability(number: int) -> bool:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff:"))
    return bool(int(line.split()[1], 16) >> number & 1)


SYS_RESOURCE = 24


@pytest.mark.parametrize("level", ISOLATIONS)
async def test_the_kernel_kills_guests_first_whatever_they_write(level):
    if level == "namespaces" and not (guest_user.guest_uids() and has_capability(SYS_RESOURCE)):
        pytest.skip("only a process with CAP_SYS_RESOURCE can set a lower bound")
    async with embedded(SMALL, isolation_level=level) as desktop:
        lower = "for each in 999 0 -1000; do echo $each >/proc/self/oom_score_adj; done; cat /proc/self/oom_score_adj"
        assert (await desktop.run(["sh", "-c", lower])).stdout == b"1000\n"


RAISE = """
import ctypes, os
def attempt(function, *arguments):
    try:
        function(*arguments)
    except OSError as error:
        return error.errno
    return 0
print(attempt(os.setpriority, os.PRIO_PROCESS, 0, -5))
print(attempt(os.sched_setscheduler, 0, os.SCHED_RR, os.sched_param(1)))
before = os.nice(0)
print(attempt(os.nice, 5), os.nice(0) - before)
"""


@pytest.mark.parametrize("level", ISOLATIONS)
async def test_guests_cannot_raise_their_priority(level):
    limits = {number: resource.getrlimit(number) for number in (resource.RLIMIT_NICE, resource.RLIMIT_RTPRIO)}
    if has_capability(SYS_RESOURCE):  # as on a machine for audio work
        for number in limits:
            resource.setrlimit(number, (40, 40))
    try:
        async with embedded(SMALL, isolation_level=level) as desktop:
            done = await desktop.run(["python3", "-c", RAISE])
    finally:
        for number, values in limits.items():
            resource.setrlimit(number, values)
    raised, made_real_time, lowered = done.stdout.decode().splitlines()
    assert {int(raised), int(made_real_time)} <= {errno.EPERM, errno.EACCES}
    assert lowered == "0 5"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can raise a priority")
async def test_programs_of_the_window_manager_have_the_usual_priority():
    async with embedded(SMALL) as desktop:
        config = ".config/openbox/rc.xml"
        action = (
            '<keybind key="C-A-p"><action name="Execute">'
            "<command>sh -c 'nice >made; mv made priority'</command></action></keybind>"
        )
        text = (await desktop.pull(config)).decode()
        assert "</keyboard>" in text
        await desktop.push(config, text.replace("</keyboard>", f"{action}</keyboard>").encode())
        await desktop.run(["openbox", "--reconfigure"])
        manager = desktop._session.manager
        assert os.getpriority(os.PRIO_PROCESS, manager) == processes.HIGH_PRIORITY_NICE
        for number in range(20):
            await desktop.perform([Key(("ctrl", "alt", "p"))], action_id=f"start {number}")
            if "priority" in await desktop.listdir("."):
                break
        assert await desktop.pull("priority") == b"0\n"


@pytest.mark.parametrize("level", ISOLATIONS)
async def test_guests_have_no_capabilities(level):
    async with embedded(SMALL, isolation_level=level) as desktop:
        said = (await desktop.run(["cat", "/proc/self/status"])).stdout.decode()
    fields = dict(line.split(":\t") for line in said.splitlines() if line.startswith(("Cap", "Seccomp:", "NoNewPrivs")))
    assert {value for name, value in fields.items() if name.startswith("Cap")} == {"0" * 16}
    assert (fields["NoNewPrivs"], fields["Seccomp"]) == ("1", "2")
