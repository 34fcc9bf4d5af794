"""A run on remote desktops, by its settings alone: `deskhand eval` over `deskhand serve desktops`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from patience import limit
from test_cli import ROOT, called

KEY = "the-key-of-the-elsewhere-tests"
SMALL = [
    "--set",
    "suite.families=[dialog_choice]",
    "--set",
    "loop.max_concurrent_episodes=2",
    "--set",
    "evaluation.num_episodes=2",
]


@contextmanager
def bridge(screen: str) -> Iterator[str]:
    """The address of a bridge with two desktops, in a process of its own."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "deskhand",
            "serve",
            "desktops",
            "--port",
            "0",
            "--desktops",
            "2",
            "--no-accessibility",
            "--screen",
            screen,
        ],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"DESKHAND_SERVER_API_KEY": KEY, "PYTHONPATH": str(ROOT)},
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


def test_held_out_tasks_are_solved_on_a_bridges_desktops(monkeypatch, capsys, tmp_path, address):
    monkeypatch.setenv("DESKHAND_SERVER_API_KEY", KEY)
    where = ["--set", "desktop.backend=server", "--set", f"desktop.urls=[{address}]"]
    code, out, err = called(monkeypatch, capsys, "eval", str(tmp_path / "run"), "--policy", "oracle", *SMALL, *where)
    assert code == 0, err
    assert "2/2" in out
    for file in (tmp_path / "run").rglob("*"):
        assert not file.is_file() or KEY.encode() not in file.read_bytes(), f"the key stands in {file.name}"


def test_a_bridge_without_its_key_is_one_line(monkeypatch, capsys, tmp_path, address):
    monkeypatch.setenv("DESKHAND_SERVER_API_KEY", "a-wrong-key-of-the-tests")
    where = ["--set", "desktop.backend=server", "--set", f"desktop.urls=[{address}]"]
    code, _, err = called(monkeypatch, capsys, "eval", str(tmp_path / "run"), "--policy", "oracle", *SMALL, *where)
    assert code != 0
    assert err.strip().splitlines()[-1].startswith("error:")
    assert "401" in err
    assert "a-wrong-key" not in err
