"""What `deskhand train --trainer areal` starts is ended with it, and what it is asked of a run that is not there is
said."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from patience import limit
from processes import is_alive

from deskhand.errors import ConfigError
from deskhand.integrations.areal import launcher

EXPERIMENT = Path(__file__).parents[3] / "configs" / "areal" / "tiny_cpu.yaml"


def test_workers_that_outlive_their_master_are_ended(tmp_path):
    code = launcher._run(["bash", "-c", "sleep 60 & echo $! > worker; exit 3"], dict(os.environ), tmp_path)
    worker = int((tmp_path / "worker").read_text())
    assert code == 3
    deadline = time.monotonic() + limit(10)
    while is_alive(worker):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_profile_fetches_its_own_model_and_the_command_line_s_goes_first(tmp_path, monkeypatch):
    """`smoke-text` is a quick look with a small text model; the file's vision model is never asked for."""
    asked: list[str] = []
    ran: list[list[str]] = []
    monkeypatch.setattr(launcher, "checkpoint_folder", lambda name: asked.append(name) or Path("/cache", name))
    monkeypatch.setattr(launcher, "_run", lambda words, environment, folder: ran.append(words) or 0)
    monkeypatch.setattr(launcher, "areal_python", lambda environment: Path("python"))
    large = EXPERIMENT.with_name("osworld_qwen3vl_4b.yaml")
    launcher.train(large, tmp_path, profile="smoke-text")
    launcher.train(large, tmp_path, profile="smoke-text", overrides=["actor.path=mine"])
    launcher.train(large, tmp_path)
    assert asked == ["Qwen/Qwen3-0.6B", "mine", "Qwen/Qwen3-VL-4B-Instruct"]
    assert [f"actor.path=/cache/{name}" in words for name, words in zip(asked, ran, strict=True)] == [True] * 3


def test_a_profile_decides_on_the_server_without_a_gpu(tmp_path, monkeypatch):
    copy = tmp_path / "tiny.yaml"
    copy.write_text(EXPERIMENT.read_text() + "  served: {deskhand: {cpu_inference_server: false}}\n")
    started: list[object] = []
    monkeypatch.setattr(launcher.subprocess, "Popen", lambda *words, **named: started.append(words))
    monkeypatch.setattr(launcher, "_run", lambda words, environment, folder: 0)
    monkeypatch.setattr(launcher, "areal_python", lambda environment: Path("python"))
    launcher.train(copy, tmp_path / "run", profile="served")
    assert started == []


def test_run_online_without_a_gateway_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="online"):
        launcher.run_online(EXPERIMENT, tmp_path)


HUB_NAME = "Qwen/Qwen3-VL-4B-Instruct"


@pytest.mark.parametrize("num_nodes", [1, 2])
def test_a_folder_of_this_machines_cache_is_handed_to_no_other_node(tmp_path, num_nodes):
    """A stand-in for AReaL's Python writes down what it is told."""
    cache, told, python = tmp_path / "cache", tmp_path / "told", tmp_path / "python"
    snapshot = cache / "hub" / "models--Qwen--Qwen3-VL-4B-Instruct" / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("0123")
    python.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {told}\n')
    python.chmod(0o755)
    words = [sys.executable, "-m", "deskhand", "train", str(EXPERIMENT.with_name("osworld_qwen3vl_4b.yaml"))]
    words += [str(tmp_path / "run"), "--trainer", "areal", "--set", f"cluster.n_nodes={num_nodes}"]
    own = {"HF_HOME": str(cache), "HF_HUB_OFFLINE": "1", "DESKHAND_AREAL_PYTHON": str(python)}
    done = subprocess.run(words, env=os.environ | own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    paths = [line for line in told.read_text().splitlines() if line.startswith("actor.path=")]
    assert paths == ([f"actor.path={snapshot}"] if num_nodes == 1 else []), "every node resolves the hub's name itself"
    assert str(cache) not in told.read_text() or num_nodes == 1
