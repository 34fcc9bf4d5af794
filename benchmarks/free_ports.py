"""Ports for programs that cannot be given a bound socket. Invariant: no connection of this machine is given one of them by chance
while such a program starts, and two benchmarks do not draw the same ones because they have the same seed."""

from __future__ import annotations

import contextlib
import random
import socket

RANGE = range(20_000, 30_000)
"""Below those that Linux gives to connections (net.ipv4.ip_local_port_range begins at 32768)."""
_chance = random.SystemRandom()


def free_port(count: int = 1) -> int:
    """The first of `count` ports of the loopback address in a row on which nobody listens."""
    while True:
        first = _chance.choice(RANGE)
        with contextlib.ExitStack() as held, contextlib.suppress(OSError):
            for number in range(count):
                held.enter_context(socket.socket()).bind(("127.0.0.1", first + number))
            return first
