"""What takes long in the tests against a real AReaL, two pieces at a time. Invariant: each piece is done once, by
itself, and what it found is what the tests look at.

A piece is a program in AReaL's environment with what it needs around it. Most of one is waiting, for imports and for
desktops.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import areal_models
import recording
import torch
from areal_cpu_server import HERE, LOADING, ROOT, inference_server, surroundings
from areal_osworld import TASK_ID
from fake_sglang import listening
from patience import limit
from processes import is_alive
from safetensors.torch import load_file
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from text_server import TextServer

from deskhand.models.load import TINY_FOLDER

OSWORLD_FILE = ROOT.parent / "shared" / "data" / "osworld" / "chrome" / f"{TASK_ID}.json"
FAMILIES = ("qwen3_vl", "qwen2_5_vl")
STEPS = 5
"""Of AReaL's trainer in one go; then the run is ended from outside and goes on for one more."""
ONLINE_STEPS = 2
EXPERIMENT = str(ROOT / "configs" / "areal" / "tiny_cpu.yaml")


def probe(python: Path, name: str, folder: Path, *arguments: str, timeout_s: float = 420) -> dict[str, Any]:
    """What a program beside this file wrote to folder/found.json."""
    words = [str(python), str(HERE / name), *arguments, str(folder)]
    with (folder / "log.txt").open("w") as log:
        done = subprocess.run(
            words, stdout=log, stderr=log, check=False, env=surroundings(), cwd=folder, timeout=timeout_s
        )
    assert done.returncode == 0, (folder / "log.txt").read_text()[-6000:]
    return json.loads((folder / "found.json").read_text())


def checkpoint_of(folder: Path, family: str) -> Path:
    with LOADING:
        torch.set_num_threads(1)
        return areal_models.save_checkpoint(folder / family, family)


def training(family: str) -> Callable[[Path, Path], dict[str, Any]]:
    def run(python: Path, folder: Path) -> dict[str, Any]:
        checkpoint = checkpoint_of(folder, family)
        with inference_server(checkpoint) as address:
            found = probe(python, "training_probe.py", folder, str(checkpoint), address)
        with (folder / "samples.pickle").open("rb") as file:
            samples, images = pickle.load(file)
        return {**found, "family": family, "checkpoint": checkpoint, "samples": samples, "images": images}

    return run


def proxied(python: Path, folder: Path) -> dict[str, Any]:
    with inference_server(TINY_FOLDER, 4096) as address:
        return probe(python, "proxy_probe.py", folder, str(TINY_FOLDER), address)


def parsed(python: Path, folder: Path) -> dict[str, Any]:
    found = probe(python, "configs_probe.py", folder, str(ROOT), str(TINY_FOLDER))
    environment = {**surroundings(), "DESKHAND_AREAL_PYTHON": str(python)}
    words = [sys.executable, "-m", "deskhand", "areal", "doctor", "--fix"]
    done = subprocess.run(words, env=environment, check=False, capture_output=True, text=True, cwd=ROOT)
    return {**found, "doctor": [done.returncode, done.stdout, done.stderr]}


@contextmanager
def text_model(folder: Path) -> Iterator[tuple[Path, TextServer, str]]:
    """The checkpoint of a text model, and host:port of a server of it."""
    from transformers import Qwen3ForCausalLM

    with LOADING:
        torch.set_num_threads(1)
        checkpoint = areal_models.save_text_checkpoint(folder / "model")
        server = TextServer(Qwen3ForCausalLM.from_pretrained(checkpoint).eval())
    with listening(server.app()) as address:
        yield checkpoint, server, address.removeprefix("http://")


def text(python: Path, folder: Path) -> dict[str, Any]:
    with text_model(folder) as (checkpoint, _, address):
        return probe(python, "desktops_probe.py", folder, "text", str(checkpoint), address)


def slurm(python: Path, folder: Path) -> dict[str, Any]:
    experiment = ROOT / "configs" / "areal" / "osworld_qwen3vl_4b.yaml"
    return probe(python, "slurm_probe.py", folder, str(experiment))


def kl(python: Path, folder: Path) -> dict[str, Any]:
    checkpoint = checkpoint_of(folder, "qwen3_vl")
    with LOADING:
        reference = areal_models.save_checkpoint(folder / "reference", "qwen3_vl", seed=1)
    with inference_server(checkpoint) as address:
        found = probe(python, "objectives_probe.py", folder, "kl", str(checkpoint), address, str(reference))
    return {**found, "folder": folder}


def lora(python: Path, folder: Path) -> dict[str, Any]:
    checkpoint = checkpoint_of(folder, "qwen3_vl")
    with inference_server(checkpoint) as address:
        return probe(python, "objectives_probe.py", folder, "lora", str(checkpoint), address)


def osworld(python: Path, folder: Path) -> dict[str, Any]:
    if not OSWORLD_FILE.is_file():
        return {}
    checkpoint = checkpoint_of(folder, "qwen3_vl")
    with inference_server(checkpoint) as address:
        return probe(python, "desktops_probe.py", folder, "osworld", str(checkpoint), address, str(OSWORLD_FILE))


