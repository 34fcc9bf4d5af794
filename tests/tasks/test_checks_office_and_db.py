"""Checks of images, Python functions, browser profiles, windows and processes, and task limits."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError
from test_checks import database_file, painting, value_of

from deskhand.desktop.base import CommandResult
from deskhand.errors import EvaluatorError
from deskhand.tasks import subprocess_call
from deskhand.tasks.checks.desktop_state import ProcessCheck, WindowCheck
from deskhand.tasks.formats import yaml_schema
from deskhand.tasks.formats.located_yaml import TaskFileError
from deskhand.tasks.formats.yaml_task import load_task
from deskhand.tasks.judge import judge
from deskhand.tasks.outcome import Errored, Scored

JUDGE = """
def counts(files, arguments):
    text = files["a.txt"]
    if text is None:
        return 0, "file not found"
    return text.count(b"x") == arguments["times"], f"{len(text)} bytes"

def half(files, arguments):
    return 0.5

def broken(files, arguments):
    raise ValueError("what is this")

def endless(files, arguments):
    while True:
        pass

def words(files, arguments):
    return "very good"

def beyond(files, arguments):
    return 2
"""
TASK = """\
deskhand: 2
id: t
instruction: Do it
check: {{python: {{file: judge.py, function: {function}, reads: [a.txt], arguments: {{times: 2}}, timeout_s: 2}}}}
limits: {{steps: 3, check_timeout_s: 9, step_timeout_s: 2, episode_timeout_s: 60, settle_grace_s: 0}}
"""


async def test_images_are_compared_by_structural_similarity(tmp_path: Path) -> None:
    (tmp_path / "like.png").write_bytes(painting(64, 48))
    expected = {"the same": (painting(64, 48), 1.0), "another size": (painting(65, 48), 0.0)}
    expected |= {
        "moved": (painting(64, 48, at=30), 0.0),
        "in another red": (painting(64, 48, "#f01010"), 1.0),
        "white": (painting(64, 48, "white"), 0.0),
    }
    for name, (data, value) in expected.items():
        (tmp_path / "a.png").write_bytes(data)
        check = await value_of({"image": {"path": "a.png", "like": "like.png"}}, tmp_path)
        assert check.value == value, (name, check.detail)
    assert "similarity to like.png is" in check.detail


async def test_a_python_check_judges_bytes_and_its_failures_are_evaluator_errors(tmp_path: Path) -> None:
    (tmp_path / "judge.py").write_text(JUDGE)
    ends: dict[str, Any] = {}
    for function in ("counts", "half", "broken", "endless", "words", "beyond"):
        (tmp_path / "t.yaml").write_text(TASK.format(function=function))
        task = load_task(tmp_path / "t.yaml")
        for text in (None, "xx", "x") if function == "counts" else ("xx",):
            (tmp_path / "a.txt").unlink(missing_ok=True)
            if text is not None:
                (tmp_path / "a.txt").write_text(text)
            ends[f"{function} {text}"] = await judge(task, Folder(tmp_path))
    assert {name: end.value for name, end in ends.items() if isinstance(end, Scored)} == {
        "counts None": 0.0, "counts xx": 1.0, "counts x": 0.0, "half xx": 0.5,
    }  # fmt: skip
    assert "file not found" in ends["counts None"].findings[0].read
    assert all(end.cause == "evaluator" for end in ends.values() if isinstance(end, Errored))
    messages = {
        "broken": "what is this",
        "endless": "longer than 2 s",
        "words": "must return a number",
        "beyond": "2",
    }
    for function, said in messages.items():
        assert said in ends[f"{function} xx"].message


class Folder:
    """The files of a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def pull(self, path: str) -> bytes:
        return (self.folder / path).read_bytes()


async def test_the_browser_profile_is_read_from_disk(tmp_path: Path) -> None:
    profile = tmp_path / ".config" / "chromium" / "Default"
    profile.mkdir(parents=True)
    assert (await value_of({"browser": {"bookmarks": []}}, tmp_path)).value == 1.0, "no bookmark was ever made"
    mark = {"type": "url", "url": "file:///a.html"}
    (profile / "Bookmarks").write_text(
        json.dumps({"roots": {"bar": {"children": [mark, {"type": "folder", "children": [mark]}]}}})
    )
    (profile / "Preferences").write_text(json.dumps({"homepage": "file:///home.html", "session": {"restore": 4}}))
    history = database_file("create table urls (url text)", "insert into urls values ('file:///b.html')")
    (profile / "History").write_bytes(history["a"])
    right: dict[str, Any] = {
        "bookmarks": ["file:///a.html", "file:///a.html"],
        "visited": ["file:///b.html"],
        "preference": {"at": ["session", "restore"], "equals": 4},
    }
    assert (await value_of({"browser": right}, tmp_path)).value == 1.0
    unset = {"preference": {"at": ["session", "x"], "equals": 4}}
    for change in ({"bookmarks": ["file:///a.html"]}, {"visited": ["file:///c.html"]}, unset):
        wrong = await value_of({"browser": right | change}, tmp_path)
        assert wrong.value == 0.0, change
    (profile / "History").write_bytes(b"noise")
    assert (await value_of({"browser": {"visited": ["file:///b.html"]}}, tmp_path)).value == 0.0


