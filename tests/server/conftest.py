"""One leased desktop behind a bridge, and a certificate."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from certificates import self_signed
from server_client import Client, bridge, leased


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with bridge() as running, leased(running) as client:
        yield client


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate for this machine that nobody else trusts, and its key."""
    return self_signed(tmp_path / "tls")
