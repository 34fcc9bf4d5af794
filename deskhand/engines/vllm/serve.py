"""Run vLLM's server in vLLM's own environment: `PYTHON serve.py ARGUMENTS`. Started by `launch_vllm`.

It imports nothing from Deskhand, because the environment has only vLLM. When standard input closes, because the parent
process ended, it kills its process group, including the engine's workers.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    # Remove this file's folder from the import path, where its modules would hide packages.
    _HERE = os.path.realpath(os.path.dirname(__file__))
    sys.path[:] = [folder for folder in sys.path if os.path.realpath(folder) != _HERE]

import runpy
import signal
import threading


def _exit_with_parent() -> None:
    while os.read(0, 4096):
        pass
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    sys.argv[0] = "vllm-server"
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=False)
