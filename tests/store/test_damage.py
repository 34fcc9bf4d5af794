"""A damaged run folder is reported in one line, and nothing of it is lost or changed."""

from __future__ import annotations

import hashlib
import random
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import episode_results
import numpy as np
import pytest

from deskhand.errors import ConfigError, InfrastructureError
from deskhand.rollout.episode_counts import EpisodeCounts
from deskhand.rollout.episode_record import to_record
from deskhand.rollout.run_writer import RunWriter, load_result, row_of
from deskhand.store import run_log
from deskhand.store.database import connect
from deskhand.store.run import TRAIN, Checkpoint, EpisodeRow, GroupRow, Run

PAGE = 4096
SEEDS = 60
NUM_EPISODES = 30


def fill(folder: Path, killed: Path) -> None:
    """A run with episodes, metrics, a checkpoint and screenshots; large records take overflow pages.

    `killed` is the same run as a kill leaves it, with its write-ahead log.
    """
    rng = np.random.default_rng(1)
    with Run.create(folder, {"seed": 7}) as run:
        run.open_group(GroupRow("g", 0, "t", 1, "open"))
        for number in range(NUM_EPISODES):
            row = EpisodeRow(
                f"e{number}", TRAIN, "g", number, "t/1", "t", 1, "train", "in_flight", started_at=time.time()
            )
            run.start_episode(row)
            record = {"text": "x" * (200 * number), "number": number}
            run.finish_episode(replace(row, state="queued", value=0.5), record, rng.bytes(3000))
        for _ in range(3):
            rgb = rng.integers(0, 255, (32, 48, 3), dtype=np.uint8)
            run.frames.put(hashlib.sha256(rgb.tobytes()).hexdigest(), rgb)
        checkpoint = Checkpoint(1, 1, folder / "checkpoints" / "step-000001", 1.0)
        run.commit(counts={"started": NUM_EPISODES}, checkpoint=checkpoint, metrics=[{"step": 1, "reward": 0.5}])
        shutil.copytree(folder, killed)


def read_all(folder: Path, *, read_only: bool) -> None:
    with Run.open(folder, read_only=read_only) as run:
        for row in run.episodes():
            if run.has_record(row.id):
                run.episode(row.id)
        _ = (run.metadata, run.groups(), run.count_states(), run.episode_counts(), run.checkpoints(), run.segments())
        _ = (run.metrics(), run.newest_version())
        for sha256 in run.frames:
            run.frames.rgb(sha256)


def problem_of(folder: Path, *, read_only: bool) -> str | None:
    try:
        read_all(folder, read_only=read_only)
    except (ConfigError, InfrastructureError) as error:
        return str(error)
    return None


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    fill(folder, folder.with_name("killed"))
    return folder


@pytest.fixture
def copied(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "run"))


def flip(data: bytes, rng: random.Random) -> bytes:
    damaged = bytearray(data)
    for _ in range(rng.randint(1, 40)):
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
    return bytes(damaged)


def zero(data: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(0, len(data), PAGE)
    length = min(PAGE * rng.randint(1, 4), len(data) - start)
    return data[:start] + bytes(length) + data[start + length :]


def cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))]


def noise(data: bytes, rng: random.Random) -> bytes:
    return rng.randbytes(len(data))


DAMAGES: tuple[Callable[[bytes, random.Random], bytes], ...] = (flip, zero, cut, noise)


@pytest.mark.parametrize("read_only", [False, True])
def test_damage_anywhere_is_one_line_or_harmless_and_changes_no_database(
    read_only: bool, whole: Path, tmp_path
) -> None:
    reported = 0
    for seed in range(SEEDS):
        rng = random.Random(seed)
        folder = Path(shutil.copytree(whole, tmp_path / f"run{seed}"))
        files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
        path = folder / "run.sqlite" if seed % 3 else rng.choice(files)
        path.write_bytes(DAMAGES[seed % len(DAMAGES)](path.read_bytes(), rng))
        before = (folder / "run.sqlite").read_bytes()
        message = problem_of(folder, read_only=read_only)
        if message is not None:
            reported += 1
            assert str(folder) in message, f"seed {seed}: the file is named"
            assert "\n" not in message, f"seed {seed}"
            assert (folder / "run.sqlite").read_bytes() == before, f"seed {seed}: recoverable as it was"
    assert reported > SEEDS / 3


def zero_page_of(folder: Path, table: str) -> None:
    """Zero the root page of a table that opening a run does not read."""
    connection = connect(folder)
    (page,) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name=?", (table,)).fetchone()
    connection.close()
    with (folder / "run.sqlite").open("r+b") as file:
        file.seek((page - 1) * PAGE)
        file.write(bytes(PAGE))


