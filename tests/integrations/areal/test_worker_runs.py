"""What workers wrote, joined: a run like a local one, the same however often it is joined."""

from __future__ import annotations

import time
from dataclasses import replace

import fake_desktop
import numpy as np
import pytest

from deskhand.integrations.areal import worker_runs
from deskhand.integrations.areal.workflow import run_group
from deskhand.reporting.build_report import build_report_view
from deskhand.rollout.episode import errored_result
from deskhand.store.run import TRAIN, Run
from deskhand.tasks.outcome import Scored


@pytest.fixture
def folder(tmp_path):
    yield tmp_path
    run = worker_runs._runs.pop(str(tmp_path), None)
    if run is not None:
        run.close()


async def group(folder, name, rewards):
    """A group whose members end with these rewards (None: an outage), kept as a worker keeps it."""

    async def play(ticket):
        result = errored_result(ticket, "infrastructure", "told to fail")
        reward = rewards[ticket.member]
        return result if reward is None else replace(result, outcome=Scored(reward), reward=reward)

    made, results = await run_group(name, fake_desktop.square_task(1), len(rewards), play, timeout_s=5)
    worker_runs.save_group(str(folder), made, results, time.time())


async def test_workers_and_statistics_become_one_run(folder):
    worker_runs.open_worker_run(str(folder)).frames.put("a" * 64, np.zeros((4, 4, 3), np.uint8))
    await group(folder, "one", [1.0, 0.0, None])
    worker_runs.add_statistics(
        folder, 1, {"ppo_actor/update/actor_loss/avg": 0.25, "ppo_actor/update/grad_norm": 2.0, "name": "x"}
    )
    await group(folder, "two", [0.5, 0.5])
    worker_runs.add_statistics(folder, 2, {"ppo_actor/update/actor_loss/avg": 0.5})
    for _ in range(2):
        assert worker_runs.merge_worker_runs(folder, {"title": "both", "facts": {}}) == folder
        with Run.open(folder, read_only=True) as run:
            states = sorted(row.state for row in run.episodes(TRAIN))
            assert states == ["errored", "queued", "queued", "zero_variance", "zero_variance"]
            books = run.episode_counts()
            assert (books["started"], books["queued"], books["zero_variance"]) == (5, 2, 2)
            assert books["errored"]["infrastructure"] == 1
            first, second = run.metrics()
            assert (first["reward/mean"], first["train/loss"], first["train/grad_norm"]) == (0.5, 0.25, 2.0)
            assert first["episodes/errored_frac_total"] == pytest.approx(1 / 3)
            assert (second["reward/mean"], second["reward/success_rate"]) == (0.5, 0.0)
            view = build_report_view(run)
            assert view.title == "both"
            assert len(view.steps) == 2
            assert run.frames.png("a" * 64)


def test_nothing_is_joined_where_no_worker_wrote(folder):
    assert worker_runs.merge_worker_runs(folder, {}) is None
    assert not list(folder.iterdir())
