"""Suites of a run: bundled ones and task files of every format, on local desktops and on remote machines."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import task_files
import uvicorn
import yaml
from bundled_weights import needs_weights
from fake_osworld import FakeOsworld
from fake_waa import FakeEvaluate, FakeWaa
from test_cli import ROOT, called

from deskhand.config.load import load_config
from deskhand.config.loop import LoopConfig
from deskhand.config.schema import Config
from deskhand.errors import ConfigError
from deskhand.recipes.assemble import member_task_factory, train_task_factory
from deskhand.recipes.suite import Suite, hold_out_by_default, load_suite
from deskhand.store.run import TRAIN, Run
from deskhand.tasks.task import SPLITS

CONFIGS = sorted(path for path in (ROOT / "configs").glob("*.yaml") if path.stem != "miniwob_cpu")
"""Those for any machine; MiniWoB++ needs local desktops."""


def suite_of(overrides: list[str]) -> Suite:
    config = load_config(None, overrides)
    return load_suite(config.suite, config.desktop.backend)


FAMILIES = """
from dataclasses import replace
from deskhand.tasks.suites.basics import make_task
from deskhand.tasks.task import Family

def mine(seed):
    return replace(make_task("terminal_run", seed), id=f"mine/{seed}", family="mine")

FAMILIES = [Family("mine", ("xterm",), "easy", mine)]
"""
NATIVE = """\
deskhand: 2
id: {id}
instruction: Run touch {id} in the terminal
screen: {{width: 256, height: 192}}
programs: [{program}]
setup: [launch: {{run: [xterm, -geometry, 20x6, -e, bash, --norc], window: xterm}}]
check: {{file: {{path: {id}, exists: true}}}}
limits: {{steps: 4}}
step_cost: 0.01
"""
ORACLE = """\
oracle:
  - [click: {{at: [20, 20], window: xterm}}]
  - [type: "touch {id}\\n"]
  - [wait_file: {id}]
