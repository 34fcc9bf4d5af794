"""Starts an experiment under AReaL from Deskhand's own environment. Invariant: what is started here is ended here, and AReaL's
processes see the environment that they need and no secret on a command line.

AReaL lives in an environment of its own (`scripts/environment areal`); its workers look up `python3` on PATH, so that environment
comes first there. Where it has no Deskhand, this one is shown to it by path.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from deskhand.errors import ConfigError, InfrastructureError
from deskhand.integrations.areal.online import ProxyGateway
from deskhand.integrations.areal.settings import read_experiment
from deskhand.integrations.areal.worker_runs import merge_worker_runs
from deskhand.models.load import checkpoint_folder
from deskhand.venvs import newest_venv

LAUNCH = "deskhand.integrations.areal.entrypoint"
SERVER_START_S = 120.0
END_S = 60.0


def train(
    config: Path,
    folder: Path,
    *,
    stage: str | None = None,
    overrides: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> int:
    """Run an experiment to its end; returns AReaL's exit code. Raises `ConfigError`."""
    environment = dict(os.environ if environment is None else environment)
    python = areal_python(environment)
    content = _content(config)
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    told, model = _told(config, content, folder, overrides)
    surroundings = worker_environment(python, environment)
    with _processor_server(content, overrides, model, folder) as servers:
        if servers:
            told.append(f"++deskhand.servers=[{','.join(servers)}]")
        told += ["--stage", stage] if stage else []
        code = _run([str(python), "-m", LAUNCH, *told], surroundings, folder)
    merge_worker_runs(
        folder,
        {"title": content.get("experiment_name", "AReaL"), "facts": {"trainer": "AReaL", "experiment": config.name}},
    )
    return code


def play(
    config: Path, folder: Path, overrides: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> int:
    """Play an experiment's rows for a run in AReaL's online mode; returns the exit code. Raises `ConfigError`."""
    environment = dict(os.environ if environment is None else environment)
    ProxyGateway.of_run(folder)
    python = areal_python(environment)
    told = _told(config, _content(config), folder.resolve(), overrides)[0]
    return _run([str(python), "-m", LAUNCH, *told, "--play"], worker_environment(python, environment), folder)


def _told(config: Path, content: dict[str, Any], folder: Path, overrides: Sequence[str]) -> tuple[list[str], Any]:
    """What AReaL's parser is told of a run: file, folder, checkpoint, overrides; and that checkpoint."""
    words = [
        "--config",
        str(config.resolve()),
        f"cluster.fileroot={folder}",
        f"++deskhand.workflow.journal={folder}",
        *overrides,
    ]
    model = _said("actor.path", content, overrides)
    if isinstance(model, str):
        model = str(checkpoint_folder(model))
        words.append(f"actor.path={model}")
    return words, model


def areal_python(environment: Mapping[str, str]) -> Path:
    """Python of AReaL's environment: DESKHAND_AREAL_PYTHON, or the environment that was made last."""
    named = environment.get("DESKHAND_AREAL_PYTHON")
    if named and not Path(named).is_file():
        raise ConfigError(
            f"DESKHAND_AREAL_PYTHON is {named}, which is no file; name the Python that has AReaL, or unset it"
        )
    return Path(named) if named else newest_venv("areal", environment) / "bin" / "python"


def worker_environment(python: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """What AReaL's processes are told: where its programs are, where Deskhand is, and to reach this machine without a proxy."""
    root = str(Path(__file__).parents[2])
    own = {name: value for name, value in environment.items() if name != "PYTHONHOME"}
    own["PATH"] = os.pathsep.join([str(python.parent), environment.get("PATH", os.defpath)])
    own["PYTHONPATH"] = os.pathsep.join(word for word in (root, environment.get("PYTHONPATH", "")) if word)
    for name in ("NO_PROXY", "no_proxy"):
        own[name] = ",".join(word for word in (environment.get(name, ""), "127.0.0.1", "localhost") if word)
    own.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    own.setdefault("TOKENIZERS_PARALLELISM", "false")
    return own


def _content(config: Path) -> dict[str, Any]:
    content = read_experiment(config)
    if "actor" not in content:
        raise ConfigError(
            f"{config}: no experiment of AReaL (it has no actor); for instance configs/areal/embedded_tiny_cpu.yaml"
        )
    return content


def _said(key: str, content: Any, overrides: Sequence[str]) -> Any:
    """The value of a key on the command line or in the file; None where it is not said."""
    for word in reversed(overrides):
        name, equals, value = word.partition("=")
        if equals and name.lstrip("+") == key:
            return yaml.safe_load(value)
    for part in key.split("."):
        content = content.get(part) if isinstance(content, dict) else None
    return content


@contextmanager
def _processor_server(
    content: dict[str, Any], overrides: Sequence[str], model: Any, folder: Path
) -> Iterator[list[str]]:
    """host:port of an inference server that needs no GPU, while the run lasts; nothing when the experiment asks for none."""
    if not _said("deskhand.processor_server", content, overrides) or _said("deskhand.servers", content, overrides):
        yield []
        return
    room = _said("deskhand.workflow.engine.max_tokens", content, overrides) or 8192
    words = [sys.executable, "-m", "deskhand.integrations.areal.cpu_server", str(model), "--context-tokens", str(room)]
    with socket.socket() as bound, (folder / "server.log").open("a") as log:
        bound.bind(
            ("127.0.0.1", 0)
        )  # the server is given it as it is: a port that is only named could be another's by then
        port, handle = bound.getsockname()[1], bound.fileno()
        words += ["--fd", str(handle)]
        server = subprocess.Popen(words, stdout=log, stderr=log, stdin=subprocess.DEVNULL, pass_fds=(handle,))
    try:
        _wait(server, port, folder / "server.log")
        yield [f"127.0.0.1:{port}"]
    finally:
        _end(server)


def _wait(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + SERVER_START_S
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with opener.open(f"http://127.0.0.1:{port}/health", timeout=2):
                return
        except OSError:
            time.sleep(0.2)
    raise InfrastructureError(f"the inference server did not come up within {SERVER_START_S:g} s; {log} says why")


def _run(words: list[str], environment: dict[str, str], folder: Path) -> int:
    """The exit code of a program that is ended with this one, and whose workers are."""
    child = subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL, cwd=folder, start_new_session=True)
    try:
        return child.wait()
    finally:
        _end(child)
        with suppress(
            ProcessLookupError
        ):  # AReaL's workers are in its group; one that it could not end would keep its desktops
            os.killpg(child.pid, signal.SIGKILL)


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(END_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
