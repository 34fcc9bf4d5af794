"""A real AReaL in its own environment, and what answers for its GPU inference server: SGLang's protocol around our `hf` engine."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fake_sglang import listening

ROOT = Path(__file__).parents[3]
HERE = Path(__file__).parent
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


def surroundings() -> dict[str, str]:
    """Of AReaL's processes: our rooms and the tests' helpers by path, nothing from the network, one thread each."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "support"), str(HERE)])
    own = {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    return {**os.environ, **own, "NO_PROXY": "*", "no_proxy": "*", "TOKENIZERS_PARALLELISM": "false"}


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


@contextmanager
def inference_server(checkpoint: Path | str, context_tokens: int = 1024) -> Iterator[str]:
    """host:port of our server of that checkpoint."""
    from deskhand.areal.serving import Serving
    from deskhand.models.load import load

    with listening(Serving(load(str(checkpoint)), context_tokens).app()) as address:
        yield address.removeprefix("http://")
