"""The desktop of a file's tests: as its `SMALL` says. Files that need another have a fixture of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from desktops import embedded

from deskhand.desktop.local.desktop import LocalDesktop


@pytest.fixture
async def desktop(request: pytest.FixtureRequest) -> AsyncIterator[LocalDesktop]:
    async with embedded(request.module.SMALL) as made:
        yield made
