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
    """Let AReaL draw its ports from the operating system's randomness, in this process. Raises `ConfigError` where it
    cannot."""
    network = installed_areal.require_areal("utils.network", "a run")
    if getattr(network, "random", None) is None:
        raise ConfigError(
            f"AReaL {installed_areal.version()} draws its ports otherwise than the version that is known; "
            f"{installed_areal.INSTALL_HINT}"
        )
    vars(network)["random"] = random.SystemRandom()


def hold_port(arguments: Sequence[str]) -> socket.socket | None:
    """Bind the port that `--port` names, without listening: whoever probes finds it taken, and a server that may reuse
    addresses, as AReaL's does, binds it all the same. None without a port. Raises `OSError` where it is taken already,
    which AReaL answers with another port."""
    if "--port" not in arguments[:-1]:
        return None
    held = socket.socket()
    try:
        held.bind(("", int(arguments[arguments.index("--port") + 1])))
    except OSError:
        held.close()
        raise
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # after it was bound: nobody shared it at that moment
    return held
