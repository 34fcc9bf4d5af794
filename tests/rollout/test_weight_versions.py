"""Versions over kills: what undone weights sampled is trained with its own log-probs and never passes for what others
sampled."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

import training_fixture
from test_kill import noted, start

from deskhand.rollout.run_writer import load_result
from deskhand.rollout.weight_versions import WeightVersions
from deskhand.store.run import TRAIN, Run


def test_a_run_that_was_never_killed_numbers_its_weights_by_their_steps():
    versions = WeightVersions()
    assert versions.resume(0, 0, -1) is None
    assert versions.resume(7, 7, 7) is None, "an orderly end leaves nothing undone"
    assert versions.offset == 0
    assert [versions.step_of(version) for version in (0, 1, 7, 8)] == [0, 1, 7, 8]
    assert not any(versions.is_rolled_back(version) for version in range(9))


def test_versions_continue_above_all_stored_ones():
    """Killed at 8 with a checkpoint of 5, again at 10 with the same one, and at 17 with one of step 10."""
    versions = WeightVersions()
    assert versions.resume(5, 5, 8) is not None
    assert versions.step_of(9) == 6
    assert versions.resume(5, 5, 8) is None, "killed again before anything was kept"
    assert versions.resume(5, 5, 10) is not None
    assert [versions.step_of(version) for version in (5, 6, 8, 9, 10, 11, 15)] == [5, 6, 8, 6, 7, 6, 10]
    assert versions.resume(10, 15, 17) is not None
    assert versions.offset == 18 - 11
    undone = [version for version in range(20) if versions.is_rolled_back(version)]
    assert undone == [6, 7, 8, 9, 10, 16, 17]
    again = WeightVersions((segment.step, segment.first) for segment in versions.segments[1:])
    assert [again.step_of(version) for version in range(20)] == [versions.step_of(version) for version in range(20)]


async def resumed(folder: Path, steps: int) -> tuple[int, int, int]:
    """Go on with a run; steps, and the version of the weights to trainer and engine."""
    async with training_fixture.assembled(folder, training_fixture.small(total_steps=steps, save_every=2)) as parts:
        await parts.loop.run()
        return parts.trainer.steps, parts.trainer.version, parts.engine.version


def test_after_a_kill_between_checkpoints_no_version_is_used_for_other_weights(tmp_path: Path):
    """Three steps are undone.

    Their episodes are trained again, counted, and none passes for what the new weights sampled.
    """
    folder, journal = tmp_path / "run", tmp_path / "calls.jsonl"
    process = start(folder, 10_000, journal, checkpoint_every=1000)
    while not any(event["kind"] == "step" and event["at"] == 3 for event in noted(journal)):
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    with Run.open(folder, read_only=True) as run:
        assert run.checkpoint().step == 0
        newest, before = run.newest_version(), {row.id: row for row in run.episodes(TRAIN)}
    assert newest >= 1
    assert asyncio.run(resumed(folder, 3)) == (3, newest + 3, newest + 3)
    with Run.open(folder) as run:
        assert run.segments() == [(0, newest + 1)]
        assert [(each.step, each.version) for each in run.checkpoints()] == [(0, 0), (2, newest + 2), (3, newest + 3)]
        rows = run.episodes(TRAIN)
        fresh = [load_result(run, row.id) for row in rows if row.id not in before and run.has_record(row.id)]
        sampled = {version for result in fresh for call in result.graph.calls for version in call.completion.versions}
        assert sampled <= {0, *range(newest + 1, newest + 4)}
        of_undone = [
            row for row in rows if row.state == "trained" and row.id in before and (before[row.id].version_max or 0) > 0
        ]
        steps = run.metrics()
        assert sum(line["episodes/resampled_after_resume"] for line in steps) == len(of_undone) > 0
        assert all(line["policy/staleness"] >= 0 for line in steps)
    assert asyncio.run(resumed(folder, 4)) == (4, newest + 4, newest + 4), "an orderly end is no kill"
