"""AReaL's worker with four patches: attention between packed rows on CPU, image positions of Qwen2.5-VL and of models
with LoRA, and a reserved port.

In an experiment: `scheduling_spec: [{cmd: python3 -m deskhand.integrations.areal.worker}]` instead of AReaL's
`areal.infra.rpc.rpc_server`, which it then runs with the same arguments. Under Ray, `ray_cluster` lets AReaL's own
workers call `patch_process`.
"""

from __future__ import annotations

import runpy
import sys

from deskhand.integrations.areal.patches import ports

SERVER = "areal.infra.rpc.rpc_server"


def patch_process() -> None:
    """Apply all patches to this process. Ray's workers, which have no command of their own, call it as they start."""
    from deskhand.integrations.areal.patches.model import patch_lora_positions, patch_rope_positions
    from deskhand.models.packed_attention import separate_packed_rows

    separate_packed_rows()  # AReaL packs rows and relies on FlashAttention to separate them
    patch_rope_positions()
    patch_lora_positions()
    ports.use_random_ports()


def main() -> None:
    held = ports.hold_port(sys.argv)
    patch_process()
    try:
        runpy.run_module(SERVER, run_name="__main__", alter_sys=True)
    finally:
        if held is not None:
            held.close()


if __name__ == "__main__":
    main()
