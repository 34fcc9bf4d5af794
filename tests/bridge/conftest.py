"""One leased desktop behind a bridge."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from bridge_client import Client, bridge, leased


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with bridge() as running, leased(running) as client:
        yield client
