"""The desktop of a file's tests: as its `SMALL` says. Files that need another have a fixture of their own."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from desktops import embedded

from deskhand.desktop.local.desktop import LocalDesktop


@pytest.fixture
async def desktop(request: pytest.FixtureRequest) -> AsyncIterator[LocalDesktop]:
    async with embedded(request.module.SMALL) as made:
        yield made


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user of this machine may read: X servers and guests have user ids of their own."""
    with tempfile.TemporaryDirectory(prefix="deskhand-test-", dir="/var/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
