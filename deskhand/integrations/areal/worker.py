"""AReaL's worker with three patches: attention between packed rows on CPU, image positions of Qwen2.5-VL, and a
reserved port.

In an experiment: `scheduling_spec: [{cmd: python3 -m deskhand.integrations.areal.worker}]` instead of AReaL's
`areal.infra.rpc.rpc_server`, which it then runs with the same arguments.
"""

from __future__ import annotations

import runpy
import sys

from deskhand.integrations.areal.patches import ports

SERVER = "areal.infra.rpc.rpc_server"


def main() -> None:
    held = ports.hold_port(sys.argv)

    from deskhand.integrations.areal.patches.model import patch_attention, patch_rope_positions

    patch_attention()
    patch_rope_positions()
    ports.use_random_ports()
    try:
        runpy.run_module(SERVER, run_name="__main__", alter_sys=True)
    finally:
        if held is not None:
            held.close()


if __name__ == "__main__":
    main()
