"""An episode as GIF and MP4: every screen with its action, in order, and why it failed; text of a guest stays text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks.generated_run import generate
from deskhand.reporting.episode_video import MIN_WIDTH, draw_frames
from deskhand.reporting.episode_view import episode_data
from deskhand.rollout.run_writer import load_result
from deskhand.store.run import TRAIN, Run


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Iterator[Run]:
    folder = generate(tmp_path_factory.mktemp("video") / "run", 32)
    with Run.open(folder, read_only=True) as run:
        yield run


def failed_of(run: Run) -> str:
    """An episode that failed, with several steps of which one has a point."""
    for row in run.episodes(TRAIN):
        if run.has_record(row.id) and row.value is not None and row.value < 1:
            data = episode_data(load_result(run, row.id), "", run)
            if len(data["steps"]) > 1 and any(step["marks"] for step in data["steps"]):
                return row.id
    raise AssertionError("no such episode")


def test_every_screen_is_a_frame_with_its_action_on_it(run: Run) -> None:
    data = episode_data(load_result(run, failed_of(run)), "", run)
    frames = draw_frames(run, data)
    assert len(frames) == len(data["steps"]) + 1
    assert len({frame.size for frame in frames}) == 1
    assert frames[0].width >= MIN_WIDTH
    plain = draw_frames(run, {**data, "steps": [{**step, "marks": []} for step in data["steps"]]})
    for step, frame, without in zip(data["steps"], frames, plain, strict=False):
        found = np.argwhere((np.asarray(frame) != np.asarray(without)).any(axis=2))
        assert bool(len(found)) is bool(step["marks"])
        if step["marks"]:
            size = run.frames.size(step["frame"])
            assert size is not None
            scale = frame.width / size[0]
            x, y = ((side + 0.5) * scale for side in step["marks"][-1]["points"][-1])
            assert abs(found.mean(axis=0) - (y, x)).max() < frame.width / 4
            assert frame.getpixel((round(x), round(y))) != without.getpixel((round(x), round(y)))


def test_the_command_writes_a_gif_that_shows_the_steps_for_their_time(run: Run, tmp_path: Path, cli) -> None:
    name = failed_of(run)
    path = tmp_path / "new" / "episode.gif"
    out = cli("export", str(run.folder), "--episode", name, "--out", str(path), "--step-s", "0.5")
    assert out.strip() == str(path)
    with Image.open(path) as video:
        durations = []
        for at in range(getattr(video, "n_frames", 1)):
            video.seek(at)
            durations.append(video.info["duration"])
    # Equal frames that follow each other are one, which is shown for the time of both.
    assert sum(durations) == 500 * len(load_result(run, name).steps) + 3000
    assert [each.name for each in path.parent.iterdir()] == ["episode.gif"]


def test_an_mp4_has_one_sample_per_frame(run: Run, tmp_path: Path, cli) -> None:
    name = failed_of(run)
    path = tmp_path / "episode.mp4"
    cli("export", str(run.folder), "--episode", name[:12], "--out", str(path))
    content = path.read_bytes()
    assert content[4:8] == b"ftyp"
    assert content.count(b"\xff\xd8\xff") == len(load_result(run, name).steps) + 1
    with Image.open(_first_jpeg(content, tmp_path)) as first:
        assert first.width >= MIN_WIDTH


def _first_jpeg(content: bytes, folder: Path) -> Path:
    start = content.index(b"\xff\xd8\xff")
    path = folder / "first.jpg"
    path.write_bytes(content[start : content.index(b"\xff\xd9", start) + 2])
    return path


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--episode", "absent", "--out", "{new}.gif"], "--episode absent: no finished episodes"),
        (["--episode", "{id}", "--out", "{new}.avi"], "must end in .gif or .mp4"),
        (["--episode", "{id}", "--out", "{there}.gif"], "exists; use another file"),
        (["--episode", "{id}", "--out", "{new}.gif", "--step-s", "0"], "--step-s: must be above 0"),
        (["--episode", "{id}", "--out", "{new}.gif", "--scrub"], "remove --episodes, --scrub"),
        (["--episode", "{id}", "--out", "{there}.gif/x.gif"], "cannot be written"),
    ],
)
def test_mistakes_are_one_line_and_write_nothing(words, message, run: Run, tmp_path: Path, cli_error) -> None:
    (tmp_path / "there.gif").write_bytes(b"kept")
    places = {"{id}": failed_of(run), "{new}": str(tmp_path / "new"), "{there}": str(tmp_path / "there")}
    for name, place in places.items():
        words = [word.replace(name, place) for word in words]
    assert message in cli_error("export", str(run.folder), *words)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("there.gif", b"kept")]
