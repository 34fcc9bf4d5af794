"""Saved end states: rescoring gives the same result, and missing data is an error, never a score of 0."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import cast

import pytest
from desktops import desktop_for

from deskhand.cli.main import app
from deskhand.desktop.base import StageableDesktop
from deskhand.desktop.local.home import Home
from deskhand.errors import ConfigError, EvaluatorError
from deskhand.tasks import end_state
from deskhand.tasks.end_state import BLOBS, EndState, load_end_states, rescore_states, save_end_state
from deskhand.tasks.family_checks import oracle, stops_early
from deskhand.tasks.judge import judge
from deskhand.tasks.outcome import Errored, Scored
from deskhand.tasks.suites import family_registry
from deskhand.tasks.task import CheckResult

NEW_CHECK = """deskhand: 2
id: stricter
instruction: Judge it anew
limits: {steps: 1}
check:
  all:
    - text: {path: NAME, contains: [WORD]}
    - file: {path: left-behind.txt, exists: false}
"""


async def played(family: str, seed: int, folder: Path, *, early: bool, num_steps: int = 2) -> EndState:
    """An end state of the oracle, or of the oracle that stops after `num_steps`."""
    task = family_registry.make_task(family, seed)
    async with desktop_for(task) as desktop:
        await task.setup(desktop)
        index = 0
        async for ops in (stops_early(num_steps) if early else oracle)(task, desktop):
            await desktop.perform(ops, action_id=f"{index}")
            index += 1
        return next(load_end_states([await save_end_state(task, desktop, await judge(task, desktop), folder)]))


async def test_rescoring_a_saved_state_repeats_the_live_score_with_every_clause(tmp_path: Path) -> None:
    solved = await played("editor_append", 4, tmp_path / "states", early=False)
    failed = await played("editor_append", 4, tmp_path / "states", early=True)
    task, states = family_registry.make_task("editor_append", 4), load_end_states([tmp_path / "states"])
    found = [result async for result in rescore_states(states, lambda _: task)]
    assert [(result.before, result.after, result.changed) for result in found] == [(1.0, 1.0, False), (0.0, 0.0, False)]
    assert (solved.value, failed.value) == (1.0, 0.0)
    (said,) = found[1].lines()[1:]
    target = task.metadata["target"]
    assert f"the texts in Lists: read {target}: '" in said
    assert f", expected {target}: '" in said
    assert solved.record["outcome"]["findings"][0]["read"] == "2 files as expected"
    windows = {window.title for window in await solved.windows()}
    assert len(windows) == 2
    assert (await solved.observe()).rgb().shape == (384, 512, 3)


async def test_new_checks_of_a_task_file_read_the_saved_files(tmp_path: Path, capsys) -> None:
    state = await played("editor_append", 5, tmp_path / "states", early=False)
    target = family_registry.make_task("editor_append", 5).metadata["target"]
    for word, value in (("", 1.0), ("no such word", 0.0)):
        file = tmp_path / f"new{len(word)}.yaml"
        file.write_text(NEW_CHECK.replace("NAME", f"Lists/{target}").replace("WORD", word or "e"))
        command = ["rescore", str(state.path), "--task", str(file)]
        await asyncio.to_thread(lambda words: app(words, result_action="return_value"), command)
        said = capsys.readouterr().out
        assert f"1 -> {value:g}" in said
        assert ("does not contain 'no such word'" in said) is (value == 0.0)
        assert f"1 end states rescored, {int(value == 0.0)} changed" in said


async def test_what_set_up_noted_is_saved_for_the_check(tmp_path: Path) -> None:
    task = family_registry.make_task("terminal_close", 2)
    for early, value in ((False, 1.0), (True, 0.0)):
        state = await played("terminal_close", 2, tmp_path / f"{early}", early=early, num_steps=0)
        (found,) = [each async for each in rescore_states([state], lambda _: task)]
        assert (found.before, found.after) == (value, value), found.lines()
        del state.record["setup_facts"]
        (lost,) = [each async for each in rescore_states([state], lambda _: task)]
        assert isinstance(lost.outcome, Errored)
        assert "not noted" in lost.outcome.message


async def test_data_that_was_not_saved_is_an_evaluator_error(tmp_path: Path) -> None:
    state = await played("terminal_run", 1, tmp_path, early=False)
    task = family_registry.make_task("terminal_run", 1)

    async def by_command(desktop) -> CheckResult:
        return CheckResult(float((await desktop.run(["true"])).returncode == 0))

    async def by_cache(desktop) -> CheckResult:
        return CheckResult(float("thing" in await desktop.listdir(".cache")))

    outcome = await judge(replace(task, check=by_command), state, grace_s=0)
    assert isinstance(outcome, Errored)
    assert "commands cannot run in an end state" in outcome.message
    state.record["skipped"].append(".cache")
    outcome = await judge(replace(task, check=by_cache), state, grace_s=0)
    assert isinstance(outcome, Errored)
    assert "was not saved" in outcome.message
    assert isinstance(await judge(task, state, grace_s=0), Scored)
    for blob in (tmp_path / BLOBS).iterdir():
        blob.write_bytes(b"changed")
    changed = await judge(family_registry.make_task("editor_append", 0), state, grace_s=0)
    assert isinstance(changed, Scored)  # it asks for other files, which are not there
    with pytest.raises(Exception, match="does not match its name"):
        await state.pull(".bashrc")


async def test_links_and_folders_read_as_they_did(tmp_path: Path) -> None:
    task = family_registry.make_task("terminal_run", 0)
    async with desktop_for(task) as desktop:
        script = "mkdir -p a/b; echo hi >a/b/c; ln -s /etc/passwd out; ln -s a/b/c in; mkfifo pipe"
        await desktop.run(["sh", "-c", script])
        state = next(load_end_states([await save_end_state(task, desktop, Errored("cancelled"), tmp_path)]))
    assert await state.pull("in") == await state.pull("a/b/c") == await state.pull("/home/user/a/b/c") == b"hi\n"
    assert await state.listdir("a") == ["b"]
    refused = {"out": PermissionError, "pipe": PermissionError, "a": IsADirectoryError, "../x": FileNotFoundError}
    for path, kind in refused.items():
        with pytest.raises(kind):
            await state.pull(path)
    assert state.value is None


class Files:
    """A home without a desktop, which counts how often it is accessed."""

    def __init__(self, root: Path) -> None:
        self.home = Home(root, "/home/user")
        self.num_reads = 0

    async def listdir(self, path: str) -> list[str]:
        self.num_reads += 1
        return self.home.listdir(path)

    async def pull(self, path: str) -> bytes:
        self.num_reads += 1
        return self.home.read(path)


def fill(root: Path, num_folders: int) -> Files:
    """`num_folders` in Documents, of which each tenth has folders as well."""
    for number in range(num_folders):
        (root / "Documents" / f"{number}").mkdir(parents=True)
        for inner in range(0 if number % 10 else 50):
            (root / "Documents" / f"{number}" / f"{inner}").mkdir()
    return Files(root)


@pytest.mark.parametrize("num_folders", [1000, 6000])
async def test_an_agent_that_fills_its_home_is_scored_by_few_reads(num_folders: int, tmp_path: Path) -> None:
    files, tasks = fill(tmp_path, num_folders), [family_registry.make_task("folder_make", seed) for seed in range(3)]
    for task in tasks:
        files.num_reads = 0
        outcome = await judge(task, cast(StageableDesktop, files), grace_s=0)
        assert isinstance(outcome, Scored), outcome
        assert outcome.value == 0.0
        assert files.num_reads < 50


@pytest.mark.parametrize(("num_folders", "max_seconds"), [(1000, 60.0), (6000, 60.0), (20, 0.0)])
async def test_what_is_beyond_the_limits_of_an_end_state_is_not_read_as_absent(
    num_folders: int, max_seconds: float, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(end_state, "MAX_SECONDS", max_seconds)
    home, saved = tmp_path / "home", tmp_path / "saved"
    (saved / BLOBS).mkdir(parents=True)
    files = fill(home, num_folders)
    (home / "notes.txt").write_text("words")
    blobs, folders, skipped = await end_state._save_home(cast(StageableDesktop, files), saved)
    state = EndState(saved / "state.json", {"files": blobs, "folders": folders, "skipped": skipped})
    assert files.num_reads <= 2 * end_state.MAX_FILES
    num_lost = 0
    for path in home.rglob("*"):
        name = str(path.relative_to(home))
        try:
            assert await state.listdir(name) == sorted(each.name for each in path.iterdir()) if path.is_dir() else True
            assert await state.pull(name) == path.read_bytes() if path.is_file() else True
        except EvaluatorError:
            num_lost += 1
    assert num_lost > 0
    if max_seconds:
        assert await state.pull("notes.txt") == b"words"


def test_a_folder_without_end_states_is_named(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text(json.dumps({"format": 1}))
    with pytest.raises(ConfigError, match=f"{tmp_path}: no end states"):
        list(load_end_states([tmp_path]))
    with pytest.raises(ConfigError, match="end state"):
        list(load_end_states([tmp_path / "other.json"]))


def test_concurrently_saved_states_may_share_files(tmp_path: Path) -> None:
    (tmp_path / BLOBS).mkdir()
    blobs = [f"{number}".encode() * 20_000 for number in range(30)]
    together = Barrier(8)

    def keep_one(data: bytes) -> str:
        together.wait(30)
        return end_state._put(tmp_path, data)

    def keep_all(_: int) -> list[str]:
        return [keep_one(data) for data in blobs]

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(keep_all, range(8)))
    assert all(each == found[0] for each in found)
    assert sorted(path.name for path in (tmp_path / BLOBS).iterdir()) == sorted(found[0])
    assert all((tmp_path / BLOBS / name).read_bytes() == data for name, data in zip(found[0], blobs, strict=True))
