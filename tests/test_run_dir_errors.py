"""Folders that are not what they should be: every command on runs says so in one line, names the file, and harms
nothing."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
import training_fixture
from test_cli import CONFIG

from deskhand.config.load import Config
from deskhand.models.load import load
from deskhand.store.run import Checkpoint, Run
from deskhand.trainer.checkpoint import CheckpointManager
from deskhand.trainer.policy import Policy
from deskhand.trainer.trainer import Trainer


def run_in(folder: Path, **about: object) -> None:
    Run.create(folder, {"title": "t", "config": Config().model_dump(mode="json"), **about}).close()


def emptied(folder: Path) -> None:
    run_in(folder)
    (folder / "run.sqlite").write_bytes(b"")


def torn(folder: Path) -> None:
    run_in(folder)
    data = (folder / "run.sqlite").read_bytes()
    (folder / "run.sqlite").write_bytes(data[: len(data) // 2])


def zeroed(folder: Path) -> None:
    run_in(folder)
    data = (folder / "run.sqlite").read_bytes()
    (folder / "run.sqlite").write_bytes(data[:4096] + bytes(len(data) - 4096))


def garbage(folder: Path) -> None:
    folder.mkdir()
    (folder / "run.sqlite").write_bytes(b"not a database at all\n" * 200)


def foreign(folder: Path) -> None:
    folder.mkdir()
    connection = sqlite3.connect(folder / "run.sqlite")
    connection.execute("CREATE TABLE music (title TEXT)")
    connection.commit()
    connection.close()


def of_the_future(folder: Path) -> None:
    run_in(folder)
    connection = sqlite3.connect(folder / "run.sqlite")
    connection.execute("UPDATE runs SET value='99' WHERE key='format'")
    connection.commit()
    connection.close()


def a_folder_named_so(folder: Path) -> None:
    (folder / "run.sqlite").mkdir(parents=True)


def a_file(folder: Path) -> None:
    folder.write_text("a file")


def under_a_file(folder: Path) -> None:
    folder.parent.rmdir()
    folder.parent.write_text("a file")


def with_unknown_settings(folder: Path) -> None:
    run_in(folder, config={**Config().model_dump(mode="json"), "no_such_setting": 3})


FOLDERS: dict[str, Callable[[Path], None]] = {
    made.__name__: made
    for made in (
        emptied,
        torn,
        zeroed,
        garbage,
        foreign,
        of_the_future,
        a_folder_named_so,
        a_file,
        under_a_file,
        with_unknown_settings,
    )
}
COMMANDS = {
    "eval": ["eval", "{folder}"],
    "eval of a script": ["eval", "{folder}", "--policy", "oracle"],
    "eval of another run": ["eval", "{other}", "--policy", "{folder}"],
    "export": ["export", "{folder}", "--out", "{other}"],
    "demo": ["demo", "{folder}"],
    "resumed training": ["train", "--resume", "{folder}"],
    "new training": ["train", CONFIG, "{folder}", "--set", "model={absent}"],
    "resumed warm start": ["sft", "--resume", "{folder}"],
    "episodes of a run": ["sft", CONFIG, "{other}", "--episodes", "{folder}"],
    "report": ["report", "{folder}"],
}


READS_NO_SETTINGS = ("eval of another run", "report", "new training", "episodes of a run")
CASES = [
    (kind, name)
    for kind in FOLDERS
    for name in COMMANDS
    if kind != "with_unknown_settings" or name not in READS_NO_SETTINGS
]


@pytest.mark.parametrize(("kind", "command"), CASES)
def test_an_invalid_run_directory_is_a_one_line_error(kind, command, tmp_path, cli_error) -> None:
    folder, other = tmp_path / "place" / "run", tmp_path / "other"
    folder.parent.mkdir()
    FOLDERS[kind](folder)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.name != "lock"}
    names = {"{folder}": str(folder), "{other}": str(other), "{absent}": str(tmp_path / "absent")}
    arguments = COMMANDS[command]
    for name, value in names.items():
        arguments = [word.replace(name, value) for word in arguments]
    err = cli_error(*arguments)
    assert "Traceback" not in err
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path in before}
    assert after == before
    assert not other.exists()


@pytest.mark.parametrize("command", ["eval", "resumed training", "resumed warm start"])
def test_a_read_only_run_is_a_one_line_error(command, tmp_path, cli_error) -> None:
    folder = tmp_path / "run"
    run_in(folder, **({"sft": []} if "warm" in command else {}))
    (folder / "lock").unlink()
    (folder / "lock").mkdir()  # a superuser may write to anything else
    err = cli_error(*(word.replace("{folder}", str(folder)) for word in COMMANDS[command]))
    assert f"{folder / 'lock'}: cannot be written" in err


@pytest.fixture(scope="module")
def untrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with nothing but the checkpoint of version 0."""
    source = training_fixture.checkpoint(tmp_path_factory.mktemp("checkpoint"))
    folder = source.with_name("run")
    with Run.create(folder, {"config": Config(model=str(source)).model_dump(mode="json")}) as run:
        path = CheckpointManager(folder / "checkpoints").save(Trainer(Policy(load(str(source)).model)), source)
        run.commit(counts={}, checkpoint=Checkpoint(0, 0, path, 0.0))
    return folder


@pytest.mark.parametrize("damage", ["flipped", "cut", "lost"])
@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "manifest.json"])
def test_a_damaged_checkpoint_is_not_exported_or_evaluated(name, damage, untrained: Path, tmp_path, cli_error) -> None:
    folder = tmp_path / "run"
    shutil.copytree(untrained, folder)
    path = folder / "checkpoints" / "step-000000"
    data = bytearray((path / name).read_bytes())
    data[len(data) // 2] ^= 1
    (path / name).write_bytes(data if damage == "flipped" else data[: len(data) // 3])
    if damage == "lost":
        (path / name).unlink()
    for command in (["export", str(folder), "--out", str(tmp_path / "out")], ["eval", str(folder)]):
        err = cli_error(*command)
        assert str(path) in err
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["export", "report"])
def test_an_invalid_output_path_is_a_one_line_error(command, untrained: Path, tmp_path, cli_error) -> None:
    (tmp_path / "file").write_text("a file")
    for place in (tmp_path / "file", tmp_path / "file" / "out"):
        if (command, place.name) == ("report", "file"):
            continue  # a report replaces a file
        err = cli_error(command, str(untrained), "--out", str(place))
        assert str(place) in err
    assert (tmp_path / "file").read_text() == "a file"
