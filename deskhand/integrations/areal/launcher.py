"""Starts AReaL experiments from Deskhand's environment: `deskhand train --trainer areal` and `deskhand areal
run-online`.

AReaL has an environment of its own (`scripts/environment areal`), or is installed with Deskhand. Its workers find
`python3` on PATH, so that environment comes first there, and Deskhand alone is added to PYTHONPATH. Everything started
here is stopped here; no secret is passed on a command line.
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

from deskhand.config.shipped import AREAL, find_config, list_configs
from deskhand.errors import ConfigError, InfrastructureError
from deskhand.integrations.areal.installed_areal import is_installed
from deskhand.integrations.areal.online import ProxyGateway
from deskhand.integrations.areal.settings import merge_settings, profile_overrides, read_experiment
from deskhand.integrations.areal.worker_runs import merge_worker_runs
from deskhand.models.hub import is_hub_id
from deskhand.models.load import checkpoint_folder
from deskhand.venvs import newest_venv, package_path

LAUNCH = "deskhand.integrations.areal.entrypoint"
WORKING_DIR = "DESKHAND_WORKING_DIR"
"""Environment variable with the directory in which `deskhand train` was called; paths of tasks start there."""
SERVER_START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 60.0


def train(
    config: Path,
    folder: Path,
    *,
    profile: str | None = None,
    overrides: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> int:
    """Run an experiment to its end and return AReaL's exit code. Raises `ConfigError`."""
    environment = dict(os.environ if environment is None else environment)
    config = find_config(config, AREAL)
    python = areal_python(environment)
    content = _content(config)
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    args, merged = _areal_args(config, content, folder, profile, overrides)
    worker_env = worker_environment(python, environment)
    with _cpu_server(merged, folder) as servers:
        if servers:
            args.append(f"++deskhand.servers=[{','.join(servers)}]")
        code = _run([str(python), "-m", LAUNCH, *args], worker_env, folder)
    merge_worker_runs(
        folder,
        {"title": content.get("experiment_name", "AReaL"), "facts": {"trainer": "AReaL", "experiment": config.name}},
    )
    return code


def run_online(
    config: Path, folder: Path, overrides: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> int:
    """Run an experiment's rows for a run in AReaL's online mode and return the exit code. Raises `ConfigError`."""
    environment = dict(os.environ if environment is None else environment)
    config = find_config(config, AREAL)
    ProxyGateway.of_run(folder)
    python = areal_python(environment)
    args = _areal_args(config, _content(config), folder.resolve(), None, overrides)[0]
    return _run([str(python), "-m", LAUNCH, *args, "--run-online"], worker_environment(python, environment), folder)


def _areal_args(
    config: Path, content: dict[str, Any], folder: Path, profile: str | None, overrides: Sequence[str]
) -> tuple[list[str], dict[str, Any]]:
    """Return the arguments of AReaL's parser, and the experiment as it reads them: the file, below its profile, below
    the command line. Only the checkpoint of the result is fetched."""
    folders = [f"cluster.fileroot={folder}", f"++deskhand.workflow.episode_dir={folder}"]
    merged = merge_settings(content, [*profile_overrides(config, profile), *folders, *overrides])
    words = ["--config", str(config.resolve()), *(["--profile", profile] if profile else []), *folders, *overrides]
    model = merged.get("actor", {}).get("path")
    if isinstance(model, str):
        merged["actor"]["path"] = found = str(checkpoint_folder(model))
        if int((merged.get("cluster") or {}).get("n_nodes") or 1) == 1 or not is_hub_id(model):
            words.append(f"actor.path={found}")  # elsewhere the cache of this machine may be another folder
    return words, merged


def areal_python(environment: Mapping[str, str]) -> Path:
    """Return the Python with AReaL: DESKHAND_AREAL_PYTHON, this one if it has AReaL, or the newest environment's."""
    named = environment.get("DESKHAND_AREAL_PYTHON")
    if named and not Path(named).is_file():
        raise ConfigError(f"DESKHAND_AREAL_PYTHON: {named} is not a file; set it to the Python with AReaL, or unset it")
    if named:
        return Path(named)
    if is_installed():
        return Path(sys.executable)
    return newest_venv("areal", environment, "areal-cuda") / "bin" / "python"


def worker_environment(python: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of AReaL's processes: PATH and PYTHONPATH, and no proxy for this machine."""
    root = str(package_path(environment))
    own = {name: value for name, value in environment.items() if name != "PYTHONHOME"}
    own["PATH"] = os.pathsep.join([str(python.parent), environment.get("PATH", os.defpath)])
    own["PYTHONPATH"] = os.pathsep.join(word for word in (root, environment.get("PYTHONPATH", "")) if word)
    for name in ("NO_PROXY", "no_proxy"):
        own[name] = ",".join(word for word in (environment.get(name, ""), "127.0.0.1", "localhost") if word)
    own[WORKING_DIR] = environment.get(WORKING_DIR, str(Path.cwd()))
    own.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    own.setdefault("TOKENIZERS_PARALLELISM", "false")
    return own


def _content(config: Path) -> dict[str, Any]:
    content = read_experiment(config)
    if "actor" not in content:
        raise ConfigError(
            f"{config}: not an AReaL experiment (no actor section); shipped ones: {', '.join(list_configs(AREAL))}"
        )
    return content


@contextmanager
def _cpu_server(experiment: Mapping[str, Any], folder: Path) -> Iterator[list[str]]:
    """Yield host:port of a CPU inference server for the duration of the run, if the experiment needs one."""
    section = experiment.get("deskhand") or {}
    if not section.get("cpu_inference_server") or section.get("servers"):
        yield []
        return
    max_model_len = (section.get("workflow", {}).get("engine") or {}).get("max_model_len") or 8192
    words = [sys.executable, "-m", "deskhand.integrations.areal.cpu_server", str(experiment["actor"]["path"])]
    with socket.socket() as bound, (folder / "server.log").open("a") as log:
        bound.bind(("127.0.0.1", 0))  # the server inherits the socket: a mere port number could be taken by then
        port, handle = bound.getsockname()[1], bound.fileno()
        words += ["--max-model-len", str(max_model_len), "--fd", str(handle)]
        server = subprocess.Popen(words, stdout=log, stderr=log, stdin=subprocess.DEVNULL, pass_fds=(handle,))
    try:
        _wait(server, port, folder / "server.log")
        yield [f"127.0.0.1:{port}"]
    finally:
        _stop(server)


def _wait(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + SERVER_START_TIMEOUT_S
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with opener.open(f"http://127.0.0.1:{port}/health", timeout=2):
                return
        except OSError:
            time.sleep(0.2)
    raise InfrastructureError(f"the inference server did not start within {SERVER_START_TIMEOUT_S:g} s; see {log}")


def _run(words: list[str], environment: dict[str, str], folder: Path) -> int:
    """Return the exit code of a program; stops it and its workers on the way out."""
    child = subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL, cwd=folder, start_new_session=True)
    try:
        return child.wait()
    finally:
        _stop(child)
        with suppress(ProcessLookupError):  # AReaL's workers share its group; a leftover one would hold its desktops
            os.killpg(child.pid, signal.SIGKILL)


def _stop(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
