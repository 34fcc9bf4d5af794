"""Runs an experiment in AReaL's environment: `python -m deskhand.integrations.areal.entrypoint --config FILE
[--profile NAME] [key=value ...]`.

Started by `launcher`. With `--run-online` it runs the experiment's rows on the gateway of a run in AReaL's online
mode. Inconsistent experiments are rejected before a worker starts (`validate_budget`).

It also works around problems of AReaL 1.0.4, in this process only: a random admin key replaces the default one, which
a proxy on a network address rejects; local addresses bypass HTTP proxies; ports are random (`patches.ports`); and the
patches of `patches.worker_launch`.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import sys
from argparse import ArgumentParser
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from deskhand.config.schema import SuiteConfig
from deskhand.errors import ConfigError, InfrastructureError
from deskhand.integrations.areal import installed_areal, online, ray_cluster, worker_errors
from deskhand.integrations.areal.dataset import Rows, load_rows, suite_rows, task_for
from deskhand.integrations.areal.experiment_config import DataSection, DesktopExperiment
from deskhand.integrations.areal.launcher import WORKING_DIR
from deskhand.integrations.areal.online import ProxyGateway
from deskhand.integrations.areal.patches import ports, worker_launch
from deskhand.integrations.areal.settings import (
    Desktops,
    WorkflowSettings,
    as_override,
    import_by_path,
    profile_overrides,
)
from deskhand.integrations.areal.trainer import save_statistics, trainer_of
from deskhand.integrations.areal.validate_budget import (
    desktops_needed,
    find_config_problems,
    find_model_problems,
    image_cost,
    is_agent,
)
from deskhand.integrations.areal.validate_gpus import ModelSize
from deskhand.integrations.areal.worker_resources import server_api_key, use_worker_resources
from deskhand.models.load import check_checkpoint, checkpoint_folder, load_processors
from deskhand.tasks.task import Split

_DEFAULT_ADMIN_KEY = "areal-admin-key"
SERVER_TIMEOUT_S = 10.0
SKIPPED_FILE = "skipped_tasks.txt"
LISTED_REASONS = 10
SAMPLED_ROWS = 32
"""Data rows whose tasks determine the screen size."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Exits with 2 and one line for user errors."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if "--run-online" in words:
            words.remove("--run-online")
            with suppress(KeyboardInterrupt):
                run_online(words)
        else:
            signal.signal(signal.SIGTERM, _on_sigterm)
            run(words)
    except WorkerError as error:
        print(f"error: {error.text}", file=sys.stderr)
        raise
    except (ConfigError, InfrastructureError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def _on_sigterm(number: int, frame: Any) -> None:
    """Raise out of AReaL's trainer, which then stops its workers."""
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(128 + number)


class WorkerError(SystemExit):
    """A worker reported an error. Ends the process with code 2; AReaL, which catches exceptions, lets it pass."""

    def __init__(self, text: str) -> None:
        super().__init__(2)
        self.text = text


@contextmanager
def end_on_worker_errors(folder: Path) -> Iterator[None]:
    """Raise `WorkerError` in the main thread when a worker reports an error (`worker_errors`)."""
    found: list[str] = []

    def end(line: str) -> None:
        found.append(line)
        os.kill(os.getpid(), signal.SIGUSR1)

    def on_signal(number: int, frame: Any) -> None:
        if found:
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
            raise WorkerError(found[0])

    before = signal.signal(signal.SIGUSR1, on_signal)
    worker_errors.clear(folder)
    try:
        with worker_errors.watch(folder, end):
            yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def run(arguments: list[str]) -> None:
    """Load, check, train. Raises `ConfigError`."""
    installed_areal.version()
    bypass_proxy_for_local_addresses()
    config = load(arguments)
    settings = WorkflowSettings.of(config.deskhand.workflow, {})
    folder = Path(config.cluster.fileroot)
    datasets = rows_of(config, settings)
    check(config, settings, datasets[0])
    report_rows(folder, *datasets)
    if config.rollout.agent is not None and config.rollout.agent.admin_api_key == _DEFAULT_ADMIN_KEY:
        config.rollout.agent.admin_api_key = secrets.token_urlsafe(32)
    if config.scheduler.type == "ray":
        ray_cluster.connect(config.cluster.n_nodes)
        ray_cluster.check_nodes(config.cluster.n_nodes, folder, settings, datasets[0].rows[:SAMPLED_ROWS])
        ray_cluster.check_devices()
    worker_launch.apply_launcher_patches()
    ports.use_random_ports()
    trainer_class = trainer_of(config.deskhand.servers)
    if config.rollout.agent is not None and config.rollout.agent.mode == "online":
        with end_on_worker_errors(folder), trainer_class(config) as trainer:
            save_statistics(trainer.stats_logger, folder)
            serve_online(trainer, config, folder)
        return
    make = import_module("datasets").Dataset.from_list
    made = [make(found.rows) if found.rows else None for found in datasets]
    keywords: dict[str, Any] = {"settings": settings.model_dump(mode="json")}
    if not is_agent({"deskhand": {"workflow_class": config.deskhand.workflow_class}}):
        keywords["gconfig"] = config.gconfig
    with (
        end_on_worker_errors(folder),
        trainer_class(config, train_dataset=made[0], valid_dataset=made[1]) as trainer,
    ):
        save_statistics(trainer.stats_logger, folder)
        trainer.train(
            workflow=config.deskhand.workflow_class,
            workflow_kwargs=keywords,
            eval_workflow=config.deskhand.workflow_class,
            eval_workflow_kwargs=keywords,
        )


def run_online(arguments: list[str]) -> None:
    """Run an experiment's rows on the gateway of the run in its directory; desktops are released at the end."""
    bypass_proxy_for_local_addresses()
    config = load(arguments)
    agent: Any = import_by_path(config.deskhand.workflow_class)(config.deskhand.workflow)
    max_concurrent = agent.settings.desktops.local or int(config.rollout.max_concurrent_rollouts or 1)
    rows, gateway = rows_of(config, agent.settings)[0].rows, ProxyGateway.of_run(Path(config.cluster.fileroot))

    async def run_all() -> online.OnlineResult:
        async with use_worker_resources(agent.settings, keep=False):
            return await online.run_online(agent, rows, gateway, max_concurrent=max_concurrent)

    result = asyncio.run(run_all())
    mean = sum(result.rewards) / max(1, len(result.rewards))
    print(f"episodes: {len(result.rewards)} scored, mean reward {mean:.3f}; {len(result.errors)} errored")


def serve_online(trainer: Any, config: Any, folder: Path) -> None:
    """Train on sessions run by other programs (`online`); the gateway's address is written to the run directory."""
    trainer._ensure_proxy_started()  # `train` does so too, and says the address to nobody
    gateway = ProxyGateway(str(trainer.rollout.proxy_gateway_addr), config.rollout.agent.admin_api_key)
    print(
        f"AReaL's gateway: {gateway.address}; key file for deskhand areal run-online: {gateway.save(folder)}",
        flush=True,
    )
    trainer.train(workflow=None, dynamic_filter_fn="deskhand.integrations.areal.online.is_scored")


def load(arguments: list[str]) -> Any:
    """Return the experiment, parsed by AReaL. Raises `ConfigError`."""
    parser = installed_areal.require_areal("api.cli_args", "an experiment")
    options = ArgumentParser(allow_abbrev=False)
    options.add_argument("--config", type=Path, required=True)
    options.add_argument("--profile")
    parsed, words = options.parse_known_args(arguments)
    path = parsed.config
    overrides = profile_overrides(path, parsed.profile)
    try:  # the last word for a key wins: file < profile < command line
        words = ["--config", str(path), *overrides, *map(as_override, words)]
        return parser.load_expr_config(words, DesktopExperiment)[0]
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"{path}: rejected by AReaL: {' '.join(str(error).split())[:500]}") from error


