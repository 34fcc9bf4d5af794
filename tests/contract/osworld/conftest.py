"""OSWorld's environments, made the first time they are needed."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from osworld_peer import Peer, running

from deskhand.osworld.official_evaluators import OfficialEvaluators

ROOT = Path(__file__).parents[3]
UNREACHABLE = (
    "No matching distribution found",
    "Temporary failure in name resolution",
    "Network is unreachable",
    "timed out",
)


def environment(name: str) -> Path:
    """The Python of an environment; skips where the package index cannot be reached."""
    made = subprocess.run(["bash", "scripts/environment", name], cwd=ROOT, capture_output=True, text=True, check=False)
    if made.returncode != 0 and any(sign in made.stderr for sign in UNREACHABLE):
        pytest.skip(f"the package index cannot be reached: {made.stderr.strip().splitlines()[-1]}")
    assert made.returncode == 0, made.stderr
    return Path(made.stdout.strip()) / "bin" / "python"


@pytest.fixture(scope="session")
def python() -> Path:
    """The Python with OSWorld's client."""
    return environment("osworld-controllers")


@pytest.fixture(scope="module")
def peer(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    """A process with that client, for all tests of a file."""
    with running(python, tmp_path_factory.mktemp("peer")) as made:
        yield made


@pytest.fixture(scope="session")
def judging_python() -> Path:
    """The Python with OSWorld's evaluators."""
    return environment("osworld-evaluators")


@pytest.fixture(scope="module")
def official(judging_python: Path) -> Iterator[OfficialEvaluators]:
    """OSWorld's own evaluators: a process with our label, which must be gone before other tests look for what was left
    behind."""
    evaluators = OfficialEvaluators(judging_python)
    yield evaluators
    evaluators.close()
