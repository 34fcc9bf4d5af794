"""OpenAdapt task files: no file is skipped, and misreadings by OpenAdapt's reader are reported."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from deskhand.desktop.base import CommandResult
from deskhand.tasks import subprocess_call
from deskhand.tasks.formats import openadapt, task_files
from deskhand.tasks.formats.located_yaml import TaskFileError, canonical_json, load_yaml

GOOD = """\
name: Turn the night light on
id: night-light
domain: desktop
max_steps: 12
combine: or
setup:
  - launch: ms-settings:nightlight
  - sleep: 1.5
  - open: C:\\\\a.txt
  - execute: mkdir C:\\\\new
  - type: activate_window
    parameters: {window_name: Settings}
evaluate:
  - check: command
    run: reg query HKCU
    expect: "1"
    match: contains
  - check: screenshot
    description: the switch is on
  - check: file
    path: C:\\\\a.txt
    contains: dark
milestones:
  - name: settings are open
    check: screenshot
    description: the settings window is open
"""


def problems(text: str, folder: Path) -> list[tuple[str, int | None, str, bool]]:
    path = folder / "night.yaml"
    path.write_text(text)
    return [(each.key, each.line, each.message, each.note) for each in task_files.lint_file(path)]


def test_a_file_without_mistakes_has_no_problem_and_is_dumped_as_it_was(tmp_path: Path) -> None:
    assert problems(GOOD, tmp_path) == []
    loaded = openadapt.load(tmp_path / "night.yaml")
    assert canonical_json(openadapt.dump(loaded.task)) == canonical_json(load_yaml(loaded.path).value)
    assert (loaded.id, loaded.instruction) == ("night-light", "Turn the night light on")


@pytest.mark.parametrize(
    ("old", "new", "key", "line", "word", "note"),
    [
        ("domain: desktop", "domains: desktop", "domains", 3, "unknown key", False),
        ("    match: contains", "    reward: 0.5", "evaluate[0].reward", 17, "unknown key", False),
        ("    match: contains", "    path: x", "evaluate[0].path", 17, "does not use this key", False),
        ('    expect: "1"\n', "", "evaluate[0].expect", 14, "needs this key", False),
        ("id: night-light\n", "", "", 1, "no id", True),
        ("domain: desktop", "instruction: Do it", "instruction", 3, "uses the name as the instruction", True),
        ("    contains: dark", "    exists: false", "evaluate[2].exists", 22, "ignores this", True),
        ("sleep: 1.5", "sleep: soon", "setup[1].sleep", 8, "number of seconds", False),
        ("sleep: 1.5", "download: {url: u, dest: d}", "setup[1].download", 8, "ignores this form", True),
        ("sleep: 1.5", "download: {url: u, path: d}", "setup[1].download", 8, "url and dest", False),
        ("sleep: 1.5", "wait: 1", "setup[1]", 8, "got wait", False),
        ("max_steps: 12", "max_steps: 0", "max_steps", 4, "must be at least 1", False),
    ],
)
def test_a_mistake_is_reported_with_its_line_and_the_file_is_kept(
    old: str, new: str, key: str, line: int, word: str, note: bool, tmp_path: Path
) -> None:
    assert old in GOOD
    (found,) = problems(GOOD.replace(old, new, 1), tmp_path)
    assert (found[0], found[1], found[3]) == (key, line, note), found
    assert word in found[2]
    loaded = openadapt.load(tmp_path / "night.yaml")
    assert canonical_json(openadapt.dump(loaded.task)) == canonical_json(load_yaml(loaded.path).value)


def test_missing_checks_and_unreachable_milestones_are_reported(tmp_path: Path) -> None:
    assert [found[2] for found in problems("name: a\nid: b\n", tmp_path)] == ["neither evaluate nor milestones is set"]
    checks = "[{name: c, check: file, path: d}, {name: c, check: python, code: pass}]"
    found = problems(f"name: a\nid: b\nmilestones: {checks}\n", tmp_path)
    assert [(each[0], each[3]) for each in found] == [
        ("milestones[0].check", True),
        ("milestones[1].code", True),
        ("milestones[1].check", True),
        ("milestones[1].name", False),
    ]


def test_a_value_of_the_wrong_type_is_rejected_with_its_line(tmp_path: Path) -> None:
    for old, new, key in [
        ("match: contains", "match: roughly", "evaluate[0].match"),
        ("check: screenshot", "check: smell", "evaluate[1].check"),
        ("combine: or", "combine: xor", "combine"),
        ("contains: dark", "contains: off", "evaluate[2].contains"),
    ]:
        path = tmp_path / "night.yaml"
        path.write_text(GOOD.replace(old, new, 1))
        with pytest.raises(TaskFileError) as caught:
            openadapt.load(path)
        assert [problem.key for problem in caught.value.problems] == [key]
        assert caught.value.problems[0].line is not None


@pytest.mark.parametrize(("printed", "value"), [("ab" * 20_000, 0.0), ("ba" * 20, 0.0), ("ab" * 500_000, 0.0)])
async def test_a_fuzzy_match_on_huge_output_is_no_match_and_blocks_nothing(
    printed: str, value: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Talkative:
        async def shell(self, command: str, *, timeout_s: float) -> CommandResult:
            return CommandResult(0, printed.encode(), b"")

        async def launch_shell(self, command: str) -> None:
            raise AssertionError(command)

        async def open_file(self, path: str) -> None:
            raise AssertionError(path)

    monkeypatch.setattr(subprocess_call, "CPU_S", 1.0)
    path = tmp_path / "fuzzy.yaml"
    path.write_text(
        f"id: a\nname: b\nevaluate:\n  - {{check: command, run: x, expect: {'ba' * 20_000}, match: fuzzy}}\n"
    )
    check = asyncio.create_task(openadapt.load_task(path, 320, 240).check(Talkative()))  # type: ignore[arg-type]
    turns = 0
    while not check.done():
        await asyncio.sleep(0.01)
        turns += 1
    assert check.result().value == value
    assert turns > 2
