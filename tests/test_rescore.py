"""`deskhand rescore` on end states of task files: each is judged by its task of the run's suite, or a given one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import task_files
import yaml
from test_suite_config import FAMILIES, NATIVE, OPENADAPT

from deskhand.config.load import load_config
from deskhand.recipes import suite
from deskhand.store.run import Run
from deskhand.tasks.end_state import BLOBS, FORMAT, _put


def state(folder: Path, family: str, files: dict[str, str], value: float | None, **changes: Any) -> None:
    """Keep by hand what an episode of a task left: the files of its home and the outcome of then."""
    (folder / BLOBS).mkdir(parents=True, exist_ok=True)
    outcome = {"kind": "errored", "cause": "evaluator"} if value is None else {"kind": "scored", "value": value}
    record = {
        "format": FORMAT,
        "task": {"id": f"x/{family}", "family": family, "suite": "x", "seed": 0, "instruction": "do it"},
        "outcome": outcome,
        "windows": [],
        "clipboard": None,
        "screen": "",
        "files": {path: _put(folder, text.encode()) for path, text in files.items()},
        "folders": {".": list(files), **{str(Path(path).parent): [Path(path).name] for path in files if "/" in path}},
        "skipped": [".cache"],
    } | changes
    name = f"{family.replace('/', '-')}-{len(list(folder.glob('*.json')))}"
    (folder / f"{name}.json").write_text(json.dumps(record))


def run_with(folder: Path, *settings: str) -> Path:
    """A run with these settings, and the place of its end states."""
    Run.create(folder, {"config": load_config(None, list(settings)).model_dump(mode="json")}).close()
    return folder / "end_states"


def osworld_task(number: int, result: dict[str, Any], func: str = "file_contains") -> dict[str, Any]:
    evaluator = {"func": func, "result": result, "expected": {"type": "rule", "rules": {"expected": ["done"]}}}
    return task_files.task(id=f"{number}", related_apps=["os"], evaluator=evaluator)


def test_an_osworld_state_is_rescored_from_its_saved_files_alone(tmp_path, cli, cli_error) -> None:
    def file(path: str) -> dict[str, Any]:
        return {"type": "vm_file", "path": path, "dest": "a.txt"}

    results = [
        file("/home/user/a.txt"),
        {"type": "vm_command_line", "command": "cat a.txt"},
        file("/etc/hosts"),
        file("~/.cache/a"),
    ]
    for number, result in enumerate(results):
        task_files.written(tmp_path / "tasks", osworld_task(number, result), f"os/{number}.json")
    task_files.written(
        tmp_path / "tasks", osworld_task(9, results[0]) | {"evaluator": {"func": "infeasible"}}, "os/9.json"
    )
    states = run_with(tmp_path / "run", "suite.format=osworld", f"suite.path={tmp_path}/tasks")
    state(states, "os/0", {"a.txt": "all done\n"}, 1.0)
    state(states, "os/0", {"b.txt": "all done\n"}, 1.0)
    for number in (1, 2, 3):
        state(states, f"os/{number}", {"a.txt": "done"}, 1.0)
    state(states, "os/9", {}, 1.0, declared_infeasible=True)
    state(states, "os/9", {}, 0.0)
    out = cli("rescore", str(states))
    said = [line for line in out.splitlines() if " -> " in line]
    assert [line.partition(": ")[2] for line in said] == [
        "1 -> 1",
        "1 -> 0, CHANGED",
        "1 -> errored, CHANGED",
        "1 -> errored, CHANGED",
        "1 -> errored, CHANGED",
        "1 -> 1",
        "0 -> 0",
    ]
    for why in (
        "/execute: not available in a saved end state",
        "/etc/hosts: outside the home, so not saved",
        "was not saved with the end state",
    ):
        assert why in out
    assert "errored (infrastructure)" not in out
    assert "7 end states rescored, 4 changed" in out
    (tmp_path / "tasks" / "os" / "0.json").rename(tmp_path / "tasks" / "os" / "7.json")
    suite._loaded.cache_clear()  # another process
    err = cli_error("rescore", str(states))
    assert f"suite.path: {tmp_path}/tasks has no task 'os/0'; " in err


@pytest.mark.parametrize("given", [True, False], ids=["settings", "run"])
def test_states_of_other_task_file_formats_are_rescored(given, tmp_path, cli) -> None:
    (tmp_path / "native").mkdir()
    (tmp_path / "native" / "one.yaml").write_text(NATIVE.format(id="one", program="sh"))
    (tmp_path / "openadapt").mkdir()
    for name, check in (("file", "file, path: a.txt"), ("said", "command, run: hostname, expect: vm")):
        (tmp_path / "openadapt" / f"{name}.yaml").write_text(OPENADAPT.format(id=name, check=check))
    task_files.written(
        tmp_path / "waa", task_files.on_windows(osworld_task(1, {"type": "vm_file", "path": "C:\\a", "dest": "a"}))
    )
    (tmp_path / "mine.py").write_text(FAMILIES)
    cases: dict[str, tuple[list[str], list[tuple[str, dict[str, str]]], list[str]]] = {
        "native": (["suite.format=deskhand", "suite.path={}/native"], [("one", {"one": ""}), ("one", {})], ["1", "0"]),
        "openadapt": (
            ["suite.format=openadapt", "suite.path={}/openadapt", "desktop.backend=waa"],
            [("file", {"a.txt": ""}), ("said", {})],
            ["1", "errored"],
        ),
        "waa": (["suite.format=waa", "suite.path={}/waa", "desktop.backend=waa"], [("os/0b5c", {})], ["errored"]),
        "python": (["suite.format=python", "suite.path={}/mine.py"], [("mine", {})], ["0"]),
    }
    for name, (settings, states, values) in cases.items():
        settings = [setting.format(tmp_path) for setting in settings]
        folder = tmp_path / "loose" / name if given else run_with(tmp_path / "run" / name, *settings)
        for family, files in states:
            state(folder, family, files, None)
        arguments = [word for setting in settings for word in ("--set", setting)] if given else []
        if given and name == "native":
            (tmp_path / "native.settings").write_text(
                yaml.safe_dump({"suite": {"format": "deskhand", "path": f"{tmp_path}/native"}})
            )
            arguments = ["--config", str(tmp_path / "native.settings")]
        out = cli("rescore", str(folder), *arguments)
        assert [line.partition(" -> ")[2].split(",")[0] for line in out.splitlines() if " -> " in line] == values, out
        assert "AttributeError" not in out