"""


@pytest.fixture
def native(tmp_path: Path) -> Path:
    """A folder of tasks in our YAML: two with an oracle, one without, one that needs a program that is not there."""
    folder = tmp_path / "native"
    folder.mkdir()
    files = (("one", "xterm", True), ("two", "xterm", True), ("open", "xterm", False), ("far", "no-such", True))
    for name, program, solved in files:
        text = NATIVE + (ORACLE if solved else "")
        (folder / f"{name}.yaml").write_text(text.format(id=name, program=program))
    return folder


def osworld_task(number: int, expected: str) -> dict[str, Any]:
    """A task that its set-up solves, if `expected` is what it writes."""
    return task_files.task(
        id=f"{number}",
        config=[{"type": "execute", "parameters": {"command": "echo ready > a.txt", "shell": True}}],
        related_apps=["os"],
        evaluator={
            "func": "exact_match",
            "result": {"type": "vm_command_line", "command": "cat a.txt", "shell": True},
            "expected": {"type": "rule", "rules": {"expected": expected}},
        },
    )


def waa_task(number: int, expected: str) -> dict[str, Any]:
    path = "C:\\Users\\Docker\\a.txt"
    return task_files.on_windows(osworld_task(number, expected)) | {
        "id": f"{number}-WOS",
        "config": [{"type": "create_file", "parameters": {"path": path, "content": "ready\n"}}],
        "evaluator": {
            "func": "exact_match",
            "result": {"type": "vm_file", "path": path, "dest": "a.txt"},
            "expected": {"type": "rule", "rules": {"expected": expected}},
        },
    }


def corpus(folder: Path, make: Any) -> Path:
    task_files.written(folder, make(1, "ready\n"), "os/1.json")
    task_files.written(folder, make(2, "done\n"), "os/2.json")
    return folder


def test_native_files_are_a_suite_with_reasons_for_skipped_ones(native: Path, monkeypatch, capsys) -> None:
    found = suite_of(["suite.format=deskhand", f"suite.path={native}"])
    assert (found.train_tasks, found.eval_tasks) == (("one", "open", "two"), ("one", "open", "two"))
    assert [task.id for task in found.tasks_of("test", 240)] == ["native/one", "native/open", "native/two"], "each once"
    (why,) = found.skipped
    assert why == f"{native}/far.yaml: requires no-such, which is not installed on this machine"
    code, out, err = called(
        monkeypatch, capsys, "tasks", "resolve", "--set", "suite.format=deskhand", "--set", f"suite.path={native}"
    )
    assert code == 0, err
    assert f"skipped: {why}" in out
    assert "open  256x192  max 4 steps  train and test; no oracle; add the key oracle" in out


def test_held_out_tasks_are_never_trained_on(tmp_path: Path) -> None:
    for number in range(20):
        task_files.written(tmp_path, osworld_task(number, "x"), f"os/{number}.json")
    config = load_config(None, ["suite.format=osworld", f"suite.path={tmp_path}", "suite.eval_fraction=0.25"])
    found = load_suite(config.suite, config.desktop.backend)
    assert (len(found.train_tasks), len(found.eval_tasks)) == (15, 5)
    trained = [train_task_factory(found, config.seed)(number) for number in range(45)]
    held_out = found.tasks_of("test", 240)
    assert len({task.id for task in trained}) == 45, "what the policy draws follows from a task's id"
    assert {task.family for task in trained} == set(found.train_tasks)
    assert not {task.family for task in trained} & {task.family for task in held_out}
    assert {task.split for task in trained} == {"train"}
    assert {task.split for task in held_out} == {"test"}
    task_files.written(tmp_path / "more", osworld_task(99, "x"), "os/99.json")
    (tmp_path / "more" / "os" / "99.json").rename(tmp_path / "os" / "99.json")
    again = suite_of(["suite.format=osworld", f"suite.path={tmp_path}/", "suite.eval_fraction=0.24"])
    assert len(set(found.eval_tasks) & set(again.eval_tasks)) >= 4, "a new file moves others at the edge alone"


def osworld_config(folder: Path, count: int, *settings: str) -> Config:
    for number in range(count):
        task_files.written(folder, osworld_task(number, "x"), f"os/{number}.json")
    return load_config(None, ["suite.format=osworld", f"suite.path={folder}", *settings])


def test_a_training_run_splits_task_files_unless_told_how(tmp_path: Path) -> None:
    config = hold_out_by_default(osworld_config(tmp_path, 20, "loop.eval_every=2"))
    found = load_suite(config.suite, config.desktop.backend)
    splits = found.train_tasks, found.validation_tasks, found.eval_tasks
    assert [len(names) for names in splits] == [14, 2, 4]
    assert len({name for names in splits for name in names}) == 20, "no file is in two"
    assert {task.family for task in found.tasks_of("validation", 9)} == set(found.validation_tasks)
    assert found.summary == "suite: 14 tasks (train), 2 (validation), 4 (test)"
    plain = osworld_config(tmp_path, 20)
    assert len(load_suite(hold_out_by_default(plain).suite, "local").validation_tasks) == 0
    assert len(load_suite(plain.suite, "local").tasks_of("test", 9)) == 20, "deskhand eval plays all"
    for unsplit in (["evaluation.num_episodes=0"], ["evaluation.split=train"]):
        config = osworld_config(tmp_path, 20, *unsplit)
        assert hold_out_by_default(config) == config


@pytest.mark.parametrize(
    ("count", "settings", "said"),
    [
        (1, [], "suite.eval_fraction: of 1 task file"),
        (4, ["suite.eval_fraction=0"], "suite.eval_fraction: of 4 task file"),
        (2, ["loop.eval_every=1"], "no task file is in the split validation; raise suite.validation_fraction"),
        (9, ["evaluation.split=test_instructions"], "task files have no split test_instructions"),
    ],
)
def test_training_tasks_are_evaluated_on_only_by_that_name(tmp_path: Path, count, settings, said) -> None:
    config = osworld_config(tmp_path, count, *settings)
    with pytest.raises(ConfigError, match=re.escape(said)):
        hold_out_by_default(config)
    assert hold_out_by_default(osworld_config(tmp_path, count, "evaluation.split=train", "loop.eval_every=1"))


def test_splits_of_a_parametric_suite_share_no_seed() -> None:
    found = suite_of(["suite.families=[terminal_run, calculator_number]"])
    tasks = [task for split in SPLITS for task in found.tasks_of(split, 6)]
    assert len({task.id for task in tasks}) == len(tasks) == 24
    assert [task.split for task in tasks] == [split for split in SPLITS for _ in range(6)]
    trained = {train_task_factory(found, 99)(number).id for number in range(2000)}
    member_task = member_task_factory(found, LoopConfig(group_by="family"))
    assert member_task is not None
    variants = [
        member_task(train_task_factory(found, 99)(number), member) for number in range(20) for member in range(8)
    ]
    assert len({task.id for task in variants}) == 160
    assert {task.family for task in variants[:8]} == {"terminal_run"}
    trained |= {task.id for task in variants}
    assert not trained & {task.id for task in tasks}, "not even in an evaluation of training tasks"


def test_infeasible_tasks_can_be_excluded(tmp_path: Path) -> None:
    folder = corpus(tmp_path, osworld_task)
    task_files.written(folder, osworld_task(3, "x") | {"evaluator": {"func": "infeasible"}}, "os/3.json")
    assert suite_of(["suite.format=osworld", f"suite.path={folder}"]).train_tasks == ("os/1", "os/2", "os/3")
    found = suite_of(["suite.format=osworld", f"suite.path={folder}", "suite.include_infeasible=false"])
    assert (found.train_tasks, len(found.skipped)) == (("os/1", "os/2"), 1)


def test_tasks_can_be_excluded_by_name_or_folder(tmp_path: Path) -> None:
    folder = corpus(tmp_path / "tasks", osworld_task)
    task_files.written(folder, osworld_task(3, "x"), "chrome/3.json")
    for without, left in (("[os/1]", ("chrome/3", "os/2")), ("[os]", ("chrome/3",)), ("[chrome, os/2]", ("os/1",))):
        assert (
            suite_of(["suite.format=osworld", f"suite.path={folder}", f"suite.exclude={without}"]).train_tasks == left
        )
    said = ["suite.families=[terminal_run, file_move]", "suite.exclude=[file_move]"]
    assert suite_of(said).train_tasks == ("terminal_run",)
    (tmp_path / "mine.py").write_text(FAMILIES)
    osworld = ["suite.format=osworld", f"suite.path={folder}"]
    for settings, said in (
        ([*osworld, "suite.exclude=[os/11]"], "has no task 'os/11'; did you mean 'os/1'"),
        ([*osworld, "suite.exclude=[os, chrome]"], "excludes every task"),
        (["suite.format=python", f"suite.path={tmp_path}/mine.py", "suite.exclude=[yours]"], "has no task 'yours'"),
        (["suite.families=[terminal_run]", "suite.exclude=[terminal_run]"], "excludes every task"),
    ):
        with pytest.raises(ConfigError, match=said):
            suite_of(settings)


OPENADAPT = """
name: Write hello
id: {id}
evaluate: [{{check: {check}}}]
"""


def test_openadapt_files_are_a_suite_on_machines_without_those_that_cannot_be_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DESKHAND_JUDGE_MODEL", raising=False)
    for name, check in (("file", "file, path: a.txt"), ("seen", "screenshot, description: a red circle")):
        (tmp_path / f"{name}.yaml").write_text(OPENADAPT.format(id=name, check=check))
    found = suite_of(
        ["suite.format=openadapt", f"suite.path={tmp_path}", "suite.screen_size=[1280, 720]", "desktop.backend=waa"]
    )
    (task,) = found.tasks_of("test", 1)
    assert (task.id, task.width, task.height) == ("openadapt/file", 1280, 720)
    (why,) = found.skipped
    assert why.startswith(f"{tmp_path}/seen.yaml: check screenshot: check vlm_judge: set")
    assert suite_of(["suite.format=openadapt", f"suite.path={tmp_path}"]).train_tasks == ("file",)


NATIVE_SUITE = ["suite.format=deskhand", "suite.path={native}"]
REFUSED = {
    "a folder that is not there": (
        ["suite.format=deskhand", "suite.path=/no/such"], "suite.path: /no/such is not a directory"),
    "a task that is not there": ([*NATIVE_SUITE, "suite.families=[onee]"], "has no task 'onee'; did you mean 'one'?"),
    "a named task that cannot run": ([*NATIVE_SUITE, "suite.families=[far]"], "far.yaml: requires no-such"),
    "no task that can run": (
        ["suite.format=osworld", "suite.path={web}"],
        "of 1 files in {web} can run on desktop.backend local: {web}/os/w.json: it"),
    "an invalid task file": (
        ["suite.format=deskhand", "suite.path={broken}"], "{broken}/bad.yaml:1: id: missing key (and "),
    "WAA without its machines": (["suite.format=waa", "suite.path={web}"], "requires desktop.backend waa or server"),
    "a name and a format": (["suite={name: basics, format: waa, path: b}"], "mutually exclusive"),
    "a format without a path": (["suite.format=waa"], "suite.path is missing"),
    "a path without a format": (["suite.path=/tmp"], "suite.format is missing"),
    "another suite": (["suite=basic"], "suite.name: unknown suite 'basic'; did you mean 'basics'?"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_an_invalid_suite_is_rejected_with_file_and_reason(name: str, native: Path, tmp_path: Path) -> None:
    settings, expected = REFUSED[name]
    places = {"{native}": str(native), "{web}": str(tmp_path / "web"), "{broken}": str(tmp_path / "broken")}
    task_files.written(
        tmp_path / "web", osworld_task(1, "x") | {"instruction": "Open https://a.example/ and buy it"}, "os/w.json"
    )
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "bad.yaml").write_text("deskhand: 2\nchek: {}\n")
    for mark, place in places.items():
        settings, expected = [setting.replace(mark, place) for setting in settings], expected.replace(mark, place)
    with pytest.raises(ConfigError) as raised:
        suite_of(settings)
    assert expected in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_oracle_names_tasks_without_one(native: Path, monkeypatch, capsys, tmp_path: Path) -> None:
    settings = ["suite.format=deskhand", f"suite.path={native}", "desktop.prewarm=0", "loop.max_concurrent_episodes=1"]
    small = ["--policy", "oracle", *(word for setting in settings for word in ("--set", setting))]
    code, _, err = called(monkeypatch, capsys, "eval", str(tmp_path / "run"), *small)
    assert code == 2
    assert "the oracle cannot play open: no oracle; add the key oracle" in err
    code, out, err = called(
        monkeypatch, capsys, "eval", str(tmp_path / "again"), *small, "--set", "suite.families=[one, two]"
    )
    assert code == 0, err
    assert "2/2" in out


@needs_weights
def test_a_model_is_trained_on_files(native: Path, monkeypatch, capsys, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    settings = ["suite.format=deskhand", f"suite.path={native}", "suite.eval_fraction=0.3", "desktop.prewarm=0"]
    settings += ["trainer.algorithm=ppo", "loop.total_steps=1", "loop.groups_per_step=1", "loop.group_size=2"]
    settings += ["loop.max_concurrent_episodes=2", "evaluation.num_episodes=0"]
    words = [word for setting in settings for word in ("--set", setting)]
    code, out, err = called(monkeypatch, capsys, "train", str(ROOT / "configs" / "tiny_cpu.yaml"), str(folder), *words)
    assert code == 0, err
    assert "suite: 2 tasks (train), 0 (validation), 1 (test); 1 skipped" in out
    trained = suite_of(settings).train_tasks
    with Run.open(folder, read_only=True) as run:
        rows = run.episodes(TRAIN)
        assert run.checkpoint() is not None
    assert len(rows) >= 2
    assert {row.family for row in rows} <= set(trained)
    assert all(row.task_id == f"native/{row.family}/{row.seed}" for row in rows)


@contextmanager
def served(*apps: Any) -> Iterator[list[int]]:
    """The ports of applications that are served in a thread of their own."""
    servers = [uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", lifespan="off")) for app in apps]

    async def main() -> None:
        await asyncio.gather(*(server.serve() for server in servers))

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    try:
        while not all(server.started for server in servers):
            time.sleep(0.01)
        yield [server.servers[0].sockets[0].getsockname()[1] for server in servers]
    finally:
        for server in servers:
            server.should_exit = True
        thread.join()


def with_its_two_lines(config: Path, which: int, folder: Path, **ports: int) -> str:
    """A shipped config with the two lines that its comment gives for machines (0: OSWorld's, 1: WAA's), their places
    filled in."""
    text = config.read_text()
    wanted = [line.removeprefix("#   ") for line in text.splitlines() if line.startswith("#   ")][
        2 * which : 2 * which + 2
    ]
    desktop, suite = (yaml.safe_load(line) for line in wanted)
    suite["suite"] |= {"path": str(folder)} | {key: port for key, port in ports.items() if key == "evaluator_port"}
    desktop["desktop"]["urls"] = [f"http://127.0.0.1:{ports.get('port', 5000)}"]
    new = {"desktop": desktop, "suite": suite}
    lines = [json.dumps(new[key])[1:-1] if (key := line.split(":")[0]) in new else line for line in text.splitlines()]
    assert sum(line not in text for line in lines) == 2, "two lines change"
    return "\n".join(lines)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_the_two_lines_of_every_shipped_config_select_a_benchmarks_tasks(config: Path, tmp_path: Path) -> None:
    for which, (kind, make) in enumerate((("osworld", osworld_task), ("waa", waa_task))):
        file = tmp_path / f"{kind}.yaml"
        file.write_text(with_its_two_lines(config, which, corpus(tmp_path / kind, make)))
        for profile in (None, "smoke"):
            settings = load_config(file, profile=profile if "smoke:" in config.read_text() else None)
            found = load_suite(settings.suite, settings.desktop.backend)
            assert settings.desktop.backend == kind
            assert (found.train_tasks, found.skipped) == (("os/1", "os/2"), ())


@pytest.mark.parametrize("which", [0, 1], ids=["osworld", "waa"])
def test_with_these_two_lines_a_remote_machine_is_played_and_judged(which, monkeypatch, capsys, tmp_path: Path) -> None:
    folder = corpus(tmp_path / "tasks", (osworld_task, waa_task)[which])
    fake = FakeWaa(tmp_path / "vm", (1920, 1200)) if which else FakeOsworld(tmp_path / "vm", (1920, 1080))
    evaluate = FakeEvaluate(fake.guest)
    with served(fake.app, evaluate.app) as (port, evaluator_port):
        ports = {"port": port, "evaluator_port": evaluator_port} if which else {"port": port}
        file = tmp_path / "machines.yaml"
        file.write_text(with_its_two_lines(ROOT / "configs" / "tiny_cpu.yaml", which, folder, **ports))
        arguments = ["--policy", "noop", "--config", str(file), "--set", "loop.max_concurrent_episodes=1"]
        code, out, err = called(monkeypatch, capsys, "eval", str(tmp_path / "run"), *arguments)
    assert code == 0, err
    assert "0/1" in out, "set up and judged by the machine's servers: one task is right when it begins"
    assert "the start state already scores 1" in out
    assert "solved by a no-op: os/1; " in " ".join(out.split())
    assert "suite.exclude=[os/1]" in out
    assert ("are not reset" in out) is not bool(which)
    with Run.open(tmp_path / "run", read_only=True) as run:
        assert {row.task_id: row.value for row in run.episodes("noop")} == {
            f"{('osworld', 'waa')[which]}/os/{number}": value for number, value in ((1, None), (2, 0.0))
        }
    assert not list((tmp_path / "vm" / "home").rglob("*deskhand*")), "nothing of ours is put into a machine's home"
