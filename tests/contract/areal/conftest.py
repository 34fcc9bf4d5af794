"""A real AReaL in its own environment."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from areal_serving import HERE, ROOT, surroundings

Probe = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def areal_python() -> Path:
    """That of the environment of AReaL's trainer, which is made first if need be."""
    if os.environ.get("DESKHAND_TEST_AREAL") != "1":
        pytest.skip("make test-areal runs the tests against a real AReaL (DESKHAND_TEST_AREAL=1)")
    words = ["bash", str(ROOT / "scripts" / "environment"), "areal"]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, "scripts/environment areal did not work; it says why above"
    return Path(done.stdout.strip()) / "bin" / "python"


@pytest.fixture(scope="session")
def probe(areal_python: Path) -> Probe:
    """`probe("training_probe.py", folder, *arguments)` runs a program beside this file and returns what it wrote to
    folder/found.json."""

    def run(name: str, folder: Path, *arguments: str, timeout_s: float = 300) -> dict[str, Any]:
        words = [str(areal_python), str(HERE / name), *arguments, str(folder)]
        with (folder / "log.txt").open("w") as log:
            done = subprocess.run(words, stdout=log, stderr=log, check=False, env=surroundings(), cwd=folder, timeout=timeout_s)
        said = (folder / "log.txt").read_text()
        assert done.returncode == 0, said[-6000:]
        return json.loads((folder / "found.json").read_text())

    return run