async def test_window_and_process_checks_are_untrusted() -> None:
    windows = [
        SimpleNamespace(title="Notes - Editor", wm_class="l3afpad.L3afpad"),
        SimpleNamespace(title="notes", wm_class="xterm"),
    ]

    class Guest:
        def __init__(self, code: int = 0) -> None:
            self.code = code

        async def windows(self) -> list[Any]:
            return windows

        async def run(self, argv: list[str], *, timeout_s: float) -> CommandResult:
            assert argv == ["pgrep", "-x", "--", r"a\.b"]
            return CommandResult(self.code, b"", b"bad")

    for asked, value in (
        ({"title": "NOTES"}, 1.0), ({"title": "notes", "count": 1}, 0.0),
        ({"title": "notes", "class": "xterm", "count": 1}, 1.0),
        ({"class": "gimp"}, 0.0), ({"class": "gimp", "count": 0}, 1.0),
    ):  # fmt: skip
        check = await WindowCheck.model_validate(asked).measure(Guest())
        assert (check.value, check.untrusted_source) == (value, True), asked
    for code, running, value in ((0, True, 1.0), (1, True, 0.0), (1, False, 1.0)):
        assert (await ProcessCheck(name="a.b", running=running).measure(Guest(code))).value == value
    with pytest.raises(EvaluatorError, match="pgrep exited with 127"):
        await ProcessCheck(name="a.b").measure(Guest(127))


async def test_a_slow_regular_expression_does_not_block_other_tasks(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(subprocess_call, "CPU_S", 1.0)
    (tmp_path / "a.txt").write_text("a" * 60 + "!")
    slept = asyncio.create_task(asyncio.sleep(0.2))
    check = await value_of({"text": {"path": "a.txt", "matches": "(a+)+"}}, tmp_path)
    assert (check.value, check.detail) == (0.0, "a.txt: takes longer than 1 s to read"), "the agent chose the text"
    assert slept.done(), "others go on meanwhile"


WRONG = {
    "a picture that is not there": (
        "check: {image: {path: a.png, like: no.png}}",
        "t.yaml:4: check.image: file not found",
    ),
    "a function that is not there": (
        "check: {all: [{python: {file: no.py, function: f, reads: [a]}}]}",
        "check.all[0].python: file not found",
    ),
    "a host": ("check: {file: {path: a}}\nnetwork: [example.org]", "desktops have no network"),
    "a file outside": ("check: {browser: {profile: ../x, bookmarks: []}}", "without .."),
    "nothing asked": ("check: {window: {}}", "set at least one of title, class"),
    "a name that no kernel keeps": ("check: {process: {name: a-very-long-name-of-a-program}}", "15 characters"),
}


@pytest.mark.parametrize("name", WRONG)
def test_impossible_values_are_rejected_with_file_key_and_line(name: str, tmp_path: Path) -> None:
    text, said = WRONG[name]
    (tmp_path / "t.yaml").write_text(f"deskhand: 2\nid: t\ninstruction: Do it\n{text}\nlimits: {{steps: 3}}\n")
    with pytest.raises(TaskFileError) as raised:
        yaml_schema.load(tmp_path / "t.yaml")
    assert said in str(raised.value)
    assert f"{tmp_path}/t.yaml:{4 + text.count(chr(10))}: " in str(raised.value)


def test_limits_are_passed_to_the_task(tmp_path: Path) -> None:
    (tmp_path / "judge.py").write_text(JUDGE)
    (tmp_path / "t.yaml").write_text(TASK.format(function="half"))
    task = load_task(tmp_path / "t.yaml")
    limits = (task.max_steps, task.check_timeout_s, task.step_timeout_s, task.episode_timeout_s, task.settle_grace_s)
    assert limits == (3, 9.0, 2.0, 60.0, 0.0)
    with pytest.raises(ValidationError):
        yaml_schema.TaskLimits(steps=3, step_timeout_s=0)
