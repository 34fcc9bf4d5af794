"""Runs an experiment in AReaL's environment: `python -m deskhand.integrations.areal.entrypoint --config FILE [--stage NAME] [key=value ...]`. With
`--play` it plays the experiment's rows on the gateway of a run in AReaL's online mode instead; `deskhand areal play` starts that.

Invariant: what does not add up stops the run before a worker is started (`areal.plan`).

Dealt with here, in this process alone, is what of AReaL 1.0.4 would stop or mislead a run: its admin key is made anew for each run
when the configuration leaves the well-known one, which a proxy on a network address refuses; proxies of health checks are switched
off for addresses of this machine; ports are drawn by chance (`areal.ports`); and what `areal.mends` lists.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import sys
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from deskhand.errors import ConfigError, InfrastructureError
from deskhand.integrations.areal import installed_areal, online
from deskhand.integrations.areal.dataset import make_rows, read_rows, task_for
from deskhand.integrations.areal.experiment_config import DataSection, DesktopExperiment
from deskhand.integrations.areal.online import ProxyGateway
from deskhand.integrations.areal.patches import ports, worker_launch
from deskhand.integrations.areal.settings import Desktops, WorkflowSettings, import_by_path, stage_overrides
from deskhand.integrations.areal.validate_budget import (
    desktops_needed,
    find_config_problems,
    image_cost,
    is_agent,
)
from deskhand.integrations.areal.worker_resources import key_of, use_worker_resources
from deskhand.integrations.areal.worker_runs import add_statistics
from deskhand.models.load import check_checkpoint as check_checkpoint
from deskhand.models.load import load_processors

_KNOWN_KEY = "areal-admin-key"
BRIDGE_S = 10.0
LOOKED_AT = 32
"""Rows of data whose tasks say how large screens are."""


def main(arguments: Sequence[str] | None = None) -> None:
    """The program. Exits with 2 and one line for what the user can mend."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if "--play" in words:
            words.remove("--play")
            with suppress(KeyboardInterrupt):
                play(words)
        else:
            signal.signal(signal.SIGTERM, _ended)
            run(words)
    except (ConfigError, InfrastructureError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def _ended(number: int, frame: Any) -> None:
    """Let AReaL end its workers, which it does when an exception leaves its trainer."""
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(128 + number)


def run(arguments: list[str]) -> None:
    """Load, check, train. Raises `ConfigError`."""
    installed_areal.version()
    local_addresses_directly()
    config = load(arguments)
    settings = WorkflowSettings.of(config.deskhand.workflow, {})
    datasets = rows_of(config)
    check(config, settings, datasets[0])
    folder = Path(config.cluster.fileroot)
    if config.rollout.agent is not None and config.rollout.agent.admin_api_key == _KNOWN_KEY:
        config.rollout.agent.admin_api_key = secrets.token_urlsafe(32)
    worker_launch.apply_launcher_patches()
    ports.use_random_ports()
    trainer_class = trainer_of(config.deskhand.servers)
    if config.rollout.agent is not None and config.rollout.agent.mode == "online":
        with trainer_class(config) as trainer:
            keep_statistics(trainer.stats_logger, folder)
            serve_online(trainer, config, folder)
        return
    make = import_module("datasets").Dataset.from_list
    made = [make(found) if found else None for found in datasets]
    keywords: dict[str, Any] = {"settings": settings.model_dump(mode="json")}
    if not is_agent({"deskhand": {"kind": config.deskhand.kind}}):
        keywords["gconfig"] = config.gconfig
    with trainer_class(config, train_dataset=made[0], valid_dataset=made[1]) as trainer:
        keep_statistics(trainer.stats_logger, folder)
        trainer.train(
            workflow=config.deskhand.kind,
            workflow_kwargs=keywords,
            eval_workflow=config.deskhand.kind,
            eval_workflow_kwargs=keywords,
        )


def play(arguments: list[str]) -> None:
    """Play an experiment's rows on the gateway of the run in its folder. Desktops stay between episodes and are given back at the
    end, however it comes. Raises `ConfigError` and `InfrastructureError`."""
    local_addresses_directly()
    config = load(arguments)
    agent: Any = import_by_path(config.deskhand.kind)(config.deskhand.workflow)
    at_once = agent.settings.desktops.embedded or int(config.rollout.max_concurrent_rollouts or 1)
    rows, gateway = rows_of(config)[0], ProxyGateway.of_run(Path(config.cluster.fileroot))

    async def whole() -> online.OnlineResult:
        async with use_worker_resources(agent.settings, keep=False):
            return await online.run_online(agent, rows, gateway, at_once=at_once)

    played = asyncio.run(whole())
    mean = sum(played.rewards) / max(1, len(played.rewards))
    print(f"{len(played.rewards)} episodes scored, {mean:.3f} on average; {len(played.unscored)} without a score")


def serve_online(trainer: Any, config: Any, folder: Path) -> None:
    """Train on sessions that others play (`areal.online`); where they find the gateway is written to the run's folder."""
    trainer._ensure_proxy_started()  # `train` does so too, and says the address to nobody
    gateway = ProxyGateway(str(trainer.rollout.proxy_gateway_addr), config.rollout.agent.admin_api_key)
    print(
        f"AReaL's gateway is {gateway.address}; {gateway.keep(folder)} holds its key, for deskhand areal play",
        flush=True,
    )
    trainer.train(workflow=None, dynamic_filter_fn="deskhand.integrations.areal.online.is_scored")


def load(arguments: list[str]) -> Any:
    """The experiment, by AReaL's own parser. Raises `ConfigError` for what it does not take."""
    parser = installed_areal.require_areal("api.cli_args", "an experiment")
    options = ArgumentParser(allow_abbrev=False)
    options.add_argument("--config", type=Path, required=True)
    options.add_argument("--stage")
    told, words = options.parse_known_args(arguments)
    path = told.config
    overrides = stage_overrides(path, told.stage)
    try:
        return parser.load_expr_config(["--config", str(path), *words, *overrides], DesktopExperiment)[0]
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"{path}: AReaL does not take it: {' '.join(str(error).split())[:500]}") from error


