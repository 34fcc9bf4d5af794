"""Runs as plain files, without loss."""

import time

import episode_results
import pytest
from test_frames import screen

from deskhand.errors import ConfigError, InfrastructureError
from deskhand.rollout.episode_record import from_record, to_record
from deskhand.rollout.run_writer import row_of
from deskhand.store.export import export_run, exported_episodes, exported_frames, exported_summary, screens_of
from deskhand.store.run import TRAIN, EpisodeRow, Run


@pytest.fixture
def run(tmp_path):
    """Two finished episodes, one cancelled by a kill, one in flight; their screens are really there."""
    names = {}
    with Run.create(tmp_path / "run", {"model": "tiny"}) as made:
        for letter, seed in (("d", 1), ("e", 2), ("f", 3), ("a1", 4), ("a2", 5), ("a3", 6)):
            names[letter], pixels = screen(seed)
            made.frames.put(names[letter], pixels)
        for name in ("one", "two", "killed"):
            made.start_episode(
                EpisodeRow(name, TRAIN, None, 0, "t/1", "t", 1, "train", "in_flight", started_at=time.time())
            )
            if name == "killed":
                continue
            result = episode_results.result(1.0 if name == "one" else None, episode_id=name)
            record, tensors = to_record(result)
            text = {"d" * 64: "d", "e" * 64: "e", "f" * 64: "f"} | {f"{key:0>64}": key for key in ("a1", "a2", "a3")}
            record["transcript"]["last_frame_sha256"] = names["d"]
            for step in record["transcript"]["steps"]:
                step["frame_sha256"] = names[text[step["frame_sha256"]]]
            for call in record["graph"]["calls"]:
                call["new_spans"] = [[start, count, names[text[sha256]]] for start, count, sha256 in call["new_spans"]]
            made.finish_episode(row_of(result, TRAIN, "queued" if name == "one" else "errored"), record, tensors)
        made.abandon_in_flight()
        made.start_episode(
            EpisodeRow("flying", TRAIN, None, 0, "t/1", "t", 1, "train", "in_flight", started_at=time.time())
        )
        made.commit(counts={"started": 4}, metrics=[{"step": 1, "reward": 1.0}])
        yield made


def test_an_export_is_loaded_back_equal(run, tmp_path):
    assert export_run(run, tmp_path / "out") == 3
    found = {row.id: (row, record, tensors) for row, record, tensors in exported_episodes(tmp_path / "out")}
    assert set(found) == {"one", "two", "killed"}
    for name in ("one", "two"):
        assert found[name] == run.episode(name)
        assert from_record(*found[name][1:]) == from_record(*run.episode(name)[1:])
    assert found["killed"][1:] == (None, b"")
    assert exported_summary(tmp_path / "out")["metadata"] == {"model": "tiny"}
    frames = exported_frames(tmp_path / "out")
    wanted = screens_of(run.episode("one")[1])
    assert set(frames) == wanted
    assert all((frames.rgb(sha256) == run.frames.rgb(sha256)).all() for sha256 in wanted)
    assert (tmp_path / "out" / "metrics.jsonl").read_text() == (run.folder / "metrics.jsonl").read_text()


def test_an_export_that_fails_leaves_nothing_that_looks_whole(run, tmp_path):
    next(run.frames.folder.glob("??/*.zst")).unlink()
    with pytest.raises(InfrastructureError, match="missing"):
        export_run(run, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_folders_in_use_and_foreign_folders_are_refused(run, tmp_path):
    with pytest.raises(ConfigError, match="not empty"):
        export_run(run, run.folder)
    with pytest.raises(ConfigError, match=r"run\.json: cannot be read"):
        exported_summary(tmp_path)
