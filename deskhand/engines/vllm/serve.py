"""Runs vLLM's server in vLLM's own environment: `PYTHON serve.py ARGUMENTS`. Invariant: it ends when whoever started it ends.

Nothing of Deskhand is imported here: the environment has only what vLLM needs. The starter holds the other end of standard
input; when that closes, this kills its whole process group, the engine's workers included.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    # Python put the folder of this file first on the path, where its modules would hide packages of the same names.
    _HERE = os.path.realpath(os.path.dirname(__file__))
    sys.path[:] = [folder for folder in sys.path if os.path.realpath(folder) != _HERE]

import runpy
import signal
import threading


def _end_with_starter() -> None:
    while os.read(0, 4096):
        pass
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    threading.Thread(target=_end_with_starter, daemon=True).start()
    sys.argv[0] = "vllm-server"
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=False)
