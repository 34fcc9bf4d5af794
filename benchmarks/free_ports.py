"""Free ports for programs that cannot be given a bound socket. The range lies below Linux' ephemeral ports."""

from __future__ import annotations

import contextlib
import random
import socket

RANGE = range(20_000, 30_000)
"""Below those that Linux gives to connections (net.ipv4.ip_local_port_range begins at 32768)."""
_chance = random.SystemRandom()


def free_port(count: int = 1) -> int:
    """Return the first of `count` consecutive free ports on the loopback address."""
    while True:
        first = _chance.choice(RANGE)
        with contextlib.ExitStack() as held, contextlib.suppress(OSError):
            for number in range(count):
                held.enter_context(socket.socket()).bind(("127.0.0.1", first + number))
            return first
