"""Runs in AReaL's own environment: the shipped experiments by AReaL's own parser, then our planner.

`python configs_probe.py ROOT CHECKPOINT OUT_FOLDER` writes found.json: for each file and profile "" or what is wrong.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

PROFILES = {"tiny_cpu": (None, "smoke"), "osworld_qwen3vl_4b": (None, "smoke", "smoke-text")}


def main(root: Path, checkpoint: str, out: Path) -> None:
    from deskhand.errors import ConfigError
    from deskhand.integrations.areal import entrypoint
    from deskhand.integrations.areal.patches import ports, worker_launch
    from deskhand.integrations.areal.settings import WorkflowSettings

    found: dict[str, str] = {}
    asked: list[int] = []
    extra: dict[str, object] = {"desktops": asked}
    # there is no bridge in this test
    entrypoint.check_server = lambda desktops, needed, suites: asked.append(needed)
    entrypoint.ask_server = lambda desktops: (1000, "waa")
    for path in sorted((root / "configs" / "areal").glob("*.yaml")):
        for profile in PROFILES.get(path.stem, (None, "smoke", "smoke-text")):
            words = ["--config", str(path), f"cluster.fileroot={out}", f"actor.path={checkpoint}", *_tasks(root, path)]
            kind = "osworld" if path.stem.startswith("osworld") else "waa"
            entrypoint.ask_server = lambda desktops, kind=kind: (1000, kind)
            words += ["--profile", profile] if profile else []
            try:
                config = entrypoint.load(words)
                settings = WorkflowSettings.of(config.deskhand.workflow, {})
                entrypoint.check(config, settings, entrypoint.rows_of(config, settings)[0])
                found[f"{path.stem} {profile or ''}".strip()] = ""
                if path.stem == "osworld_qwen3vl_4b" and profile == "smoke-text":
                    extra |= {"words": settings.agent.observation, "max_tokens": settings.agent.max_new_tokens}
            except ConfigError as error:
                found[f"{path.stem} {profile or ''}".strip()] = str(error)
    places = (f"cluster.fileroot={out}", f"actor.path={checkpoint}")
    tiny = ["--config", str(root / "configs" / "areal" / "tiny_cpu.yaml"), *places]
    file = root / "configs" / "areal" / "osworld_qwen3vl_4b.yaml"
    large = ["--config", str(file), *places, *_tasks(root, file)]
    entrypoint.ask_server = lambda desktops: (1000, "osworld")
    told = entrypoint.load([*large, "--profile", "smoke", "deskhand.workflow.loop.group_size=6"])
    extra |= {"told": [told.deskhand.workflow["loop"]["group_size"], told.train_dataset.batch_size]}
    reference = ("experiment_name=x", "trial_name=x", "path=x", "attn_impl=sdpa", "backend=fsdp:d1p1t1")
    for name, words in {
        "a typo": [*tiny, "actor.eps_clipp=1"],
        "a typo in no section": [*tiny, "actr.eps_clip=1"],
        "a removed key": [*tiny, "actor.behave_imp_weight_cap=5"],
        "a ray cluster": [*large, "scheduler.type=ray"],
        "a slurm cluster": [*tiny, "scheduler.type=slurm"],
        "a group of AReaL": [*tiny, "gconfig.n_samples=4"],
        "a wrong workflow": [*tiny, "deskhand.workflow.loop.groupsize=4"],
        "a reference model": [*tiny, "actor.kl_ctl=0.1", *(f"ref.{word}" for word in reference)],
        "a LoRA": [*tiny, "actor.use_lora=true", "rollout.use_lora=true", "actor.target_modules=[q_proj, v_proj]"],
    }.items():
        try:
            config = entrypoint.load(words)
            settings = WorkflowSettings.of(config.deskhand.workflow, {})
            entrypoint.check(config, settings, entrypoint.rows_of(config, settings)[0])
            found[name] = ""
        except ConfigError as error:
            found[name] = str(error)
    extra["unset"] = _set_unset_keys(tiny)
    from areal.infra.scheduler.local import LocalScheduler

    extra["slow"] = [
        worker_launch.allow_slow_forks(500.0),
        worker_launch.allow_slow_forks(500.0),
        LocalScheduler._wait_for_fork_ready.__defaults__,
    ]
    worker_launch.fork_our_workers()
    extra["forked"] = [
        _forked(LocalScheduler, command) for command in (None, "areal.experimental.openai.proxy.proxy_rollout_server")
    ]
    worker_launch.notice_dead_workers()
    extra["dead"] = _waited_for(LocalScheduler, subprocess.Popen(["false"]))
    by_seed = _drawn_under_one_seed()
    ports.use_random_ports()
    extra["ports"] = by_seed, _drawn_under_one_seed()
    (out / "found.json").write_text(json.dumps({"found": found, **extra}))


def _set_unset_keys(tiny: list[str]) -> dict[str, Any]:
    """Set every key that AReaL's dataclasses know and a shipped file lacks, as `--set` does, to what it is."""
    from omegaconf import OmegaConf

    from deskhand.integrations.areal import entrypoint
    from deskhand.integrations.areal.settings import read_experiment

    written = {key for key, _ in _leaves("", read_experiment(Path(tiny[1])))}
    plain = entrypoint.load(tiny)
    known = OmegaConf.to_container(OmegaConf.structured(plain), enum_to_str=True)
    words = [f"{key}={json.dumps(value)}" for key, value in _leaves("", known) if key not in written]
    again = entrypoint.load([*tiny, *words])
    return {"count": len(words), "unchanged": again == plain}