def check(config: Any, settings: WorkflowSettings, data: Sequence[Mapping[str, Any]]) -> None:
    """Raise `ConfigError` with every line that `areal.plan` has, for the tasks of the first rows of data."""
    tasks = [task_for(settings, row) for row in data[:LOOKED_AT]]
    if not tasks:
        raise ConfigError("deskhand.train has no rows of data; name families or a path")
    width, height = max(((task.width, task.height) for task in tasks), key=lambda size: size[0] * size[1])
    picture = image_cost(load_processors(settings.model)[1], width, height) if settings.sees else None
    family = check_checkpoint(settings.model)[1] if settings.sees else None
    found = find_config_problems(asdict(config), settings, picture, max(task.max_steps for task in tasks), family)
    if found:
        raise ConfigError("the experiment does not add up: " + "; ".join(found))
    if settings.desktops.server_url is not None:
        check_bridge(settings.desktops, desktops_needed(asdict(config), settings))


def check_bridge(desktops: Desktops, needed: int) -> None:
    """Raise `ConfigError` unless the bridge answers and lends so many desktops."""
    import httpx2

    address, key = str(desktops.server_url), key_of(desktops)
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        reply = httpx2.get(f"{address.rstrip('/')}/leases", headers=headers, timeout=BRIDGE_S)
        reply.raise_for_status()
        size = int(reply.json()["size"])
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError, KeyError) as error:
        raise ConfigError(
            f"deskhand.workflow.desktops.bridge {address} cannot be asked ({error}); start deskhand serve"
        ) from None
    if size < needed:
        raise ConfigError(
            f"the bridge {address} lends {size} desktops, rollout.max_concurrent_rollouts x deskhand.workflow.loop.group_size is "
            f"{needed}: start it with more, or play fewer at a time"
        )


def local_addresses_directly() -> None:
    """Requests to this machine do not go through a proxy, here and in the workers, which inherit it."""
    own = ["127.0.0.1", "localhost"]
    with suppress(OSError):
        own += sorted({str(info[4][0]) for info in socket.getaddrinfo(socket.gethostname(), None)})
    for name in ("NO_PROXY", "no_proxy"):
        named = [word for word in os.environ.get(name, "").split(",") if word]
        os.environ[name] = ",".join(dict.fromkeys([*named, *own]))


def trainer_of(servers: Sequence[str]) -> type:
    """AReaL's `PPOTrainer`; with `servers` (host:port), one that takes these instead of starting its own."""
    base = installed_areal.require_areal("trainer.rl_trainer", "a run").PPOTrainer
    if not servers:
        return base
    engines = installed_areal.require_areal("engine.sglang_remote", "a run")
    structures = installed_areal.require_areal("api.io_struct", "a run")
    allocation = installed_areal.require_areal("api.cli_args", "a run")

    class ServedTrainer(base):
        def _init_rollout(self, rollout_config: Any, is_eval: bool = False, lora_path: str | None = None) -> Any:
            if is_eval and self.config.deskhand.valid is None:
                return None  # a worker that would have nothing to do; AReaL's trainer asks whether it is there
            config = deepcopy(rollout_config)
            if is_eval:
                config.max_head_offpolicyness = int(1e12)
                config.scheduling_strategy = allocation.SchedulingStrategy(
                    type=allocation.SchedulingStrategyType.colocation, target="rollout"
                )
                for spec in config.scheduling_spec:
                    spec.gpu = 0
            controller = engines.RemoteSGLangEngine.as_controller(config, self.scheduler)
            infos = [_info(structures, address) for address in servers]
            controller.initialize(role="eval-rollout" if is_eval else "rollout", server_args={}, server_infos=infos)
            return controller

    return ServedTrainer


def keep_statistics(logger: Any, folder: Path) -> None:
    """Have what AReaL logs at the end of each step written to a file as well (`areal.journal`)."""
    commit = logger.commit

    def both(epoch: int, step: int, global_step: int, data: Any) -> None:
        commit(epoch, step, global_step, data)
        values = {name: value for part in (data if isinstance(data, list) else [data]) for name, value in part.items()}
        add_statistics(folder, global_step + 1, values)

    logger.commit = both


def _info(structures: Any, address: str) -> Any:
    host, _, port = address.rpartition(":")
    if not port.isdecimal():
        raise ConfigError(f"deskhand.servers: {address!r} is no host:port")
    return structures.LocalInfServerInfo(host=host, port=int(port), process=None)


def rows_of(config: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Training and validation rows; no validation rows where there is no validation."""
    valid = config.deskhand.valid
    return _rows(config.deskhand.train, "train"), _rows(valid, "held_out") if valid else []


def _rows(section: DataSection, split: Any) -> list[dict[str, Any]]:
    if section.path is not None:
        return read_rows(Path(section.path))
    return make_rows(section.families, section.count, split, section.first)


if __name__ == "__main__":
    main()
