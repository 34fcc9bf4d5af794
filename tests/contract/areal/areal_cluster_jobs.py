"""Runs of `deskhand train --trainer areal` on several nodes, and what every such run has in common.

Used by `areal_jobs`: a run on two Ray nodes, and one on whose workers a setting is missing.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from areal_cpu_server import HERE, ROOT, surroundings
from fake_sglang import listening
from patience import limit
from processes import end, run_to_end, start
from safetensors.torch import load_file
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from deskhand.models.load import LOADING, TINY_FOLDER

EXPERIMENT = str(ROOT / "configs" / "areal" / "tiny_cpu.yaml")


def told(*settings: str) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


def environment_of(python: Path) -> dict[str, str]:
    """Of `deskhand` itself, as a user calls it."""
    return {**surroundings(), "DESKHAND_AREAL_PYTHON": str(python), "PATH": os.environ["PATH"]}


@contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    try:
        yield process
    finally:
        end(process)


KEY = "DESKHAND_TEST_NODE_KEY"
"""Variable with the desktop server's key, which somebody forgot to set on some machines."""
PAINTED = (
    "~deskhand.workflow.desktops.local",
    "++deskhand.workflow.desktops.factory=areal_workflows.pool",
    "++deskhand.workflow.tasks=areal_workflows.square_in_turns",
    "++deskhand.workflow.zero_variance_groups=keep",
    "deskhand.workflow.loop.group_size=2",
)


@contextmanager
def leases() -> Iterator[str]:
    """The URL of a desktop server that says how many desktops it has, to whoever has the key."""

    async def answer(request: Request) -> Response:
        if request.headers.get("authorization") != "Bearer of-the-nodes":
            return JSONResponse({"error": "key"}, status_code=401)
        return JSONResponse({"size": 16, "leases": []})

    with listening(Starlette(routes=[Route("/leases", answer)])) as address:
        yield address


def mistaken(python: Path, folder: Path) -> dict[str, Any]:
    """A run on whose workers, but not in whose launcher, the key of the desktop server is missing."""
    with leases() as address:
        worker = "{task_type: worker, port_count: 2, gpu: 0, cpu: 1, mem: 4, "
        worker += f"cmd: python3 -m deskhand.integrations.areal.worker, env_vars: {{{KEY}: ''}}}}"
        settings = (
            "~deskhand.workflow.desktops.local",
            f"++deskhand.workflow.desktops.server_url={address}",
            f"++deskhand.workflow.desktops.api_key_env={KEY}",
            f"actor.scheduling_spec=[{worker}]",
        )
        words = [sys.executable, "-m", "deskhand", "train", EXPERIMENT, str(folder / "run"), "--trainer", "areal"]
        environment = {**environment_of(python), KEY: "of-the-nodes"}
        done = run_to_end(
            [*words, *told(*settings)], capture_output=True, text=True, check=False, env=environment, cwd=ROOT,
            timeout=limit(420),
        )  # fmt: skip
    reported = sorted((folder / "run" / "worker_errors").glob("*.txt"))
    return {
        "code": done.returncode,
        "said": done.stdout + done.stderr,
        "files": [path.read_text() for path in reported],
    }


RAY_GAVE_UP = "timed out during startup"
"""Ray gives a node 30 seconds to start, whatever the machine does, and has no setting for it."""


def ray_node(words: list[str], environment: dict[str, str], log: Path) -> subprocess.Popen[bytes] | None:
    """A node of a Ray cluster, up; None where Ray gave up waiting for it, as it does on a busy machine."""
    with log.open("w") as file:
        node = start(words, env=environment, stdout=file, stderr=file, start_new_session=True, cwd=log.parent)
    deadline = time.monotonic() + limit(120)
    while "Ray runtime started" not in log.read_text():
        has_ended = node.poll() is not None
        if has_ended or time.monotonic() > deadline:
            end_nodes([node])
            said = log.read_text()  # all of it: the process has ended
            if has_ended and RAY_GAVE_UP in said:
                return None
            raise AssertionError(said)
        time.sleep(0.2)
    return node


def end_nodes(nodes: list[subprocess.Popen[bytes]]) -> None:
    for process in reversed(nodes):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
    for process in nodes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(limit(30))
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def ray_nodes(python: Path, folder: Path) -> Iterator[str]:
    """The address of a Ray cluster of two nodes on loopback addresses. The key is set on the first node alone."""
    first, second = "127.0.0.2", "127.0.0.3"
    own = {**environment_of(python), "RAY_USAGE_STATS_ENABLED": "0"}
    short = Path(tempfile.mkdtemp(prefix="dh-ray-"))  # the paths of its sockets are limited
    shared = [
        "--num-cpus",
        "3",
        "--num-gpus",
        "0",
        "--memory",
        "8000000000",
        "--object-store-memory",
        "100000000",
        "--block",
    ]
    shared += ["--disable-usage-stats", "--min-worker-port", "0", "--max-worker-port", "0"]
    script = ["bash", str(ROOT / "deploy" / "ray_node.sh")]
    nodes: list[subprocess.Popen[bytes]] = []

    def up(name: str, words: list[str], environment: dict[str, str]) -> bool:
        node = ray_node([*script, *words, *shared], environment, folder / f"{name}.log")
        nodes.extend([node] if node else [])
        return node is not None

    def head(number: int) -> str | None:
        with socket.socket() as free:  # another port each time: what Ray left of the last one may hold it
            free.bind((first, 0))
            port = free.getsockname()[1]
        words = ["head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={short / str(number)}"]
        words.append(f"--node-ip-address={first}")
        return f"{first}:{port}" if up(f"head-{number}", words, own | {KEY: "of-the-nodes"}) else None

    try:
        address = next(filter(None, map(head, range(3))), None)
        assert address, (folder / "head-2.log").read_text()
        words = [address, f"--node-ip-address={second}"]
        assert any(up(f"node-{number}", words, own) for number in range(3)), (folder / "node-2.log").read_text()
        yield address
    finally:
        end_nodes(nodes)
        shutil.rmtree(short, ignore_errors=True)


