"""A port that is held is nobody else's, and the server's that it is held for."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest
from patience import limit

from deskhand.integrations.areal.patches import ports


@pytest.fixture
def words() -> list[str]:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return ["worker", "--port", str(probe.getsockname()[1]), "--role", "actor"]


def test_whoever_probes_finds_a_held_port_taken_and_its_server_listens(words):
    held = ports.hold_port(words)
    assert held is not None
    address = held.getsockname()
    with held, socket.socket() as probe, socket.socket() as server:
        with pytest.raises(OSError, match="in use"):
            probe.bind(address)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(address)
        server.listen()
        with socket.create_connection(("127.0.0.1", address[1]), timeout=limit(5)):
            server.accept()[0].close()


def test_two_workers_do_not_hold_one_port(words):
    held = ports.hold_port(words)
    assert held is not None
    with held, pytest.raises(OSError, match="in use"):
        ports.hold_port(words)


def test_a_worker_without_a_port_holds_none():
    assert ports.hold_port(["worker", "--role", "actor"]) is None
    assert ports.hold_port(["worker", "--port"]) is None


def test_a_worker_whose_port_is_taken_says_so_before_it_imports_anything():
    with socket.create_server(("127.0.0.1", 0)) as other:
        command = [sys.executable, "-m", "deskhand.integrations.areal.worker", "--port", str(other.getsockname()[1])]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit(30))
    assert done.returncode != 0
    assert "address already in use" in done.stderr.lower(), (
        "the words by which AReaL's scheduler knows it and takes another port"
    )
    assert "areal.infra" not in done.stderr
