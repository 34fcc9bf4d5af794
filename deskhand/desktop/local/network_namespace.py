"""Sockets in a jail's network namespace, used by the host.

A helper process enters the namespaces, because that cannot be undone, sends the sockets back and exits. A socket stays
in the network in which it was created. Numbers are from linux/sched.h and linux/nsfs.h.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import subprocess
import sys

from deskhand.desktop.local import processes
from deskhand.errors import InfrastructureError

_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000
_OWNER_OF_NAMESPACE = 0xB701
TIMEOUT_S = 10.0


def open_sockets(pid: int, count: int, uid: int | None, port: int = 0) -> list[socket.socket]:
    """Return up to 64 unconnected TCP sockets of the network of process `pid`, owned by `uid` (None: this user).

    With a `port`, they are listeners on 127.0.0.1. Raises `InfrastructureError`.
    """
    receiver, sender = socket.socketpair()
    arguments = (pid, port, count, sender.fileno(), os.getuid() if uid is None else uid)
    command = processes.python_command("deskhand.desktop.local.network_namespace", *map(str, arguments))
    with receiver, sender:
        try:
            pipes = {"pass_fds": (sender.fileno(),), "capture_output": True, "text": True}
            result = subprocess.run(command, **pipes, check=False, timeout=TIMEOUT_S, env={})
        except subprocess.TimeoutExpired:
            raise InfrastructureError(f"no socket in the guest network within {TIMEOUT_S:g} s") from None
        if result.returncode == 0:
            _, descriptors, _, _ = socket.recv_fds(receiver, 1, count)
            if len(descriptors) == count:
                return [socket.socket(fileno=descriptor) for descriptor in descriptors]
    lines = result.stderr.strip().splitlines() or ["no message"]
    raise InfrastructureError(f"no socket in the guest network: {lines[-1]}")


def main() -> None:
    """`argv`: a process in the jail, a port or 0, number of sockets, reply descriptor, user id of the jail."""
    pid, port, count, reply, uid = (int(word) for word in sys.argv[1:6])
    libc = ctypes.CDLL(None, use_errno=True)

    def enter(descriptor: int, kind: int) -> None:
        if libc.setns(descriptor, kind) != 0:
            raise OSError(ctypes.get_errno(), f"setns: {os.strerror(ctypes.get_errno())}")

    network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    try:
        enter(network, _NEW_NETWORK)
    except PermissionError:  # retry as the user that owns the namespaces
        os.setresuid(uid, uid, uid)
        enter(fcntl.ioctl(network, _OWNER_OF_NAMESPACE), _NEW_USER)
        enter(network, _NEW_NETWORK)
    created = [socket.socket() for _ in range(count)]
    for one in created if port else []:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind(("127.0.0.1", port))
        one.listen(64)
    socket.send_fds(socket.socket(fileno=reply), [b"."], [one.fileno() for one in created])
