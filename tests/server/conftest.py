"""One leased desktop behind a bridge, and a certificate."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from server_client import Client, bridge, leased


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with bridge() as running, leased(running) as client:
        yield client


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate for this machine that nobody else trusts, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    chain, private = tmp_path / "chain.pem", tmp_path / "private.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", str(private), "-out", str(chain)]
    subprocess.run(command, check=True, capture_output=True)
    return chain, private
