"""Rows of data for AReaL: those of our families, those that people bring along, and those of episodes that were
played."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import fake_desktop
import numpy as np
import pytest
from task_files import SHARED

from deskhand.config.schema import SuiteConfig
from deskhand.errors import ConfigError, RecordError
from deskhand.integrations.areal.agent import OSWorldAgent, WAADesktopWorkflow
from deskhand.integrations.areal.dataset import load_rows, suite_rows, task_from_row
from deskhand.integrations.areal.run_dataset import load_trajectories
from deskhand.integrations.areal.settings import WorkflowSettings
from deskhand.models.load import load_processors
from deskhand.recipes.suite import load_suite
from deskhand.recorder.graph import Call, CallGraph
from deskhand.recorder.images import ImageCache
from deskhand.rollout.episode import errored_result
from deskhand.rollout.episode_record import to_record
from deskhand.rollout.groups import EpisodeRequest
from deskhand.rollout.run_writer import new_row, row_of
from deskhand.store.run import TRAIN, GroupRow, Run
from deskhand.tasks.outcome import Scored
from deskhand.tasks.task import SPLIT_SIZE, Task
from deskhand.types import Completion, ImageSpan

ROOT = Path(__file__).parents[3]
SCREEN = {"screen_size": [640, 480]}
OPENADAPT = """\
name: Write it
id: notes
evaluate:
  - {check: command, run: cat done, expect: "yes"}
"""
NATIVE = """\
deskhand: 2
id: save
instruction: Save the file
screen: {width: 640, height: 480}
check:
  text: {path: a.txt, equals: ""}
limits: {steps: 4}
"""
PYTHON = """\
from deskhand import CheckResult, Task, task_family


async def nothing(desktop):
    pass


async def no(desktop):
    return CheckResult(0.0)


@task_family("mine")
def mine(seed):
    return Task(instruction=f"do {seed}", setup=nothing, check=no)
