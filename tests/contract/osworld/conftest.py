"""OSWorld's environments, made the first time they are needed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from environments import python_of
from osworld_peer import Peer, running

from deskhand.osworld.official_evaluators import OfficialEvaluators


@pytest.fixture(scope="session")
def python() -> Path:
    """The Python with OSWorld's client."""
    return python_of("osworld-controllers")


@pytest.fixture(scope="module")
def peer(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    """A process with that client, for all tests of a file."""
    with running(python, tmp_path_factory.mktemp("peer")) as made:
        yield made


@pytest.fixture(scope="session")
def judging_python() -> Path:
    """The Python with OSWorld's evaluators."""
    return python_of("osworld-evaluators")


@pytest.fixture(scope="module")
def official(judging_python: Path) -> Iterator[OfficialEvaluators]:
    """OSWorld's own evaluators: a process with our label, which must be gone before other tests look for what was left
    behind."""
    evaluators = OfficialEvaluators(judging_python)
    yield evaluators
    evaluators.close()
