"""AReaL's worker with three mends: attention that keeps packed rows apart on a processor, pictures of Qwen2.5-VL placed as servers
place them, and a port that nobody takes while the worker is imported. Invariant: nothing else differs; what it is told goes to
AReaL's own program.

In an experiment: `scheduling_spec: [{cmd: python3 -m deskhand.areal.worker}]` in place of AReaL's `areal.infra.rpc.rpc_server`.
"""

from __future__ import annotations

import runpy
import sys

from deskhand.areal import ports

SERVER = "areal.infra.rpc.rpc_server"


def main() -> None:
    """The program."""
    held = ports.hold_port(sys.argv)

    from deskhand.areal.attention import install
    from deskhand.areal.positions import patch_rope_positions

    install()
    patch_rope_positions()
    ports.use_random_ports()
    try:
        runpy.run_module(SERVER, run_name="__main__", alter_sys=True)
    finally:
        if held is not None:
            held.close()


if __name__ == "__main__":
    main()