REFUSES_PROCESSORS = "refuses a Ray cluster with CPU only"
"""AReaL 2.x, and what `ray` then returns instead of a run: `no_processors`, the output."""


def ray(python: Path, folder: Path) -> dict[str, Any]:
    """Two updates on two Ray nodes: an actor of two ranks and two rollout workers, one of each on each node, and two
    inference servers; before that, a run whose key is missing on the second node."""
    from deskhand.integrations.areal.cpu_server import CpuInferenceServer
    from deskhand.models.load import load

    made = folder / "run"
    command = "cmd: python3 -m deskhand.integrations.areal.worker, env_vars: {}"
    placed = "task_type: worker, port_count: 2, gpu: 0, mem: 1"
    with LOADING:
        torch.set_num_threads(1)
        servers = [CpuInferenceServer(load(str(TINY_FOLDER)), 1024) for _ in range(2)]
    with ExitStack() as stack:
        addresses = [stack.enter_context(listening(server.app())).removeprefix("http://") for server in servers]
        address = stack.enter_context(ray_nodes(python, folder))
        environment = {**environment_of(python), "RAY_ADDRESS": address, KEY: "of-the-nodes"}
        settings = (
            "scheduler.type=ray",
            "cluster.n_nodes=2",
            "total_train_steps=2",
            "actor.backend=fsdp:d2p1t1",
            "rollout.backend=sglang:d2p1t1",
            f"actor.scheduling_spec=[{{{placed}, cpu: 2, {command}}}]",
            f"rollout.scheduling_spec=[{{{placed}, cpu: 1, {command}}}]",
            "train_dataset.batch_size=2",
            "rollout.max_concurrent_rollouts=2",
            "deskhand.workflow.engine.max_model_len=1024",
            "gconfig.max_new_tokens=8",
            "saver.freq_steps=1",
            "actor.optimizer.lr=1e-3",
            f"++deskhand.servers=[{','.join(addresses)}]",
        )

        def train(run: Path, *more: str) -> tuple[int, str]:
            words = [sys.executable, "-m", "deskhand", "train", EXPERIMENT, str(run), "--trainer", "areal"]
            with (folder / f"{run.name}.log").open("w") as log:
                done = run_to_end(
                    [*words, *told(*settings, *more)], stdout=log, stderr=log, check=False, env=environment, cwd=ROOT,
                    timeout=limit(500),
                )  # fmt: skip
            return done.returncode, (folder / f"{run.name}.log").read_text()

        with leases() as server:
            local = "~deskhand.workflow.desktops.local"
            url, key = f"++deskhand.workflow.desktops.server_url={server}", f"api_key_env={KEY}"
            refused = train(folder / "refused", local, url, f"++deskhand.workflow.desktops.{key}")
        code, said = train(made, *PAINTED)
        if code == 2 and REFUSES_PROCESSORS in said:
            return {"refused": refused, "no_processors": said}
        assert code == 0, said[-8000:]
        words = [str(python), str(HERE / "ray_actors.py"), str(folder / "actors.json")]
        run_to_end(words, env=environment, check=True, cwd=folder, timeout=limit(120))
    newest = max((made / "checkpoints").rglob("*globalstep*/model.safetensors"), key=lambda path: path.stat().st_mtime)
    kept = load_file(newest)
    first = load_file(TINY_FOLDER / "model.safetensors")
    return {
        "refused": refused,
        "said": said,
        "actors": json.loads((folder / "actors.json").read_text()),
        "steps": [json.loads(line) for line in (made / "areal_metrics.jsonl").read_text().splitlines()],
        "versions": [server.engine.version for server in servers],
        "same": [_same(kept, server.model.model.state_dict()) for server in servers],
        "moved": not _same(kept, first),
        "requests": [server.requests for server in servers],
    }


def _same(kept: dict[str, Any], own: dict[str, Any]) -> bool:
    shared = set(kept) & set(own)
    assert len(shared) > 10, (sorted(kept)[:3], sorted(own)[:3])
    return all(torch.equal(kept[name], own[name].to(kept[name].dtype)) for name in shared)
