"""Runs as plain files, without loss."""

import json
import time

import episode_results
import numpy as np
import pytest
from PIL import Image
from test_frames import screen

from deskhand.errors import ConfigError, InfrastructureError
from deskhand.rollout.episode_record import to_record
from deskhand.rollout.run_writer import row_of
from deskhand.store.export import export_run, screens_of
from deskhand.store.run import TRAIN, EpisodeRow, Run


def in_flight(name):
    return EpisodeRow(name, TRAIN, None, 0, "t/1", "t", 1, "train", "in_flight", started_at=time.time())


@pytest.fixture
def run(tmp_path):
    """Two finished episodes, one cancelled by a kill, one in flight; their screens are really there."""
    names = {}
    with Run.create(tmp_path / "run", {"model": "tiny"}) as made:
        for letter, seed in (("d", 1), ("e", 2), ("f", 3), ("a1", 4), ("a2", 5), ("a3", 6)):
            names[letter], pixels = screen(seed)
            made.frames.put(names[letter], pixels)
        for name in ("one", "two", "killed"):
            made.start_episode(in_flight(name))
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
        made.start_episode(in_flight("flying"))
        made.commit(counts={"started": 4}, metrics=[{"step": 1, "reward": 1.0}])
        yield made


def test_an_export_holds_the_finished_episodes_without_loss(run, tmp_path):
    out = tmp_path / "out"
    assert export_run(run, out) == 3
    found = {entry["id"]: entry for entry in map(json.loads, (out / "episodes.jsonl").read_text().splitlines())}
    assert set(found) == {"one", "two", "killed"}
    assert found.pop("killed")["record"] is None
    for name, entry in found.items():
        tensors, record = (out / "tensors" / f"{name}.safetensors").read_bytes(), entry.pop("record")
        assert (EpisodeRow(**entry), record, tensors) == run.episode(name)
    assert json.loads((out / "run.json").read_text())["metadata"] == {"model": "tiny"}
    images = {path.stem: path for path in out.glob("frames/??/*.png")}
    assert set(images) == screens_of(run.episode("one")[1])
    assert all((np.asarray(Image.open(path)) == run.frames.rgb(name)).all() for name, path in images.items())
    assert (out / "metrics.jsonl").read_text() == (run.folder / "metrics.jsonl").read_text()


def test_an_export_that_fails_leaves_nothing_that_looks_whole(run, tmp_path):
    next(run.frames.folder.glob("??/*.zst")).unlink()
    with pytest.raises(InfrastructureError, match="missing"):
        export_run(run, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_folder_in_use_is_rejected(run):
    with pytest.raises(ConfigError, match="not empty"):
        export_run(run, run.folder)