def _leaves(place: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Scalars by key; `deskhand` and lists are left out."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if (place, key) != ("", "deskhand"):
                yield from _leaves(f"{place}.{key}" if place else str(key), inner)
    elif not isinstance(value, list):
        yield place, value


def _forked(scheduler: Any, command: str | None) -> str:
    """The module that AReaL's scheduler would have a worker run, in the place of `command`."""
    asked: list[str] = []

    async def single(self: Any, session: Any, role: str, index: int, *rest: Any) -> Any:
        asked.append(rest[-1])
        return SimpleNamespace(worker=SimpleNamespace(id=f"{role}/{index}"))

    own, scheduler._fork_single_worker = scheduler._fork_single_worker, single
    made = object.__new__(scheduler)
    made._workers, made._colocated_roles, made.exp_config = {"actor": [None]}, {}, None
    made.fork_workers("ref", "actor", command)
    scheduler._fork_single_worker = own
    (module,) = asked
    return module


def _tasks(root: Path, path: Path) -> list[str]:
    """Where the files of a benchmark are: beside the project, else bundled tasks take their place."""
    kind = path.stem.split("_")[0]
    if kind not in ("osworld", "waa"):
        return []
    files = root.parent / "shared" / "data" / kind
    if not files.is_dir():
        return ["~deskhand.suite"]
    return [f"++deskhand.suite.path={files}", "++deskhand.suite.screen_size=[320,240]"]


def _waited_for(scheduler: Any, process: Any) -> str:
    """What is said of a worker that ended while its port answers."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

    process.wait()
    with HTTPServer(("127.0.0.1", 0), Answer) as other:
        Thread(target=other.serve_forever, daemon=True).start()
        worker = SimpleNamespace(id="actor/0", ip="127.0.0.1", worker_ports=[str(other.server_port)])
        made = object.__new__(scheduler)
        try:
            made._configure_worker(
                SimpleNamespace(worker=worker, process=process, log_file=os.devnull, role="actor"), 0
            )
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        finally:
            other.shutdown()
    return ""


def _drawn_under_one_seed() -> list[list[int]]:
    from areal.utils import network, seeding

    drawn = []
    for _ in range(2):
        seeding.set_random_seed(1, "trainer0")
        drawn.append(network.find_free_ports(3))
    return drawn


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
