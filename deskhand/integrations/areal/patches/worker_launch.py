"""Patches of AReaL 1.0.4 in the launcher process. A function is replaced only if its signature is the known one.

- A forked worker may take `FORK_READY_S` instead of a minute to import torch.
- Workers forked from Deskhand's worker are Deskhand's, too (AReaL starts its own), except proxies.
- A worker that exits before it is ready stops the run; AReaL would poll its port forever, and accept any program there.
- Slurm's scheduler reads `container_type`, `mount`, `srun_additional_args` and, without a container, `env_vars` of
  `scheduling_spec`; AReaL always uses an apptainer image with /storage.
- Checkpoints are saved without triton: AReaL imports Archon, whose kernels need it, so every CPU run would fail at its
  first checkpoint.
"""

from __future__ import annotations

import inspect
import shlex
from dataclasses import replace
from typing import Any

from deskhand.errors import ConfigError
from deskhand.integrations.areal import installed_areal
from deskhand.integrations.areal.validate_budget import WORKER

FORK_READY_S = 600.0
_KNOWN_FORK_READY_S = 60


def apply_launcher_patches() -> None:
    """All of it. Raises `ConfigError` for a version that is not known."""
    allow_slow_forks()
    fork_our_workers()
    notice_dead_workers()
    read_slurm_settings()
    save_without_archon()


def allow_slow_forks(seconds: float = FORK_READY_S) -> bool:
    """Let forked workers take their time; an unknown version of AReaL is left as it is (False)."""
    scheduler = installed_areal.require_areal("infra.scheduler.local", "a run").LocalScheduler
    function = getattr(scheduler, "_wait_for_fork_ready", None)
    if function is None or inspect.signature(function).parameters.get("timeout") is None:
        return False
    if function.__defaults__ != (_KNOWN_FORK_READY_S,):
        return False
    function.__defaults__ = (seconds,)
    return True


def fork_our_workers() -> None:
    """Have a reference model that is colocated with the actor, say, computed by `areal.worker`."""
    for module, name in (("local", "LocalScheduler"), ("slurm", "SlurmScheduler")):
        scheduler = getattr(installed_areal.require_areal(f"infra.scheduler.{module}", "a run"), name)
        fork = _known(scheduler, "fork_workers", ["self", "role", "target_role", "command"])

        def forked(self: Any, role: str, target_role: str, command: str | None = None, fork: Any = fork) -> Any:
            return fork(self, role, target_role, command or WORKER)

        scheduler.fork_workers = forked


def notice_dead_workers() -> None:
    """Have AReaL's local scheduler raise its own error for a worker that ended instead of waiting for it."""
    scheduler = installed_areal.require_areal("infra.scheduler.local", "a run").LocalScheduler
    failure = installed_areal.require_areal("infra.scheduler.exceptions", "a run").WorkerFailedError
    is_ready = _known(scheduler, "_is_worker_ready", ["self", "worker_info"])

    def is_alive_and_ready(self: Any, worker_info: Any) -> bool:
        process = worker_info.process  # None for a forked one
        if process is not None and process.poll() is not None:
            raise failure(worker_info.worker.id, process.returncode, self._read_log_tail(worker_info.log_file))
        return is_ready(self, worker_info)

    scheduler._is_worker_ready = is_alive_and_ready


_SLURM_SCRIPT = [
    "self", "role", "replicas", "nodes", "total_gpus", "cpus_per_task", "mem_per_task", "schedulings", "nodelist",
    "exclude",
]  # fmt: skip


def read_slurm_settings() -> None:
    """Have Slurm's scheduler start workers as `scheduling_spec` of their role says."""
    scheduler = installed_areal.require_areal("infra.scheduler.slurm", "a run").SlurmScheduler
    generate = _known(scheduler, "_generate_sbatch_script", _SLURM_SCRIPT)

    def generate_as_told(
        self: Any, role: str, replicas: int, nodes: int, total_gpus: int, cpus_per_task: int, mem_per_task: int,
        schedulings: list[Any], nodelist: str | None, exclude: str | None,
    ) -> str:  # fmt: skip
        spec = schedulings[0]
        self.container_type, self.container_mounts = spec.container_type, spec.mount
        self.srun_additional_args = spec.srun_additional_args
        if spec.container_type != "apptainer" and spec.env_vars:
            exports = [f"export {name}={shlex.quote(str(value))}" for name, value in spec.env_vars.items()]
            schedulings = [replace(spec, additional_bash_cmds=[*exports, *(spec.additional_bash_cmds or [])])]
        return generate(
            self, role, replicas, nodes, total_gpus, cpus_per_task, mem_per_task, schedulings, nodelist, exclude
        )

    scheduler._generate_sbatch_script = generate_as_told


def save_without_archon() -> None:
    """Where Archon cannot be imported, save checkpoints as those of other engines."""
    saver = installed_areal.require_areal("utils.saver", "a run").Saver
    asks = _known(saver, "_should_use_async", ["self", "engine"])

    def asks_if_it_can(self: Any, engine: Any) -> bool:
        try:
            return asks(self, engine)
        except ImportError:
            return False

    saver._should_use_async = asks_if_it_can


def _known(owner: Any, name: str, parameters: list[str]) -> Any:
    function = getattr(owner, name, None)
    if function is None or list(inspect.signature(function).parameters) != parameters:
        raise ConfigError(
            f"{name} of AReaL {installed_areal.version()} is not that of the version that is known; "
            f"{installed_areal.INSTALL_HINT}"
        )
    return function
