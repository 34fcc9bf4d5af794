"""Reports an environment's packages for AReaL as one line of JSON: `python -m
deskhand.integrations.areal.environment_probe [REQUIREMENT ...]`.

Run by `doctor` with the environment's own Python and the environment variables of a run. It imports what the processes
of a run import; the requirements are those of Deskhand, compared with what is installed.
"""

from __future__ import annotations

import importlib
import json
import shutil
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from deskhand.integrations.areal import installed_areal

PACKAGES = ("litellm", "sglang", "vllm", "flash-attn", "kernels", "pydrive", "pydrive2", "desktop-env")
SHOWN = ("areal", "deskhand", "torch", "transformers", "openai", "peft", "huggingface_hub", "numpy")
"""Modules whose versions and folders tell where a run takes its packages from."""
PROXY = "areal.experimental.openai.proxy.proxy_rollout_server"
"""Module that a forked proxy worker imports before it responds."""
RUN = (
    "areal.trainer.rl_trainer",
    "areal.api.cli_args",
    "areal.engine.fsdp_engine",
    "areal.engine.sglang_remote",
    "areal.infra.rpc.rpc_server",
    "areal.infra.scheduler.local",
    "areal.utils.saver",
    "datasets",
    "deskhand.integrations.areal.entrypoint",
    "deskhand.integrations.areal.workflow",
    "deskhand.integrations.areal.agent",
    "deskhand.integrations.areal.patches.model",
)
"""Modules that the launcher and the workers of a run import."""


def version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def import_error(*modules: str) -> str:
    """Return why the first of these modules that cannot be imported cannot, "" if all can."""
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception as error:  # whatever its own imports raise
            return f"{module}: {type(error).__name__}: {error}"
    return ""


def locations() -> dict[str, list[str]]:
    """Return version and folder of each module of `SHOWN` that was imported."""
    found = {}
    for name in SHOWN:
        module = sys.modules.get(name)
        if module is not None and module.__file__:
            number = installed_areal.find_version() if name == "areal" else version(name)
            found[name] = [number or "no metadata", str(Path(module.__file__).parents[1])]
    return found


def unmet(requirements: Sequence[str]) -> list[str]:
    """Return each requirement that the installed packages do not meet, with what is installed."""
    from packaging.requirements import Requirement

    found = []
    for requirement in map(Requirement, requirements):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        installed = version(requirement.name)
        if installed is None or not requirement.specifier.contains(installed, prereleases=True):
            found.append(f"{requirement.name}{requirement.specifier} (installed: {installed or 'none'})")
    return found


def gpus() -> int:
    """Return the number of GPUs that torch can use, 0 without torch."""
    try:
        return int(importlib.import_module("torch").cuda.device_count())
    except ImportError:
        return 0


def main() -> None:
    start = time.monotonic()
    found: dict[str, object] = {name: version(name) for name in PACKAGES}
    found |= {"areal": installed_areal.find_version()}
    found |= {"proxy": import_error(PROXY), "import_s": time.monotonic() - start}
    found |= {"run": import_error(*RUN), "gpus": gpus(), "locations": locations(), "unmet": unmet(sys.argv[1:])}
    found |= {"images": not found["proxy"] and installed_areal.exports_images("sglang")}
    found |= {"python3": shutil.which("python3"), "executable": sys.executable}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