def test_a_damaged_write_ahead_log_is_one_line_or_ends_where_the_damage_is(whole: Path, tmp_path: Path) -> None:
    for seed in range(SEEDS // 2):
        rng = random.Random(seed)
        folder = Path(shutil.copytree(whole.with_name("killed"), tmp_path / f"run{seed}"))
        log = folder / "run.sqlite-wal"
        log.write_bytes(DAMAGES[seed % len(DAMAGES)](log.read_bytes(), rng))
        message = problem_of(folder, read_only=bool(seed % 2))
        assert message is None or (str(folder) in message and "\n" not in message), f"seed {seed}"


def test_a_damaged_database_is_not_opened_for_writing(copied: Path) -> None:
    zero_page_of(copied, "segments")
    before = (copied / "run.sqlite").read_bytes()
    for _ in range(2):  # the first attempt gives the lock back
        with pytest.raises(ConfigError, match=re.escape(f"{copied / 'run.sqlite'}: damaged (")):
            Run.open(copied)
    assert (copied / "run.sqlite").read_bytes() == before
    with Run.open(copied, read_only=True) as run:
        assert len(run.episodes()) == NUM_EPISODES, "what is whole can be read"
        with pytest.raises(ConfigError, match="damaged"):
            run.segments()


def test_damage_under_an_open_run_ends_it_in_one_line(copied: Path) -> None:
    with Run.open(copied) as run:
        run._connection.execute("PRAGMA shrink_memory")  # pages in memory hide the damage
        path = copied / "run.sqlite"
        path.write_bytes(path.read_bytes()[:PAGE] + bytes(path.stat().st_size - PAGE))
        with pytest.raises(ConfigError, match="damaged"):
            run.start_episode(EpisodeRow("z", TRAIN, "g", 0, "t/1", "t", 1, "train", "in_flight"))
        with pytest.raises(ConfigError, match="damaged"):
            run.episode("e3")


@pytest.mark.parametrize("column", ["metadata", "counts", "record"])
def test_a_value_that_is_not_json_is_one_line(column: str, copied: Path) -> None:
    updates = {
        "metadata": "UPDATE runs SET value='{\"se' WHERE key='metadata'",
        "counts": "UPDATE episode_counts SET counts=x'ff00'",
        "record": "UPDATE episodes SET record=CAST(x'7bff' AS TEXT)",
    }
    reads: dict[str, Callable[[Run], object]] = {
        "metadata": lambda run: run.metadata,
        "counts": Run.episode_counts,
        "record": lambda run: run.episode("e1"),
    }
    connection = connect(copied)
    connection.execute(updates[column])
    connection.close()
    with Run.open(copied) as run, pytest.raises(ConfigError, match=r"run\.sqlite: damaged \("):
        reads[column](run)


DAMAGED_EPISODES = {
    "record": ("UPDATE episodes SET record=json_remove(record, '$.transcript')", "KeyError"),
    "record of other types": ("UPDATE episodes SET record=json_set(record, '$.transcript', 3)", "TypeError"),
    "tensors": ("UPDATE episodes SET tensors=zeroblob(500)", "SafetensorError"),
    "no tensors": ("UPDATE episodes SET tensors=NULL", "TypeError"),
}


@pytest.mark.parametrize("name", DAMAGED_EPISODES)
def test_a_damaged_episode_is_one_line_with_its_name(name: str, tmp_path: Path) -> None:
    update, reason = DAMAGED_EPISODES[name]
    result = episode_results.result(0.5, episode_id="a")
    with Run.create(tmp_path / "run", {}) as run:
        run.start_episode(EpisodeRow("a", TRAIN, "g", 0, "t/1", "t", 1, "train", "in_flight"))
        run.finish_episode(row_of(result, TRAIN, "queued"), *to_record(result))
        assert load_result(run, "a") == result
        run._connection.execute(update)
        with pytest.raises(ConfigError, match=rf"run\.sqlite: damaged \(episode a: {reason}"):
            load_result(run, "a")


def test_damaged_metrics_are_rewritten_from_the_database(copied: Path) -> None:
    before = (copied / "metrics.jsonl").read_bytes()
    (copied / "metrics.jsonl").write_bytes(b"\xff\xfe" + before)
    Run.open(copied).close()
    assert (copied / "metrics.jsonl").read_bytes() == before
    (copied / "metrics.jsonl").unlink()
    (copied / "metrics.jsonl").mkdir()
    Run.open(copied).close()


@pytest.mark.parametrize(
    "update",
    [
        "UPDATE episodes SET state='queuec' WHERE id='e3'",
        "UPDATE episode_counts SET counts=json_set(counts, '$.trained', 4)",
        "UPDATE episode_counts SET counts=json_set(counts, '$.trained', 'x')",
        "UPDATE episode_counts SET counts=json_set(counts, '$.trainee', 0)",
        "UPDATE episode_counts SET counts=json_set(counts, '$.errored', 3)",
    ],
)
def test_counts_that_differ_from_the_episodes_end_a_resume_before_it_changes_anything(update: str, tmp_path) -> None:
    with Run.create(tmp_path / "run", {}) as run:
        counts = EpisodeCounts()
        counts.start()
        run.start_episode(EpisodeRow("e3", TRAIN, "g", 0, "t/1", "t", 1, "train", "in_flight"), counts.to_dict())
        run._connection.execute(update)
        before = run.episodes(), run.episode_counts()
        with pytest.raises(ConfigError, match=r"run\.sqlite: damaged \("):
            RunWriter(run).recover()
        assert (run.episodes(), run.episode_counts()) == before


def test_log_lines_that_cannot_be_written_are_dropped(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(run_log.structlog, "configure", lambda **settings: configured.update(settings))
    configured: dict = {}
    (tmp_path / "log.jsonl").symlink_to("/dev/full")
    run_log.log_to_run(tmp_path)
    logger = configured["logger_factory"]()
    for _ in range(3):
        logger.info('{"event": "x"}')


def test_a_damaged_schema_that_is_not_text_is_one_line(copied: Path) -> None:
    path = copied / "run.sqlite"
    data = path.read_bytes()
    assert b"CREATE TABLE episodes" in data
    path.write_bytes(data.replace(b"CREATE TABLE episodes", b"CREATE TAB\xe9E episodes"))
    for read_only in (False, True):
        message = problem_of(copied, read_only=read_only)
        assert message is not None
        assert str(path) in message
