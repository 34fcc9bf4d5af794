"""AReaL's `PPOTrainer` with what Deskhand changes: used by `entrypoint`.

Workers have more time to start, inference servers may run already, and the statistics of each step go to a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from deskhand.errors import ConfigError
from deskhand.integrations.areal import installed_areal
from deskhand.integrations.areal.worker_runs import add_statistics

WORKER_TIMEOUT_S = 300.0
"""Most time for a worker to start. AReaL's 30 s (schedulers `local` and `ray`) do not suffice where the imports of a
worker, torch and transformers among them, wait for a busy machine or a network file system."""
ADAPTER_TIMEOUT_S = 300.0


def trainer_of(servers: Sequence[str]) -> type:
    """Return AReaL's `PPOTrainer` whose workers have `WORKER_TIMEOUT_S` to start.

    Where `servers` (host:port) are given, it starts no inference servers but uses these.
    """
    trainer = installed_areal.require_areal("trainer.rl_trainer", "a run").PPOTrainer

    class PatientTrainer(trainer):
        def _init_scheduler(self) -> Any:
            scheduler = super()._init_scheduler()
            scheduler.startup_timeout = max(scheduler.startup_timeout, WORKER_TIMEOUT_S)
            return scheduler

    return _served(PatientTrainer, servers) if servers else PatientTrainer


def _served(base: type, servers: Sequence[str]) -> type:
    engines = installed_areal.require_areal("engine.sglang_remote", "a run")
    structures = installed_areal.require_areal("api.io_struct", "a run")
    allocation = installed_areal.require_areal("api.cli_args", "a run")
    if wrong := [address for address in servers if not address.rpartition(":")[2].isdecimal()]:
        raise ConfigError(f"deskhand.servers: expected host:port, got {wrong[0]!r}")
    located = [
        structures.LocalInfServerInfo(host=host, port=int(port), process=None)
        for host, _, port in (address.rpartition(":") for address in servers)
    ]

    class ServedTrainer(base):
        def _init_rollout(self, rollout_config: Any, is_eval: bool = False, lora_path: str | None = None) -> Any:
            if is_eval and self.config.deskhand.valid is None:
                return None  # AReaL's trainer checks for it; the worker would be idle
            config = deepcopy(rollout_config)
            if is_eval:
                config.max_head_offpolicyness = int(1e12)
                config.scheduling_strategy = allocation.SchedulingStrategy(
                    type=allocation.SchedulingStrategyType.colocation, target="rollout"
                )
                for spec in config.scheduling_spec:
                    spec.gpu = 0
            controller = engines.RemoteSGLangEngine.as_controller(config, self.scheduler)
            controller.initialize(role="eval-rollout" if is_eval else "rollout", server_args={}, server_infos=located)
            if lora_path is not None and not is_eval:
                load_first_adapter(servers, self.config.gconfig.lora_name, lora_path)
            return controller

    return ServedTrainer


def load_first_adapter(servers: Sequence[str], name: str, folder: str) -> None:
    """Load version 0 of the adapter into running servers; those that AReaL starts have it on their command line."""
    import httpx2

    for address in servers:
        body = {"lora_name": f"{name}-v0", "lora_path": folder}
        try:
            reply = httpx2.post(f"http://{address}/load_lora_adapter", json=body, timeout=ADAPTER_TIMEOUT_S)
            reply.raise_for_status()
        except httpx2.HTTPError as error:
            raise ConfigError(f"deskhand.servers: {address} does not load adapters ({error})") from None


def save_statistics(logger: Any, folder: Path) -> None:
    """Also write AReaL's statistics of each step to a file (`worker_runs`)."""
    commit = logger.commit

    def both(epoch: int, step: int, global_step: int, data: Any) -> None:
        commit(epoch, step, global_step, data)
        values = {name: value for part in (data if isinstance(data, list) else [data]) for name, value in part.items()}
        add_statistics(folder, global_step + 1, values)

    logger.commit = both
