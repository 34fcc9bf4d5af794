"""A worker's mistake is a line in the run directory that names the worker; outages of an episode are none."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import areal_workflows
import pytest

from deskhand.errors import CodeError, ConfigError, EvaluatorError, InfrastructureError
from deskhand.integrations.areal import entrypoint, worker_errors, worker_resources
from deskhand.integrations.areal.agent import OSWorldAgent
from deskhand.integrations.areal.settings import WorkflowSettings
from deskhand.integrations.areal.workflow import OSWorldWorkflow
from deskhand.tasks.judge import AlreadySolvedError
from deskhand.tasks.outcome import Errored

KEY = "DESKHAND_TEST_UNSET_KEY"


@pytest.fixture(autouse=True)
async def _close_resources() -> AsyncIterator[None]:
    yield
    for resources in list(worker_resources._resources.values()):
        await worker_resources.close_worker_resources(resources.settings)


def lines(folder: Path) -> list[str]:
    return [path.read_text() for path in sorted((folder / worker_errors.FOLDER).glob("*.txt"))]


def raise_inside(folder: Path | None, error: BaseException) -> None:
    with worker_errors.ErrorLimits(None if folder is None else str(folder), 8).report_errors():
        raise error


@pytest.mark.parametrize("error", [ConfigError("a.key: is\nwrong"), KeyError("seed"), ValueError("x" * 5000)])
def test_what_another_episode_cannot_mend_is_one_line_that_names_the_worker(tmp_path: Path, error: Exception) -> None:
    with pytest.raises(type(error)):
        raise_inside(tmp_path, error)
    (line,) = lines(tmp_path)
    assert line.count("\n") == 1
    assert len(line) < 1300
    assert f"on {socket.gethostname()} (process {os.getpid()}): " in line
    assert worker_errors.first_error(tmp_path) == line.strip()
    worker_errors.clear(tmp_path)
    assert worker_errors.first_error(tmp_path) is None


@pytest.mark.parametrize(
    "error",
    [
        InfrastructureError("lost"),
        EvaluatorError("late"),
        AlreadySolvedError("done"),
        CodeError("TypeError"),
        asyncio.CancelledError(),
    ],
)
def test_what_is_wrong_with_one_episode_and_cancellation_are_not_reported(tmp_path: Path, error: BaseException) -> None:
    with pytest.raises(type(error)):
        raise_inside(tmp_path, error)
    assert lines(tmp_path) == []


def test_a_worker_is_named_as_areal_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["worker", "--port", "1", "--role", "rollout", "--worker-index", "3"])
    assert worker_errors.worker_name().startswith("rollout/3 on ")


def settings(folder: Path, **changes: Any) -> dict[str, Any]:
    return {**areal_workflows.SETTINGS, "model": "tiny", "episode_dir": str(folder), **changes}


@pytest.mark.parametrize(
    ("changes", "row", "message"),
    [
        ({"desktops": {"server_url": "http://127.0.0.1:9", "api_key_env": KEY}}, {"seed": 1}, KEY),
        ({"model": "/no/such/checkpoint"}, {"seed": 1}, "/no/such/checkpoint: no such folder"),
        ({"tasks": "deskhand.integrations.areal.dataset.task_from_row"}, {"osworld": "/no/such/task.json"}, "/no/such"),
        ({}, {"other": 1}, "KeyError: 'seed'"),
    ],
)
@pytest.mark.parametrize("plain", [False, True])
async def test_workflows_and_agents_report_what_is_missing_here(
    tmp_path: Path, changes: dict[str, Any], row: dict[str, Any], message: str, plain: bool
) -> None:
    told = settings(tmp_path, **changes)
    with pytest.raises((ConfigError, KeyError)):
        await (OSWorldAgent(told).run(row) if plain else OSWorldWorkflow(told).arun_episode(None, row))
    (line,) = lines(tmp_path)
    assert message in line


AGAIN: dict[str, tuple[dict[str, Any], type[Exception], tuple[int, str], tuple[int, str]]] = {
    "a mistake of the code": (
        {"tasks": "areal_workflows.broken"},
        CodeError,
        (2, "CodeError: 4 episodes ended in a mistake of the code; last: "),
        (3, "CodeError: 3 episodes ended in a mistake of the code; last: "),
    ),
    "a task that is solved": (
        {"tasks": "areal_workflows.solved"},
        AlreadySolvedError,
        (3, "3 consecutive groups without a score; last error: "),
        (6, "6 consecutive episodes without a score; last error: "),
    ),
    "a desktop that is lost": (
        {"desktops": {"factory": "areal_workflows.lost_pool"}},
        InfrastructureError,
        (3, "3 consecutive groups without a score; last error: "),
        (6, "6 consecutive episodes without a score; last error: "),
    ),
}
"""What the settings are, what a plain agent raises, and after how many groups of two, or episodes, the run ends."""


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("what", AGAIN)
async def test_what_another_episode_may_mend_ends_the_run_when_it_happens_again(
    tmp_path: Path, what: str, plain: bool
) -> None:
    changes, raised, groups, episodes = AGAIN[what]
    limits = {"max_errored_groups": 3, "loop": {"group_size": 2, "max_group_retries": 0}}
    told = WorkflowSettings.of(settings(tmp_path, **changes, **limits), {})
    number, message = episodes if plain else groups
    for seed in range(number):
        assert lines(tmp_path) == []
        if plain:
            with pytest.raises(raised):
                await OSWorldAgent(told).run({"seed": seed})
        else:
            assert await OSWorldWorkflow(told).arun_episode(None, {"seed": seed}) is None
    (line,) = lines(tmp_path)
    assert message in line


def test_a_score_in_between_begins_the_count_of_lost_groups_again(tmp_path: Path) -> None:
    limits = worker_errors.ErrorLimits(str(tmp_path), 3)
    lost = [Errored("infrastructure", "gone")]
    assert (limits.count(lost), limits.count([], is_scored=True)) == (1, 0)
    assert (limits.count(lost), limits.count(lost)) == (1, 2)
    assert lines(tmp_path) == []
    assert limits.count([Errored("cancelled")]) == 2, "no fault of the desktops"
    limits.count(lost)
    assert "3 consecutive groups without a score; last error: gone" in lines(tmp_path)[0]


async def test_groups_that_are_lost_again_and_again_end_the_run(tmp_path: Path) -> None:
    """The engine fails at every call: each group is lost, which is no mistake, but not for ever."""

    class NoEngine:
        def get_version(self) -> int:
            return 0

        async def agenerate(self, request: Any) -> Any:
            raise ConnectionError("no server answers")

    told = settings(tmp_path, max_errored_groups=3)
    for number in range(3):
        assert lines(tmp_path) == []
        assert await OSWorldWorkflow(told).arun_episode(NoEngine(), {"seed": number}) is None
    (line,) = lines(tmp_path)
    assert "3 consecutive groups without a score; last error: " in line


def wait_in_vain(folder: Path) -> None:
    with entrypoint.end_on_worker_errors(folder):
        while True:
            try:
                signal.pause()
            except Exception:  # as AReaL does
                continue


def test_the_launcher_ends_with_the_line(tmp_path: Path) -> None:
    """Its main thread may be waiting anywhere, and what runs there may catch every exception."""
    worker_errors.report(str(tmp_path), ConfigError("of an earlier run"))
    before = signal.getsignal(signal.SIGUSR1)
    mistake = threading.Timer(0.2, worker_errors.report, (str(tmp_path), ConfigError("a.key: is wrong")))
    mistake.start()
    with pytest.raises(entrypoint.WorkerError) as found:
        wait_in_vain(tmp_path)
    mistake.join()
    assert found.value.code == 2
    assert found.value.text.endswith("a.key: is wrong")
    assert signal.getsignal(signal.SIGUSR1) == before
