"""AReaL's worker with three mends: attention that keeps packed rows apart on a processor, pictures of Qwen2.5-VL placed as servers
place them, and a port that nobody takes while the worker is imported. Invariant: nothing else differs; what it is told goes to
AReaL's own program.

In an experiment: `scheduling_spec: [{cmd: python3 -m deskhand.integrations.areal.worker}]` in place of AReaL's `areal.infra.rpc.rpc_server`.
"""

from __future__ import annotations

import runpy
import sys

from deskhand.integrations.areal.patches import ports

SERVER = "areal.infra.rpc.rpc_server"


def main() -> None:
    """The program."""
    held = ports.hold_port(sys.argv)

    from deskhand.integrations.areal.patches.rope import patch_rope_positions
    from deskhand.integrations.areal.patches.sdpa import install

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
