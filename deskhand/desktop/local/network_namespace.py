"""Sockets of a box's network, held by the host. Invariant: what uses them runs outside, where no guest reaches it.

A process of its own enters the namespaces, as that cannot be undone and only one thread may do it; it sends the sockets back and
ends. A socket stays in the network in which it was made.
The numbers are those of linux/sched.h and linux/nsfs.h.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import subprocess
import sys
from pathlib import Path

from deskhand.errors import InfrastructureError

_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000
_OWNER_OF_NAMESPACE = 0xB701
TIMEOUT_S = 10.0


def listener(pid: int, port: int, uid: int | None) -> socket.socket:
    """A listener on 127.0.0.1:`port` of the network that process `pid` is in; `uid` (None: this user) owns that network.

    Raises `InfrastructureError` when it cannot be made.
    """
    return _made(pid, port, 1, uid)[0]


def sockets(pid: int, count: int, uid: int | None) -> list[socket.socket]:
    """`count` TCP sockets of that network that are not connected, 64 at most. Raises `InfrastructureError`."""
    return _made(pid, 0, count, uid)


def _made(pid: int, port: int, count: int, uid: int | None) -> list[socket.socket]:
    """Listeners on `port`, or sockets that do nothing yet with port 0."""
    ours, theirs = socket.socketpair()
    package_root = Path(__file__).resolve().parents[3]
    program = f"import sys; sys.path.insert(0, {str(package_root)!r}); from deskhand.desktop.local.network_namespace import main; main()"
    command = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        program,
        str(pid),
        str(port),
        str(count),
        str(theirs.fileno()),
        str(os.getuid() if uid is None else uid),
    ]
    with ours, theirs:
        try:
            done = subprocess.run(
                command,
                pass_fds=(theirs.fileno(),),
                capture_output=True,
                text=True,
                check=False,
                timeout=TIMEOUT_S,
                env={},
            )
        except subprocess.TimeoutExpired:
            raise InfrastructureError(f"no socket in the desktop's network within {TIMEOUT_S:g} s") from None
        if done.returncode == 0:
            _, descriptors, _, _ = socket.recv_fds(ours, 1, count)
            if len(descriptors) == count:
                return [socket.socket(fileno=descriptor) for descriptor in descriptors]
    lines = done.stderr.strip().splitlines() or ["no message"]
    raise InfrastructureError(f"no socket in the desktop's network: {lines[-1]}")


def main() -> None:
    """`argv`: a process of the box, a port or 0, how many sockets, a descriptor to send them to, the user that owns the box."""
    pid, port, count, reply, uid = (int(word) for word in sys.argv[1:6])
    libc = ctypes.CDLL(None, use_errno=True)

    def enter(descriptor: int, kind: int) -> None:
        if libc.setns(descriptor, kind) != 0:
            raise OSError(ctypes.get_errno(), f"setns: {os.strerror(ctypes.get_errno())}")

    network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    try:
        enter(network, _NEW_NETWORK)
    except PermissionError:  # not allowed from here: as the user that made the namespaces it is
        os.setresuid(uid, uid, uid)
        enter(fcntl.ioctl(network, _OWNER_OF_NAMESPACE), _NEW_USER)
        enter(network, _NEW_NETWORK)
    made = [socket.socket() for _ in range(count)]
    for each in made if port else []:
        each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        each.bind(("127.0.0.1", port))
        each.listen(64)
    socket.send_fds(socket.socket(fileno=reply), [b"."], [each.fileno() for each in made])
