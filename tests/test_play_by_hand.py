"""`deskhand try`: a task that a person plays in the browser, judged, and kept as a demonstration that SFT learns."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import painted_run
import pytest
from command_line import called
from live_canvas import click
from patience import limit
from person import HttpPerson, wanted_square

from deskhand.config.load import Config, load_config
from deskhand.errors import ConfigError
from deskhand.recipes.play_by_hand import play_by_hand, prepare, suite_of
from deskhand.recipes.sft import FIRST_SEED, demonstrations_from_runs
from deskhand.recipes.step_report import ProgressListener
from deskhand.recipes.train import create_run
from deskhand.server.live_app import LIVE_FILE
from deskhand.store.frames import Frames
from deskhand.store.run import DEMONSTRATIONS, Run
from deskhand.tasks.outcome import Scored


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return painted_run.config_file(tmp_path_factory.mktemp("by-hand"))


@pytest.fixture
def settings(config: Path) -> Config:
    return load_config(config)


@pytest.fixture
def run(settings: Config, tmp_path: Path) -> Iterator[Run]:
    with create_run(settings, tmp_path / "run", "deskhand try square", needs_model=False) as run:
        yield run


async def test_what_a_person_plays_is_judged_and_learned_by_sft(settings: Config, run: Run, tmp_path: Path) -> None:
    for number in range(2):
        play = prepare(settings, run, "square")
        assert (play.request.task.seed, play.request.task.split) == (FIRST_SEED + number, "train")
        playing = asyncio.create_task(play_by_hand(play, run, ProgressListener()))
        while not (run.folder / LIVE_FILE).exists():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        where = json.loads((run.folder / LIVE_FILE).read_bytes())
        person = HttpPerson(
            f"http://127.0.0.1:{where['port']}/#token={where['token']}&control={where['token']}&page=/x"
        )
        person.path = f"http://127.0.0.1:{where['port']}/api/desktops/{play.request.episode_id}"
        at = await wanted_square(play.request.task)
        await asyncio.to_thread(person.take_over)
        await asyncio.to_thread(person.do, **click(at if number == 0 else (1, 1)))
        await asyncio.to_thread(person.do, kind="done")
        result = await playing
        assert isinstance(result.outcome, Scored)
        assert result.outcome.value == 1.0 - number
        assert not (run.folder / LIVE_FILE).exists()
    assert [row.value for row in run.episodes(DEMONSTRATIONS)] == [1.0, 0.0]
    frames = Frames(tmp_path / "frames")
    model = settings.model
    (learned,) = demonstrations_from_runs([run.folder], model, "error", frames, ProgressListener())
    assert learned.source == f"a person in the run {run.folder.name}"
    assert sum(sum(row.target) for row in learned.rows) > 0
    assert {span.sha256 for row in learned.rows for span in row.spans} == set(frames)


def test_a_task_is_a_family_a_file_or_a_family_of_a_file(settings: Config, tmp_path: Path) -> None:
    own = settings.suite
    assert suite_of(own, "square").families == ("square",)
    assert suite_of(own, "square").name == own.name
    python = suite_of(own, "tasks.py:save_note")
    assert (python.name, python.format, python.path, python.families) == (
        None, "python", Path("tasks.py"), ("save_note",),
    )  # fmt: skip
    task = tmp_path / "note.yaml"
    task.write_text("deskhand: 1\n")
    native = suite_of(own, str(task))
    assert (native.format, native.path, native.families) == ("deskhand", tmp_path, ("note",))
    with pytest.raises(ConfigError, match="no such task file"):
        suite_of(own, str(tmp_path / "absent.yaml"))


def test_an_unknown_task_is_one_line_and_leaves_no_folder(
    config: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    folder = tmp_path / "run"
    code, _, err = called(monkeypatch, capsys, "try", "squares", str(folder), "--config", str(config))
    assert (code, err.count("\n")) == (2, 1), err
    assert "unknown family 'squares'" in err
    assert not folder.exists()


def test_the_command_prints_a_url_a_verdict_and_no_secret_elsewhere(config: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = painted_run.command("try", "square", str(folder), "--config", str(config))
    trial = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=painted_run.environment()
    )
    assert trial.stdout is not None
    try:
        url = trial.stdout.readline()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/#token=[\w-]{20,}&control=[\w-]{20,}&page=\S+\n", url)
        person = HttpPerson(url.strip())
        person.take_over()
        person.do(**click((1, 1)))
        person.do(kind="done")
        verdict = [trial.stdout.readline() for _ in range(3)]
        assert verdict[:2] == ["score 0.00 in 2 steps\n", "  end state: read clicked []\n"]
        assert f"kept in {folder} as " in verdict[2]
        trial.send_signal(signal.SIGINT)
        more, complaints = trial.communicate(timeout=limit(20))
    finally:
        trial.kill()  # when it was not ended by then
        trial.wait(20)
    assert trial.returncode == 130
    logged = (folder / "log.jsonl").read_text() if (folder / "log.jsonl").exists() else ""
    assert not any(secret in more + complaints + "".join(verdict) + logged for secret in person.secrets)
    with Run.open(folder, read_only=True) as run:
        assert [row.value for row in run.episodes(DEMONSTRATIONS)] == [0.0]
    assert (folder / "report.html").exists()
