"""AReaL's worker with two mends for its trainer: attention that keeps packed rows apart on a processor, and pictures of Qwen2.5-VL
placed as servers place them. Invariant: nothing else differs; what it is told goes to AReaL's own program.

In an experiment: `scheduling_spec: [{cmd: python3 -m deskhand.areal.worker}]` in place of AReaL's `areal.infra.rpc.rpc_server`.
"""

from __future__ import annotations

import runpy

SERVER = "areal.infra.rpc.rpc_server"


def main() -> None:
    """The program."""
    from deskhand.areal.attention import install
    from deskhand.areal.positions import mend

    install()
    mend()
    runpy.run_module(SERVER, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