"""


def waa_document(name: str, **changes: object) -> dict[str, object]:
    return {
        "id": f"{name}-wos", "snapshot": "s", "instruction": f"Do {name}", "source": "x", "related_apps": ["notepad"],
        "config": [], "evaluator": {"func": "exact_match",
                                    "result": {"type": "vm_command_line", "command": "show"},
                                    "expected": {"type": "rule", "rules": {"expected": "yes"}}},
    } | changes  # fmt: skip


def described(task: Task) -> list[object]:
    return [task.id, task.family, task.seed, task.instruction, task.width, task.height, task.max_steps, task.suite]


def suites(folder: Path) -> dict[str, tuple[dict[str, object], str]]:
    """A suite of each kind with the backend of its desktops."""
    for kind in ("waa", "openadapt", "osworld"):
        (folder / kind / "domain").mkdir(parents=True)
    for name in "abcd":
        (folder / "waa" / "domain" / f"{name}.json").write_text(json.dumps(waa_document(name)))
        (folder / "openadapt" / "domain" / f"{name}.yaml").write_text(OPENADAPT.replace("notes", name))
        (folder / "deskhand").mkdir(exist_ok=True)
        (folder / "deskhand" / f"{name}.yaml").write_text(NATIVE.replace("save", name))
        linux = waa_document(name) | {"id": name, "trajectory": "", "proxy": False, "fixed_ip": False}
        linux["evaluator"] = {"func": "infeasible"}
        (folder / "osworld" / "domain" / f"{name}.json").write_text(json.dumps(linux))
    (folder / "mine.py").write_text(PYTHON)
    files = {kind: {"format": kind, "path": str(folder / kind), **SCREEN} for kind in ("waa", "openadapt", "osworld")}
    return {
        "waa": (files["waa"], "waa"),
        "openadapt": (files["openadapt"], "osworld"),
        "osworld": (files["osworld"], "osworld"),
        "deskhand": ({"format": "deskhand", "path": str(folder / "deskhand")}, "local"),
        "python": ({"format": "python", "path": str(folder / "mine.py")}, "local"),
        "miniwob": ({"name": "miniwob", "families": ["click-button"]}, "local"),
        "basics": ({"families": ["terminal_run", "calculator_number"]}, "local"),
    }


@pytest.mark.parametrize("kind", ["waa", "openadapt", "osworld", "deskhand", "python", "miniwob", "basics"])
def test_rows_of_every_source_survive_json_and_make_the_same_task_in_another_process(tmp_path, kind):
    section, backend = suites(tmp_path)[kind]
    found = suite_rows(SuiteConfig.model_validate(section), backend, "train", count=3)
    rows = json.loads(json.dumps(found.rows))
    assert rows == found.rows
    assert len(rows) == 3
    code = (
        "import json, sys\n"
        "from deskhand.integrations.areal.dataset import task_from_row\n"
        "for row in json.load(sys.stdin):\n"
        "    task = task_from_row(row)\n"
        "    keys = ('id', 'family', 'seed', 'instruction', 'width', 'height', 'max_steps', 'suite')\n"
        "    print(json.dumps([getattr(task, key) for key in keys]))\n"
    )
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, input=json.dumps(rows), capture_output=True, text=True, check=True, cwd=ROOT)
    elsewhere = [json.loads(line) for line in done.stdout.splitlines()]
    assert elsewhere == [described(task_from_row(row)) for row in rows]


def test_a_split_is_the_local_trainer_s(tmp_path):
    section, backend = suites(tmp_path)["waa"]
    suite = SuiteConfig.model_validate(section | {"eval_fraction": 0.25, "exclude": ["domain/a"]})
    loaded = load_suite(suite, backend)
    train, valid = (suite_rows(suite, backend, split) for split in ("train", "test"))
    assert [row["family"] for row in train.rows] == list(loaded.train_tasks)
    assert [row["family"] for row in valid.rows] == list(loaded.eval_tasks)
    assert len(valid.rows) == 1
    assert "domain/a" not in {row["family"] for row in [*train.rows, *valid.rows]}
    assert [task_from_row(row).id for row in valid.rows] == [task.id for task in loaded.tasks_of("test", 1)]


def test_a_file_that_cannot_run_is_left_out_with_its_reason(tmp_path):
    section, backend = suites(tmp_path)["waa"]
    broken = waa_document("z", evaluator={"func": "infeasible"})
    (tmp_path / "waa" / "domain" / "z.json").write_text(json.dumps(broken))
    misspelt = waa_document("y", instructionn="x")
    (tmp_path / "waa" / "domain" / "y.json").write_text(json.dumps(misspelt))
    found = suite_rows(SuiteConfig.model_validate(section), backend, "train")
    assert len(found.rows) == 4
    assert len(found.skipped) == 2
    assert "infeasible" in found.skipped[1]
    assert "instructionn" in found.skipped[0]


def test_families_take_turns_with_seeds_of_their_own_split():
    suite = SuiteConfig(families=("terminal_run", "calculator_number"))
    made = suite_rows(suite, "local", "test", count=4, first=3).rows
    assert [row["family"] for row in made] == ["terminal_run", "calculator_number"] * 2
    assert [row["seed"] - SPLIT_SIZE for row in made] == [3, 3, 4, 4]
    assert task_from_row(made[1]).family == "calculator_number"
    only = suite_rows(suite, "local", "train", families=["terminal_run"], count=2).rows
    assert {row["family"] for row in only} == {"terminal_run"}


SETTINGS = WorkflowSettings.of({"desktops": {"local": 1}}, {})


def test_rows_of_openadapt_are_taken_as_they_are(tmp_path):
    (tmp_path / "notes.yaml").write_text(OPENADAPT)
    inline = {"task_id": "b", "instruction": "Do", "evaluate": [{"check": "command", "run": "x", "expect": "y"}]}
    brought = [
        {"task_id": "a", "task_config_path": "notes.yaml", "instruction": "Open it", "max_steps": 5},
        inline | {"server_url": "http://h:5000", "evaluate_url": "http://h:5050", "max_steps": 7},
    ]
    (tmp_path / "rows.json").write_text(json.dumps(brought))
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, brought)) + "\n\n")
    first, second = (load_rows(tmp_path / name, SETTINGS) for name in ("rows.json", "rows.jsonl"))
    assert first.rows == second.rows
    assert [task.family for task in first.tasks] == ["notes", "b"]
    assert [task.instruction for task in first.tasks] == ["Open it", "Do"]
    assert [task.max_steps for task in first.tasks] == [5, 7]


def test_one_bad_row_never_refuses_the_run_when_bad_rows_are_left_out(tmp_path):
    good = {"family": "terminal_run", "seed": 1}
    bad: list[object] = [{"family": "terminal_run"}, {"famly": "x", "seed": 1}, {"osworld": "nothing.json"}, 7]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, [good, *bad, good])))
    found = load_rows(tmp_path / "rows.jsonl", SETTINGS, skip_invalid=True)
    assert found.rows == [good, good]
    assert len(found.skipped) == 4
    assert all("rows.jsonl: row" in reason for reason in found.skipped)
    with pytest.raises(ConfigError, match=r"rows.jsonl: row 2: .*missing key 'seed'.*skip_invalid"):
        load_rows(tmp_path / "rows.jsonl", SETTINGS)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('{"instruction": "x"}', "row 1: data row: missing key 'family'"),
        ('{"task_id": "a"}', "task_config_path"),
        ('{"task_id": "b", "task_config_pth": "x"}', "unknown key 'task_config_pth'; did you mean 'task_config_path'"),
        ('{"family": "terminal_run", "seed": 1, "max_steps": 0}', "max_steps must be a positive integer, got 0"),
        ("[1]", "row 1: expected an object, got int"),
        ("{", "not valid JSON"),
    ],
)
def test_a_wrong_row_is_named(tmp_path, text, word):
    (tmp_path / "rows.jsonl").write_text(text)
    with pytest.raises(ConfigError, match=re.escape(word)) as caught:
        load_rows(tmp_path / "rows.jsonl", SETTINGS)
    assert "rows.jsonl" in str(caught.value)


MISSPELT = {
    "openadapt": ("a.yaml", OPENADAPT.replace("evaluate:", "evalute:"), "evalute"),
    "openadapt check": (
        "a.yaml", OPENADAPT.replace("expect:", "exsts: true, expect:"), "exsts"
    ),
    "waa": ("a.json", json.dumps(waa_document("a", evaluatr={})), "evaluatr"),
    "osworld": ("a.json", json.dumps(waa_document("a", instructionn="x", proxy=False, id="a")), "instructionn"),
    "deskhand": ("a.yaml", NATIVE + "chek: {}\n", "chek"),
}  # fmt: skip


@pytest.mark.parametrize("kind", MISSPELT)
def test_a_misspelt_key_is_named_whatever_the_format(tmp_path, kind):
    name, text, word = MISSPELT[kind]
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=word):
        task_from_row({kind.split()[0]: str(tmp_path / name)})
    with pytest.raises(ConfigError, match=word):
        task_from_row({"task_id": "a", "task_config_path": str(tmp_path / name)})


def test_a_row_of_openadapt_that_names_a_task_file_is_that_task():
    file = SHARED / "osworld" / "chrome" / "bb5e4c0d-f964-439c-97b6-bdb9747de3f4.json"
    if not file.is_file():
        pytest.skip(f"{file} is not there; it is a file of OSWorld's repository")
    row = {"task_id": "a", "max_steps": 4, "server_url": "http://h:1", "instruction": "Do it"}
    task = task_from_row(row | {"task_config_path": str(file)})
    assert (task.id, task.max_steps, task.instruction) == (task_from_row({"osworld": str(file)}).id, 4, "Do it")


def test_openadapt_s_workflow_takes_its_own_arguments(monkeypatch):
    workflow = WAADesktopWorkflow(max_tokens=300, temperature=0.5)
    assert (workflow.settings.agent.max_new_tokens, workflow.settings.agent.temperature) == (300, 0.5)
    assert workflow.settings.agent.action_format == "waa_navi"
    assert workflow.settings.desktops.settings.urls == ("http://localhost:5000",)
    used: list[tuple[str, ...]] = []

    async def run(self, data, **extra):
        used.append(self.settings.desktops.settings.urls)
        return 0.0

    monkeypatch.setattr(OSWorldAgent, "run", run)
    asyncio.run(workflow.run({"task_id": "a", "server_url": "http://vm:5000"}))
    asyncio.run(workflow.run({"task_id": "a"}))
    assert used == [("http://vm:5000",), ("http://localhost:5000",)]
    assert WAADesktopWorkflow({"desktops": {"local": 1}}).settings.desktops.local == 1
    with pytest.raises(ConfigError, match="max_token"):
        WAADesktopWorkflow(max_token=300)


def episode(run: Run, member: int, reward: float | None) -> None:
    """An episode of one call on one screen, stored."""
    tokenizer, processor = load_processors("tiny")
    image_id = tokenizer.convert_tokens_to_ids("<|image_pad|>")
    screen = np.full((64, 64, 3), member, np.uint8)
    name = hashlib.sha256(screen.tobytes()).hexdigest()
    run.frames.put(name, screen)
    shown = ImageCache(processor, fetch=run.frames.png)[name]
    prompt = (1, *[image_id] * shown.tokens, 2)
    spans = (ImageSpan(1, shown.tokens, name),)
    graph = CallGraph(
        [Call(f"c{member}", None, prompt, spans, Completion((5, 6), (-0.5, -0.25), (3, 3), "stop", prompt))]
    )
    ticket = EpisodeRequest(f"e{member}", fake_desktop.square_task(1), "g", member)
    result = replace(errored_result(ticket, "infrastructure", "lost"), graph=graph)
    if reward is not None:
        result = replace(result, outcome=Scored(reward), reward=reward)
    run.start_episode(new_row(ticket, TRAIN))
    run.finish_episode(row_of(result, TRAIN, "queued" if reward is not None else "errored"), *to_record(result))


def test_episodes_of_a_run_are_the_rows_that_a_worker_would_have_handed_over(tmp_path):
    with Run.create(tmp_path / "run", {}) as run:
        run.open_group(GroupRow("g", 0, "square", 1, "queued"))
        for member, reward in enumerate([1.0, None, 0.0]):
            episode(run, member, reward)
        (made,) = load_trajectories(run, "tiny")
        assert made["rewards"].tolist() == pytest.approx([1.0, -1.0], abs=1e-3)
        assert made["input_ids"].shape == (2, 8)
        assert made["loss_mask"].sum(-1).tolist() == [2, 2]
        assert made["versions"][0].tolist()[-2:] == [3, 3]
        assert [len(one["image_grid_thw"]) for one in made["multi_modal_input"]] == [1, 1]
        with pytest.raises(RecordError, match="too_long"):
            next(load_trajectories(run, "tiny", max_tokens=4))