def check(config: Any, settings: WorkflowSettings, train: Rows) -> None:
    """Raise `ConfigError` with every problem found, given the tasks of the rows."""
    tasks = train.tasks or [task_for(settings, row) for row in train.rows[:SAMPLED_ROWS]]
    if not tasks:
        raise ConfigError("deskhand.train: no data rows; set deskhand.suite, or train.path")
    width, height = max(((task.width, task.height) for task in tasks), key=lambda size: size[0] * size[1])
    cost = None
    if settings.uses_images:
        cost = image_cost(load_processors(settings.model)[1], width, height, settings.agent.max_pixels)
    folder = checkpoint_folder(settings.model)
    family = check_checkpoint(settings.model)[1] if settings.uses_images else None
    size = ModelSize.of_checkpoint(folder)
    exports = installed_areal.exports_images(config.rollout.backend, getattr(config.rollout, "_version", "v1"))
    most = max(task.max_steps for task in tasks)
    found = [
        *find_model_problems(folder),
        *find_config_problems(asdict(config), settings, cost, most, family, size, exports),
    ]
    if found:
        raise ConfigError("invalid experiment: " + "; ".join(found))
    if settings.desktops.server_url is not None:
        check_server(settings.desktops, desktops_needed(asdict(config), settings), {task.suite for task in tasks})


