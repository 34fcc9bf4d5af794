"""A run on remote desktops, by its settings alone: `deskhand eval` over `deskhand serve desktops`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from patience import limit
from test_cli import ROOT, called

KEY = "the-key-of-the-elsewhere-tests"
SETTINGS = ["suite.families=[dialog_choice]", "loop.max_concurrent_episodes=2", "evaluation.num_episodes=2"]


@contextmanager
def bridge(screen: str) -> Iterator[str]:
    """The address of a bridge with two desktops, in a process of its own."""
    command = ["serve", "desktops", "--port", "0", "--desktops", "2", "--no-accessibility", "--screen", screen]
    environment = os.environ | {"DESKHAND_SERVER_API_KEY": KEY, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-m", "deskhand", *command], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().split(" at ")[1].split(",")[0]
    finally:
        process.terminate()
        process.wait(limit(20))


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with bridge("320x240") as address:
        yield address


@pytest.fixture
def evaluate(monkeypatch, capsys, tmp_path, address) -> Callable[[str], tuple[int, str, str]]:
    """Evaluate the oracle on the server's desktops with a key; returns exit code, output and errors."""

    def run(key: str) -> tuple[int, str, str]:
        monkeypatch.setenv("DESKHAND_SERVER_API_KEY", key)
        settings = [*SETTINGS, "desktop.backend=server", f"desktop.urls=[{address}]"]
        words = [word for setting in settings for word in ("--set", setting)]
        return called(monkeypatch, capsys, "eval", str(tmp_path / "run"), "--policy", "oracle", *words)

    return run


def test_held_out_tasks_are_solved_on_a_servers_desktops(evaluate, tmp_path):
    code, out, err = evaluate(KEY)
    assert code == 0, err
    assert "2/2" in out
    for file in (tmp_path / "run").rglob("*"):
        assert not file.is_file() or KEY.encode() not in file.read_bytes(), f"the key is in {file.name}"


def test_a_wrong_key_is_a_one_line_error(evaluate):
    code, _, err = evaluate("a-wrong-key-of-the-tests")
    assert code != 0
    assert err.strip().splitlines()[-1].startswith("error:")
    assert "401" in err
    assert "a-wrong-key" not in err
