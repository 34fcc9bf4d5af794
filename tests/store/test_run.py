"""Run directories: transactions, resuming, rejected folders."""

import json
import sqlite3
import time

import episode_results
import pytest

from deskhand.errors import ConfigError, InfrastructureError
from deskhand.rollout.episode_record import from_record, to_record
from deskhand.rollout.run_writer import row_of
from deskhand.store.run import TRAIN, Checkpoint, EpisodeRow, GroupRow, Run


def row(name: str, state: str = "in_flight") -> EpisodeRow:
    return EpisodeRow(name, TRAIN, "g", 0, "t/1", "t", 1, "train", state, started_at=time.time())


def finish(run: Run, name: str, reward: float | None = 1.0, **more) -> None:
    result = episode_results.result(reward, episode_id=name)
    record, tensors = to_record(result)
    run.finish_episode(row_of(result, TRAIN, "queued" if reward is not None else "errored"), record, tensors, **more)


@pytest.fixture
def run(tmp_path):
    with Run.create(tmp_path / "run", {"seed": 7}) as made:
        made.open_group(GroupRow("g", 0, "t", 1, "open"))
        for name in ("a", "b", "c"):
            made.start_episode(row(name))
        yield made


def test_the_full_disk_is_named_by_what_fails_because_of_it(run):
    """The process believes that the episode is queued; the database could not be told."""
    run._connection.execute("PRAGMA max_page_count = 1")  # SQLite takes the number of pages that there are
    with pytest.raises(InfrastructureError, match=r"run\.sqlite: cannot be written \(database or disk is full\)"):
        run.finish_episode(row("a", "queued"), {"text": "a" * 1_000_000}, b"")
    with pytest.raises(InfrastructureError, match=r"run\.sqlite: cannot be written .*free disk space, then resume"):
        run.commit(counts={}, states={"a": ("trained", 1)})
    run._connection.execute("PRAGMA max_page_count = 1000000")
    finish(run, "a")
    run.commit(counts={}, states={"a": ("trained", 1)})


def test_a_finished_episode_is_read_back_equal(run):
    finish(run, "a", 0.5)
    kept, record, tensors = run.episode("a")
    assert from_record(record, tensors) == episode_results.result(0.5, episode_id="a")
    assert (kept.state, kept.reward, kept.first_click) == ("queued", 0.5, True)
    assert run.count_states() == {("in_flight", None): 2, ("queued", None): 1}


def test_an_episode_is_stored_once_and_trained_once(run):
    finish(run, "a")
    with pytest.raises(InfrastructureError, match="not in flight"):
        finish(run, "a")
    run.commit(counts={}, states={"a": ("trained", 1)})
    with pytest.raises(InfrastructureError, match="not queued"):
        run.commit(counts={}, states={"a": ("trained", 2)})
    assert run.episode("a")[0].step == 1


def test_a_commit_is_all_or_nothing(run, tmp_path):
    finish(run, "a")
    point = Checkpoint(1, 1, run.folder / "checkpoints" / "step-000001", 1.0)
    with pytest.raises(InfrastructureError):
        run.commit(
            counts={"x": 1},
            states={"a": ("trained", 1), "b": ("trained", 1)},
            closed_groups=["g"],
            checkpoint=point,
            metrics=[{"step": 1}],
        )
    assert run.checkpoint() is None
    assert run.episode("a")[0].state == "queued"
    assert run.groups()[0].state == "open"
    assert (run.episode_counts(), run.metrics()) == ({}, [])
    run.commit(
        counts={"x": 1},
        states={"a": ("trained", 1)},
        closed_groups=["g"],
        checkpoint=point,
        metrics=[{"step": 1, "reward": 0.5}],
    )
    assert run.checkpoint() == point
    assert run.groups("closed")[0].id == "g"
    assert run.episode_counts() == {"x": 1}


def test_after_a_kill_episodes_in_flight_are_errored_and_finished_ones_stay(run):
    finish(run, "a")
    folder = run.folder
    run.close()
    with Run.open(folder) as again:
        assert again.metadata == {"seed": 7}
        assert again.abandon_in_flight() == 2
        assert again.count_states() == {("queued", None): 1, ("errored", "infrastructure"): 2}


def test_metrics_lines_torn_by_a_kill_are_rewritten(run):
    run.commit(counts={}, metrics=[{"step": 1, "reward": 0.5}, {"step": 2, "reward": 0.75}])
    path = run.folder / "metrics.jsonl"
    whole = path.read_text()
    assert [json.loads(line) for line in whole.splitlines()] == run.metrics()
    for torn in (whole[:-9], "", whole + "{"):
        path.write_text(torn)
        folder = run.folder
        run.close()
        run = Run.open(folder)
        assert path.read_text() == whole
    run.close()


def test_bad_folders_are_refused_in_one_line(tmp_path, run):
    with pytest.raises(ConfigError, match="not a run"):
        Run.open(tmp_path / "nothing")
    with pytest.raises(ConfigError, match="already contains a run"):
        Run.create(run.folder, {})
    with pytest.raises(ConfigError, match="in use"):
        Run.open(run.folder)
    with Run.open(run.folder, read_only=True) as reader:
        assert len(reader.episodes()) == 3
    folder = run.folder
    run.close()
    with sqlite3.connect(folder / "run.sqlite") as connection:
        connection.execute("UPDATE runs SET value='1' WHERE key='format'")
    with pytest.raises(ConfigError, match="run format 1, this version reads format 2; start a new run"):
        Run.open(folder)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.sqlite").write_bytes(b"not a database" * 100)
    with pytest.raises(ConfigError, match="not a run"):
        Run.open(tmp_path / "broken")
