"""A Ray cluster for AReaL: connecting to it, and what every node must have before a worker starts.

Used by `entrypoint` for `scheduler.type: ray`. AReaL's Ray workers run `RayRPCServer` whatever `scheduling_spec[].cmd`
says, so Deskhand's patches come in by Ray's `worker_process_setup_hook`, which every worker process of the job runs.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from deskhand.errors import ConfigError, InfrastructureError
from deskhand.integrations.areal import installed_areal
from deskhand.integrations.areal.dataset import task_for
from deskhand.integrations.areal.settings import WorkflowSettings
from deskhand.models.load import check_checkpoint

HOOK = "deskhand.integrations.areal.worker.patch_process"
NODE_TIMEOUT_S = 180.0
"""A node's first process imports torch, maybe over a network file system."""


def connect(num_nodes: int) -> None:
    """Connect to the running cluster; a run on one node may start its own. Raises `ConfigError`."""
    ray = import_module("ray")
    environment = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    runtime = {"worker_process_setup_hook": HOOK, "env_vars": environment}
    try:
        ray.init(address=os.environ.get("RAY_ADDRESS") or "auto", runtime_env=runtime)
    except (ConnectionError, TimeoutError) as error:
        if num_nodes > 1 or os.environ.get("RAY_ADDRESS"):
            why = " ".join(str(error).split())[:200]
            raise ConfigError(
                f"scheduler.type ray: no Ray cluster answers here ({why}); run ray start --head --port 6379 on this "
                "node and ray start --address THIS_NODE:6379 on the others"
            ) from None
        ray.init(runtime_env=runtime, include_dashboard=False)


def check_nodes(num_nodes: int, folder: Path, settings: WorkflowSettings, rows: Sequence[Mapping[str, Any]]) -> None:
    """Raise `ConfigError` with a line for each node that could not run a worker. Call `connect` first."""
    ray = import_module("ray")
    strategies = import_module("ray.util.scheduling_strategies")
    nodes = sorted((node for node in ray.nodes() if node["Alive"]), key=lambda node: node["NodeManagerAddress"])
    if len(nodes) < num_nodes:
        names = ", ".join(node["NodeManagerAddress"] for node in nodes)
        raise ConfigError(
            f"cluster.n_nodes {num_nodes}: the Ray cluster has {len(nodes)} ({names}); run ray start --address "
            "FIRST_NODE:6379 on the missing ones"
        )
    token = folder / f".seen-{secrets.token_hex(8)}"
    token.touch()
    look = ray.remote(problems_here)
    try:
        asked = {
            node["NodeManagerAddress"]: look.options(
                num_cpus=0, scheduling_strategy=strategies.NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            ).remote(str(token), settings.model_dump(mode="json"), list(rows), versions())
            for node in nodes
        }
        found = [f"node {name}: {text}" for name, answer in asked.items() for text in _answer(ray, answer)]
    finally:
        token.unlink(missing_ok=True)
    if found:
        raise ConfigError("; ".join(found))


def check_devices() -> None:
    """Raise `ConfigError` if this AReaL's scheduler refuses the devices of the cluster. Call `connect` first.

    AReaL 1.0.4 takes nodes without GPUs; 2.x raises a `RuntimeError` while the trainer is made.
    """
    scheduler = installed_areal.require_areal("infra.scheduler.ray", "scheduler.type ray")
    supported = getattr(scheduler, "DEVICE_CONTROL_ENV_VARS", None)
    if supported is not None and (found := scheduler.ray_resource_type()) not in supported:
        raise ConfigError(
            f"scheduler.type ray: AReaL {installed_areal.version()} refuses a Ray cluster with {found} only, it takes "
            f"{', '.join(supported)}; add nodes with such devices, use AReaL 1.0.4, or set scheduler.type=local"
        )


def _answer(ray: Any, answer: Any) -> list[str]:
    try:
        return ray.get(answer, timeout=NODE_TIMEOUT_S)
    except Exception as error:  # Ray has many: the node is gone, Deskhand cannot be imported there, ...
        text = " ".join(str(error).split())
        return [f"cannot run Deskhand ({type(error).__name__}: {text[-300:]}); install it there under the same path"]


def versions() -> dict[str, str]:
    """Return the versions here of what must be equal on all nodes."""
    return {name: metadata.version(name) for name in ("areal", "torch", "transformers", "ray")}


def problems_here(
    token: str, settings: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], expected: Mapping[str, str]
) -> list[str]:
    """Return why this node could not run a worker, one line each with a fix. Runs on every node."""
    from deskhand.integrations.areal.entrypoint import ask_server

    own = WorkflowSettings.of(settings, {})
    found = [
        f"{name} {version} here, {expected[name]} on the first node; install the same"
        for name, version in versions().items()
        if version != expected[name]
    ]
    if not Path(token).is_file():
        found.append(
            f"cluster.fileroot: {Path(token).parent} is not the first node's folder; use storage that all nodes mount"
        )
    if own.desktops.server_url is not None:
        found += _problem(ask_server, own.desktops)
    found += _problem(check_checkpoint, own.model)
    for row in rows:
        if problem := _problem(task_for, own, row):
            return found + problem
    return found


def _problem(check: Any, *arguments: Any) -> list[str]:
    try:
        check(*arguments)
    except (ConfigError, InfrastructureError) as error:
        return [str(error)]
    return []
