"""`deskhand compare`: what a run cost and reached, from a run written by hand."""

from __future__ import annotations

import dataclasses
import json

import pytest
from command_line import called

from deskhand.reporting.comparison import compare_runs, differing_settings, evaluated_steps
from deskhand.store.run import TRAIN, Checkpoint, EpisodeRow, Run

VALIDATION = " (evaluation.split=validation)"


def write(folder, *, learning_rate: float, validated: dict[int, int]) -> Run:
    """Three steps of four episodes, each step ending at second 10, 20, 30. `validated`: hits of 10 by version."""
    run = Run.create(folder, {"config": {"trainer": {"learning_rate": learning_rate}, "loop": {"group_size": 2}}})

    def add(name: str, phase: str, state: str, hit: bool, version: int, at: float, split: str) -> None:
        row = EpisodeRow(name, phase, None, 0, name.split("/")[-1], "square", 1, split, "in_flight", started_at=at)
        run.start_episode(row)
        value = None if state == "errored" else float(hit)
        more = {"state": state, "value": value, "reward": value, "version_min": version, "version_max": version}
        run.finish_episode(dataclasses.replace(row, **more, finished_at=at), {}, b"")

    run.commit(counts={}, checkpoint=Checkpoint(0, 0, folder / "checkpoints/step-000000", 0.0))
    for step in (1, 2, 3):
        for number, state in enumerate(("queued", "queued", "zero_variance", "errored")):
            add(f"{step}/{number}", TRAIN, state, number == 0, step - 1, 10 * step - 5 + number, "train")
        states = {f"{step}/{number}": ("trained", step) for number in (0, 1)}
        point = Checkpoint(step, step, folder / f"checkpoints/step-{step:06d}", 10.0 * step)
        metrics = [{"step": step, "version": step, "episodes/replayed": step - 1}]
        run.commit(counts={}, states=states, checkpoint=point, metrics=metrics)
    for version, hits in validated.items():
        for number in range(10):
            name = f"v{version}/{number}"
            add(name, f"version-{version}{VALIDATION}", "scored", number < hits, version, 100.0, "validation")
    for version, hits in ((0, 2), (3, 8)):
        for number in range(10):
            add(f"t{version}/{number}", f"version-{version}", "scored", number < hits, version, 200.0, "test")
    return run


@pytest.fixture
def runs(tmp_path):
    slow = write(tmp_path / "slow", learning_rate=1e-4, validated={1: 3, 2: 4, 3: 7})
    fast = write(tmp_path / "fast", learning_rate=1e-3, validated={1: 6, 2: 6, 3: 9})
    yield [slow, fast]
    slow.close()
    fast.close()


def test_episodes_to_a_threshold_are_those_until_the_first_evaluation_that_reached_it(runs):
    assert [each.to_threshold for each in compare_runs(runs, 0.6)] == [9, 3]
    assert [each.to_threshold for each in compare_runs(runs, 0.95)] == [None, None]
    assert [(one.step, one.episodes, one.success.hits) for one in evaluated_steps(runs[0])] == [
        (1, 3, 3),
        (2, 6, 4),
        (3, 9, 7),
    ]


def test_errored_episodes_cost_nothing_and_shares_are_of_the_scored_ones(runs):
    (slow, _) = compare_runs(runs)
    assert (slow.steps, slow.episodes, slow.zero_variance, slow.replayed) == (3, 9, 3, 3)
    assert slow.zero_variance_fraction == pytest.approx(1 / 3)
    assert (slow.before.hits, slow.after.hits, slow.after.total) == (2, 8, 10)


def test_only_the_settings_that_differ_are_shown(runs):
    assert differing_settings(runs) == {"trainer.learning_rate": [1e-4, 1e-3]}


def test_the_command_prints_both_runs_and_its_json(runs, monkeypatch, capsys):
    folders = [str(run.folder) for run in runs]
    code, out, _ = called(monkeypatch, capsys, "compare", *folders, "--threshold", "0.6")
    assert code == 0
    assert "episodes to 60 %" in out
    assert "trainer.learning_rate" in out
    lines = {line.split()[0]: line.split()[-1] for line in out.splitlines() if line.startswith(tuple(folders))}
    assert lines == dict(zip(folders, ("9", "3"), strict=True))
    code, out, _ = called(monkeypatch, capsys, "compare", *folders, "--json")
    found = json.loads(out)
    assert [one["to_threshold"] for one in found["runs"]] == [9, 3]
    code, _, err = called(monkeypatch, capsys, "compare", *folders, "--threshold", "0")
    assert (code, err) == (2, "error: --threshold: must be in (0, 1], got 0\n")
