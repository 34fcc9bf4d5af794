"""What an environment has of what AReaL needs, as one line of JSON: `python -m deskhand.integrations.areal.environment_probe`, run by its own Python."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
import time
from importlib import metadata

PACKAGES = ("areal", "litellm", "sglang", "vllm", "flash-attn", "pydrive", "pydrive2", "desktop-env", "torch")
PROXY = "areal.experimental.openai.proxy.proxy_rollout_server"
"""What a forked proxy worker imports before it answers."""


def version(name: str) -> str | None:
    """The installed version of a distribution."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def import_error(module: str) -> str:
    """Why a module cannot be imported; empty when it can."""
    try:
        importlib.import_module(module)
    except Exception as error:  # whatever its own imports raise
        return f"{type(error).__name__}: {error}"
    return ""


def gpus() -> int:
    """GPUs that torch can use; 0 where there is no torch."""
    try:
        return int(importlib.import_module("torch").cuda.device_count())
    except ImportError:
        return 0


def main() -> None:
    """The program."""
    began = time.monotonic()
    said: dict[str, object] = {name: version(name) for name in PACKAGES}
    said |= {"proxy": import_error(PROXY), "import_s": time.monotonic() - began, "gpus": gpus()}
    said |= {"python3": shutil.which("python3"), "executable": sys.executable}
    print(json.dumps(said))


if __name__ == "__main__":
    main()
