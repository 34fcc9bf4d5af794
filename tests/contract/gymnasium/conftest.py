"""The real Gymnasium, beside the packages of `.venv`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from environments import beside_packages_of


@pytest.fixture(scope="session", autouse=True)
def gymnasium_packages() -> Iterator[None]:
    with beside_packages_of("gymnasium"):
        yield
