"""A real vLLM server on a processor, in its own environment, serving the policy in the box."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from vllm_serving import Served, serving

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def python() -> Path:
    """That of vLLM's environment, which is made first if need be (two to four minutes)."""
    if os.environ.get("DESKHAND_TEST_VLLM") == "0":
        pytest.skip("DESKHAND_TEST_VLLM=0: the tests against a real vLLM are left out")
    if platform.machine() != "x86_64":
        pytest.skip(f"there is no vLLM for processors of the kind {platform.machine()}")
    words = ["bash", str(ROOT / "scripts" / "environment"), "vllm"]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, (
        "scripts/environment vllm did not work; it says why above (DESKHAND_TEST_VLLM=0 leaves this out)"
    )
    return Path(done.stdout.strip()) / "bin" / "python"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def served(python: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    """In float32, for all tests of a module but one."""
    made = serving(python, tmp_path_factory.mktemp("vllm"), "float32")
    try:
        await made.engine.start()
        yield made
    finally:
        await made.engine.close()
