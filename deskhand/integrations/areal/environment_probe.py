"""Reports an environment's packages for AReaL as one line of JSON: `python -m
deskhand.integrations.areal.environment_probe`.

Run by `doctor` with the environment's own Python.
"""

from __future__ import annotations

import importlib
import json
import shutil
import sys
import time
from importlib import metadata

PACKAGES = ("areal", "litellm", "sglang", "vllm", "flash-attn", "pydrive", "pydrive2", "desktop-env", "torch")
PROXY = "areal.experimental.openai.proxy.proxy_rollout_server"
"""Module that a forked proxy worker imports before it responds."""


def version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def import_error(module: str) -> str:
    """Return why a module cannot be imported, "" if it can."""
    try:
        importlib.import_module(module)
    except Exception as error:  # whatever its own imports raise
        return f"{type(error).__name__}: {error}"
    return ""


def gpus() -> int:
    """Return the number of GPUs that torch can use, 0 without torch."""
    try:
        return int(importlib.import_module("torch").cuda.device_count())
    except ImportError:
        return 0


def main() -> None:
    start = time.monotonic()
    found: dict[str, object] = {name: version(name) for name in PACKAGES}
    found |= {"proxy": import_error(PROXY), "import_s": time.monotonic() - start, "gpus": gpus()}
    found |= {"python3": shutil.which("python3"), "executable": sys.executable}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
