"""Random, reserved ports for AReaL's workers.

AReaL 1.0.4 draws ports from `random`, which its trainer seeds: every run of an experiment draws the same ones. It
checks that they are free and starts the worker, which listens only after its imports, many seconds later.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Sequence

from deskhand.errors import ConfigError
from deskhand.integrations.areal import installed_areal


def use_random_ports() -> None:
    """Let AReaL draw its ports from the operating system's randomness, in this process. Raises `ConfigError`."""
    network = installed_areal.require_areal("utils.network", "a run")
    if getattr(network, "random", None) is None:
        raise ConfigError(
            f"AReaL {installed_areal.version()} draws its ports otherwise than the version that is known; "
            f"{installed_areal.INSTALL_HINT}"
        )
    vars(network)["random"] = random.SystemRandom()


def hold_port(arguments: Sequence[str]) -> socket.socket | None:
    """Bind the port that `--port` names, without listening. Return None without `--port`.

    Other processes that probe the port find it in use. A server that sets `SO_REUSEADDR`, as AReaL's does, can still
    bind it. Raises `OSError` if the port is in use; AReaL then chooses another one.
    """
    if "--port" not in arguments[:-1]:
        return None
    held = socket.socket()
    try:
        held.bind(("", int(arguments[arguments.index("--port") + 1])))
    except OSError:
        held.close()
        raise
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # after `bind`, so that binding a port in use fails
    return held