def reading(python: Path, folder: Path) -> dict[str, Any]:
    checkpoints, pictures, out = folder / "checkpoints", folder / "pictures", folder / "out"
    for made in (checkpoints, pictures, out):
        made.mkdir()
    for family in FAMILIES:
        checkpoint_of(checkpoints, family)
    shutil.copytree(TINY_FOLDER, checkpoints / "tiny")
    for number, size in enumerate([(320, 256), (333, 211), (64, 48)]):
        (pictures / f"{number}.png").write_bytes(recording.png(number, *size))
    found = probe(python, "reading_probe.py", out, str(checkpoints), str(pictures))
    return {**found, "checkpoints": checkpoints, "pictures": pictures}


def told(*settings: str) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


def environment_of(python: Path) -> dict[str, str]:
    """Of `deskhand` itself, as a user calls it."""
    return {**surroundings(), "DESKHAND_AREAL_PYTHON": str(python), "PATH": os.environ["PATH"]}


def online(python: Path, folder: Path) -> dict[str, Any]:
    """`deskhand train` with AReaL in its online mode and `deskhand areal run-online` beside it, until the run has made
    its updates."""
    made, log = folder / "run", folder / "log.txt"
    with text_model(folder) as (checkpoint, server, address):
        settings = (
            f"actor.path={checkpoint}",
            f"++deskhand.servers=[{address}]",
            "++deskhand.workflow_class=deskhand.integrations.areal.agent.OSWorldAgent",
            "++deskhand.workflow.tasks=areal_workflows.terminal_by_chance",
            "++deskhand.workflow.agent.observation=a11y_tree",
            "++deskhand.workflow.agent.max_consecutive_errors=2",
            "deskhand.workflow.desktops.local=2",
            "deskhand.workflow.engine.max_model_len=12000",
            "deskhand.train.families=[terminal_run]",
            "++rollout.agent.mode=online",
            "++rollout.agent.engine_max_tokens=16384",
            "rollout.max_concurrent_rollouts=2",
            "rollout.max_head_offpolicyness=0",
            "gconfig.max_new_tokens=5",
            "actor.mb_spec.max_tokens_per_mb=16384",
            "actor.optimizer.lr=1e-3",
            "train_dataset.batch_size=2",
            f"total_train_steps={ONLINE_STEPS}",
        )
        words = [EXPERIMENT, str(made), *told(*settings)]
        train = [sys.executable, "-m", "deskhand", "train", *words, "--trainer", "areal"]
        play = [sys.executable, "-m", "deskhand", "areal", "run-online", *words]
        environment = environment_of(python)
        with (
            log.open("w") as file,
            _ended(subprocess.Popen(train, stdout=file, stderr=file, env=environment, cwd=ROOT)) as run,
        ):
            deadline = time.monotonic() + limit(300)
            while not (made / "proxy_gateway.json").is_file():
                assert run.poll() is None, log.read_text()[-8000:]
                assert time.monotonic() < deadline, log.read_text()[-8000:]
                time.sleep(0.1)
            played = subprocess.run(
                play, capture_output=True, text=True, check=False, env=environment, cwd=ROOT, timeout=limit(300)
            )
            assert played.returncode == 0, played.stdout[-4000:] + played.stderr[-4000:] + log.read_text()[-8000:]
            code = run.wait(limit(120))
        assert code == 0, log.read_text()[-8000:]
        (saved,) = (made / "checkpoints").rglob("*globalstep*/model.safetensors")
        kept = load_file(saved)
        same = all(torch.equal(tensor, kept[name]) for name, tensor in server.model.state_dict().items())
    said = played.stdout.splitlines()[-1]
    return {"folder": made, "said": said, "taken": server.taken, "saved": saved.parent, "same": same}


def trainer(python: Path, folder: Path) -> dict[str, Any]:
    """A run that is ended from outside after `STEPS` steps and started again for one more, and what was left in
    between."""
    made, log = folder / "run", folder / "log.txt"
    words = [sys.executable, "-m", "deskhand", "train", EXPERIMENT, str(made), "--trainer", "areal"]
    words += told(
        f"total_train_steps={STEPS + 1}",
        "~deskhand.workflow.desktops.local",
        "++deskhand.workflow.desktops.factory=areal_workflows.flaky_pool",
        "deskhand.workflow.loop.max_group_retries=0",
        "actor.optimizer.lr=1e-4",
    )
    statistics = made / "areal_metrics.jsonl"
    environment = environment_of(python)
    with (
        log.open("w") as file,
        _ended(subprocess.Popen(words, stdout=file, stderr=file, env=environment, cwd=ROOT)) as first,
    ):
        deadline = time.monotonic() + limit(420)
        while not (statistics.is_file() and statistics.read_text().count("\n") >= STEPS):
            assert first.poll() is None, log.read_text()[-8000:]
            assert time.monotonic() < deadline, log.read_text()[-8000:]
            time.sleep(0.1)
        processes = _led_by_children(first.pid)
        first.send_signal(signal.SIGTERM)
        code = first.wait(limit(120))
        left = [process for process in processes if is_alive(process)]
        before = statistics.read_text().count("\n")
        done = subprocess.run(
            words, stdout=file, stderr=file, check=False, env=environment, cwd=ROOT, timeout=limit(300)
        )
    assert done.returncode == 0, log.read_text()[-8000:]
    return {"folder": made, "processes": processes, "left": left, "code": code, "before": before}


@contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(limit(120))


KEY = "DESKHAND_TEST_NODE_KEY"
"""Variable with the desktop server's key, which somebody forgot to set on some machines."""
PAINTED = (
    "~deskhand.workflow.desktops.local",
    "++deskhand.workflow.desktops.factory=areal_workflows.pool",
    "++deskhand.workflow.tasks=areal_workflows.square",
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
        done = subprocess.run(
            [*words, *told(*settings)], capture_output=True, text=True, check=False, env=environment, cwd=ROOT,
            timeout=limit(420),
        )  # fmt: skip
    reported = sorted((folder / "run" / "worker_errors").glob("*.txt"))
    return {
        "code": done.returncode,
        "said": done.stdout + done.stderr,
        "files": [path.read_text() for path in reported],
    }


@contextmanager
def ray_nodes(python: Path, folder: Path) -> Iterator[str]:
    """The address of a Ray cluster of two nodes on loopback addresses. The key is set on the first node alone."""
    with socket.socket() as free:
        free.bind(("127.0.0.2", 0))
        port = free.getsockname()[1]
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
    node = ["bash", str(ROOT / "deploy" / "ray_node.sh")]
    head = ["head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={short}"]
    calls = (
        ([*node, *head, f"--node-ip-address={first}", *shared], own | {KEY: "of-the-nodes"}),
        ([*node, f"{first}:{port}", f"--node-ip-address={second}", *shared], own),
    )
    nodes: list[subprocess.Popen[bytes]] = []
    try:
        for number, (words, environment) in enumerate(calls):
            with (folder / f"node-{number}.log").open("w") as log:
                nodes.append(
                    subprocess.Popen(words, env=environment, stdout=log, stderr=log, start_new_session=True, cwd=folder)
                )
            deadline = time.monotonic() + limit(120)
            while "Ray runtime started" not in (said := (folder / f"node-{number}.log").read_text()):
                assert nodes[-1].poll() is None, said
                assert time.monotonic() < deadline, said
                time.sleep(0.2)
        yield f"{first}:{port}"
    finally:
        for process in reversed(nodes):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in nodes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(limit(30))
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        shutil.rmtree(short, ignore_errors=True)


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
                done = subprocess.run(
                    [*words, *told(*settings, *more)], stdout=log, stderr=log, check=False, env=environment, cwd=ROOT,
                    timeout=limit(500),
                )  # fmt: skip
            return done.returncode, (folder / f"{run.name}.log").read_text()

        with leases() as server:
            local = "~deskhand.workflow.desktops.local"
            url, key = f"++deskhand.workflow.desktops.server_url={server}", f"api_key_env={KEY}"
            refused = train(folder / "refused", local, url, f"++deskhand.workflow.desktops.{key}")
        code, said = train(made, *PAINTED)
        assert code == 0, said[-8000:]
        words = [str(python), str(HERE / "ray_actors.py"), str(folder / "actors.json")]
        subprocess.run(words, env=environment, check=True, cwd=folder, timeout=limit(120))
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


def _led_by_children(parent: int) -> list[int]:
    """Processes of the groups that children of `parent` lead."""
    stats: list[list[str]] = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            stats.append([*path.read_text().rpartition(")")[2].split(), path.parent.name])
        except OSError:  # it has just ended
            continue
    leaders = {int(stat[-1]) for stat in stats if int(stat[1]) == parent}
    return [int(stat[-1]) for stat in stats if int(stat[2]) in leaders]


JOBS: dict[str, tuple[str, Callable[[Path, Path], dict[str, Any]]]] = {
    "trainer": ("test_areal_trainer", trainer),
    "qwen3_vl": ("test_areal_training", training("qwen3_vl")),
    "qwen2_5_vl": ("test_areal_training", training("qwen2_5_vl")),
    "ray": ("test_areal_ray", ray),
    "mistaken": ("test_areal_worker_errors", mistaken),
    "online": ("test_areal_online", online),
    "proxied": ("test_areal_proxy", proxied),
    "osworld": ("test_areal_osworld", osworld),
    "parsed": ("test_areal_configs", parsed),
    "text": ("test_areal_text", text),
    "slurm": ("test_areal_slurm", slurm),
    "kl": ("test_areal_objectives", kl),
    "lora": ("test_areal_objectives", lora),
    "reading": ("test_areal_reading", reading),
}
"""By name, with the file of tests that looks at what it finds; those that take longest first."""
