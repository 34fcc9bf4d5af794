"""A real vLLM server on a processor, in its own environment, serving the policy in the box."""

from __future__ import annotations

import platform
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from environments import python_of
from vllm_serving import Served, serving


@pytest.fixture(scope="session")
def python() -> Path:
    if platform.machine() != "x86_64":
        pytest.skip(f"there is no vLLM for processors of the kind {platform.machine()}")
    return python_of("vllm", "DESKHAND_TEST_VLLM")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def served(python: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    """In float32, for all tests of a module but one."""
    made = serving(python, tmp_path_factory.mktemp("vllm"), "float32")
    try:
        await made.engine.start()
        yield made
    finally:
        await made.engine.close()