def ask_server(desktops: Desktops) -> tuple[int, str]:
    """Return the number of desktops of the desktop server, and their backend ("local", "osworld" or "waa").

    Raises `ConfigError` if it does not respond.
    """
    import httpx2

    address, key = str(desktops.server_url), server_api_key(desktops)
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        reply = httpx2.get(f"{address.rstrip('/')}/leases", headers=headers, timeout=SERVER_TIMEOUT_S)
        reply.raise_for_status()
        return int(reply.json()["size"]), str(reply.json().get("backend", "local"))
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError, KeyError) as error:
        raise ConfigError(
            f"deskhand.workflow.desktops.server_url: {address} does not respond ({error}); run deskhand serve desktops"
        ) from None


def backend_of(desktops: Desktops) -> str:
    """Return the desktop backend by which a suite is resolved. Raises `ConfigError` if the server does not respond."""
    if desktops.server_url is None:
        return "server" if desktops.factory is not None else desktops.settings.backend
    backend = ask_server(desktops)[1]
    return "server" if backend == "local" else backend


def check_server(desktops: Desktops, needed: int, suites: Iterable[str]) -> None:
    """Raise `ConfigError` unless the desktop server responds and has `needed` desktops that fit tasks of `suites`."""
    address, (size, backend) = desktops.server_url, ask_server(desktops)
    if "waa" in suites and backend != "waa":
        raise ConfigError(
            f"{address}: the server leases {backend} desktops, which have no evaluate server for tasks of Windows "
            "Agent Arena; start it with --machine URL --machine-backend waa"
        )
    if backend == "waa" and (others := sorted(set(suites) - {"waa", "openadapt"})):
        raise ConfigError(f"{address}: the server leases Windows machines, tasks of {others[0]} are for Linux")
    if size < needed:
        raise ConfigError(
            f"{address}: the server has {size} desktops, rollout.max_concurrent_rollouts x "
            f"deskhand.workflow.loop.group_size needs {needed}; start it with more"
        )


def bypass_proxy_for_local_addresses() -> None:
    """Exclude local addresses from HTTP proxies, here and in workers, which inherit the environment."""
    own = ["127.0.0.1", "localhost"]
    with suppress(OSError):
        own += sorted({str(info[4][0]) for info in socket.getaddrinfo(socket.gethostname(), None)})
    for name in ("NO_PROXY", "no_proxy"):
        named = [word for word in os.environ.get(name, "").split(",") if word]
        os.environ[name] = ",".join(dict.fromkeys([*named, *own]))


def rows_of(config: Any, settings: WorkflowSettings) -> tuple[Rows, Rows]:
    """Return training and validation rows; the latter are empty without validation. Raises `ConfigError`."""
    start = Path(os.environ.get(WORKING_DIR, os.curdir))
    suite = suite_of(config.deskhand.suite, start)
    backend: str | None = None

    def rows(section: DataSection, split: Split) -> Rows:
        nonlocal backend
        if section.path is not None:
            return load_rows(start / Path(section.path).expanduser(), settings, skip_invalid=section.skip_invalid)
        if backend is None:
            backend = backend_of(settings.desktops) if suite.path is not None else "local"
        families = {"families": section.families, "count": section.count, "first": section.first}
        return suite_rows(suite, backend, split, **families)

    valid = config.deskhand.valid
    return rows(config.deskhand.train, "train"), rows(valid, "test") if valid else Rows([])


def suite_of(section: Mapping[str, Any], start: Path) -> SuiteConfig:
    """Return the suite of an experiment; a relative path starts at `start`. Raises `ConfigError`."""
    try:
        suite = SuiteConfig.model_validate(dict(section))
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"deskhand.{'.'.join(['suite', *map(str, first['loc'])])}: {first['msg']}") from None
    if suite.path is None:
        return suite
    return suite.model_copy(update={"path": (start / suite.path.expanduser()).resolve()})


def report_rows(folder: Path, train: Rows, valid: Rows) -> None:
    """Print how many tasks each split has, and what was left out; all reasons go to a file of the run."""
    for name, found in (("train", train), ("valid", valid)):
        if found.rows:
            print(f"{name}: {len(found.rows)} rows of {found.num_tasks} tasks", flush=True)
    skipped = [*train.skipped, *valid.skipped]
    if not skipped:
        return
    path = folder / SKIPPED_FILE
    path.write_text("".join(f"{line}\n" for line in skipped), encoding="utf-8")
    print(f"left out: {len(skipped)} (all reasons: {path})", flush=True)
    for line in skipped[:LISTED_REASONS]:
        print(f"  {line}", flush=True)


if __name__ == "__main__":
    main()
