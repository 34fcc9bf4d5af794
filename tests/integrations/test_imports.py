"""Imported trajectories keep every good action after its own screenshot; what is left out is named with its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import foreign_trajectories as foreign
import pytest
import training_fixture
from command_line import called, with_settings

from deskhand.actions import formats
from deskhand.actions.formats.base import ScreenView
from deskhand.actions.formats.thoughts import with_thought
from deskhand.actions.ops import Click, Op, Point, to_screen_px
from deskhand.actions.serialization import op_to_json
from deskhand.config.load import Config, load_config
from deskhand.errors import AgentError, ConfigError
from deskhand.integrations.recordings.imports import ImportCounts, import_trajectories
from deskhand.recorder.image_decoding import decode_rgb, pixels_sha256
from deskhand.recorder.images import IMAGE
from deskhand.recorder.recording_proxy import ExchangeLog
from deskhand.recorder.session_store import SessionStore

VIEW = ScreenView.of_screen(*foreign.SIZE)
CLICK, TYPE, DONE = (
    "pyautogui.click(x=0.25, y=0.5)",
    "pyautogui.write(message='it\\'s')",
    "computer.terminate(status='success')",
)


def config(**agent: Any) -> Config:
    chosen = {"action_format": "opencua_relative", "prompt_style": "full", **agent}
    return load_config(None, [f"agent.{key}={value}" for key, value in chosen.items()], {})


def imported(tmp_path: Path, source: Path, kind: Any, settings: Config | None = None, **options: Any) -> ImportCounts:
    chosen = settings or config()
    return import_trajectories(chosen.agent, chosen.model, source, kind, tmp_path / "out", **options)


def exchanges(tmp_path: Path) -> dict[str, list[dict[str, Any]]]:
    """The exchanges of each session: the messages asked, and the reply."""
    log, found = ExchangeLog(SessionStore(tmp_path / "out")), {}
    for session in log.sessions():
        lines = [line["exchange"] for line in log.read(session) if "exchange" in line]
        found[session] = [
            {"messages": one["request"]["messages"], "reply": one["reply"]["choices"][0]["message"]["content"]}
            for one in lines
        ]
    return found


def screens(exchange: dict[str, Any]) -> list[str]:
    parts = [part for one in exchange["messages"] if one["role"] == "user" for part in one["content"]]
    return [part["image_url"]["url"].removeprefix(IMAGE) for part in parts if part["type"] == "image_url"]


def sha256_of(path: Path) -> str:
    return pixels_sha256(decode_rgb(path.read_bytes(), max_pixels=10**6))


def read(reply: str, name: str = "opencua_relative") -> list[dict[str, Any]]:
    return [op_to_json(op, *foreign.SIZE) for op in formats.get(name).parse(reply, VIEW)]


def test_agentnets_steps_become_the_agents_conversation(tmp_path: Path) -> None:
    line = foreign.agentnet_line(tmp_path / "images", "sort", [CLICK, TYPE, DONE])
    line["traj"][1]["value"]["last_step_correct"] = False
    unfinished = foreign.agentnet_line(tmp_path / "images", "half", [CLICK], task_completed=False)
    source = foreign.write_lines(tmp_path / "net.jsonl", [line, unfinished])
    counts = imported(tmp_path, source, "agentnet", images=tmp_path / "images")
    assert (counts.trajectories, counts.replies, counts.low_reward, counts.problems.lines) == (2, 2, 1, [])
    first, last = exchanges(tmp_path)["sort.1"]
    assert first["reply"] == (
        "## Thought:\nThe task asks for step 0.\n\n## Action:\nDo step 0 of the task.\n\n"
        "## Code:\n```python\npyautogui.click(x=0.25, y=0.5)\n```"
    )
    assert read(last["reply"]) == [{"op": "done"}]
    assert [one["role"] for one in last["messages"]] == ["system", *["user", "assistant"] * 2, "user"]
    assert read(last["messages"][4]["content"]) == [{"op": "type", "text": "it's"}], "a mistake is context alone"
    assert screens(last) == [sha256_of(tmp_path / "images" / f"sort-{index}.png") for index in range(3)]
    assert "Instruction of sort" in json.dumps(last["messages"][1])
    lines = {
        session: list(ExchangeLog(SessionStore(tmp_path / "out")).read(session)) for session in ("sort.1", "half.2")
    }
    assert {session: line[-1]["reward"]["reward"] for session, line in lines.items()} == {"sort.1": 1.0, "half.2": 0.0}
    assert last["messages"][0]["content"] == formats.get("opencua_relative").prompt(VIEW)


def test_bad_lines_and_steps_are_named_and_lose_nothing_else(tmp_path: Path) -> None:
    images = tmp_path / "images"
    line = foreign.agentnet_line(images, "long", [CLICK] * 9)
    codes = {2: "pyautogui.screenshot('x.png')", 4: "import os; os.system('true')", 6: "pyautogui.click(x=1.5, y=0.5)"}
    for index, code in codes.items():
        line["traj"][index]["value"]["code"] = code
    (images / "long-8.png").unlink()
    (images / "long-7.png").write_bytes(b"no image")
    del line["traj"][0]["value"]["code"]
    good = foreign.agentnet_line(images, "good", [CLICK, DONE])
    lines = ["{torn", line, "[1]", {"task_id": "t", "traj": []}, {"task_id": "t", "instruction": "i"}, good]
    counts = imported(tmp_path, foreign.write_lines(tmp_path / "net.jsonl", lines), "agentnet", images=images)
    found = exchanges(tmp_path)
    assert {session: len(part) for session, part in found.items()} == {
        "long.2": 1, "long.2.1": 1, "long.2.2": 1, "good.6": 2,
    }  # fmt: skip
    for session, index in (("long.2", 1), ("long.2.1", 3), ("long.2.2", 5)):
        assert screens(found[session][0]) == [sha256_of(images / f"long-{index}.png")], "nothing before it is shown"
    assert (counts.trajectories, counts.conversations, counts.replies) == (2, 4, 5)
    assert counts.left_out == {
        "pyautogui.screenshot": 1, "os.system": 1, "pyautogui.click": 1, "without a screenshot": 1,
        "with an unreadable screenshot": 1,
    }  # fmt: skip
    problems = (tmp_path / "out" / "problems.txt").read_text().splitlines()
    assert problems == counts.problems.lines
    for place in (":1: not JSON", ":2 step 0: no value.code", ":2 step 2: pyautogui.screenshot", ":2 step 4: ",
                  ":2 step 6: pyautogui.click: x=1.5 is off the screen", ":2 step 7: ", ":2 step 8: ",
                  ":3: not a JSON object", ":4: no instruction", ":5: no traj"):  # fmt: skip
        assert any(one.startswith(f"{tmp_path / 'net.jsonl'}{place}") for one in problems), place
    assert len(problems) == 10


def test_a_row_cannot_name_a_file_outside_the_folder_of_images(tmp_path: Path) -> None:
    line = foreign.agentnet_line(tmp_path / "images", "net", [CLICK, CLICK, DONE])
    foreign.screenshot(tmp_path / "private.png", 7)
    line["traj"][0]["image"] = "../private.png"
    line["traj"][1]["image"] = str(tmp_path / "private.png")
    line["traj"].insert(0, {**line["traj"][2], "image": "a\0b.png"})
    counts = imported(
        tmp_path, foreign.write_lines(tmp_path / "n.jsonl", [line]), "agentnet", images=tmp_path / "images"
    )
    assert counts.replies == 1
    assert [one.rpartition(": ")[2] for one in counts.problems.lines] == [
        "no image in the folder; add it, or remove the trajectory"
    ] * 3


def test_scalecuas_samples_are_joined_to_their_trajectories(tmp_path: Path) -> None:
    images = tmp_path / "data"
    steps = ["click(x=0.25, y=0.5)", "scroll(clicks=-3, x=0.5, y=0.5)", "terminate(status='success', info=None)"]
    one = foreign.scalecua_lines(images, "Task of\ntwo lines", steps)
    others = ["write(message='a')\npress(keys='enter')", "open_app(app_name='X')", "response(answer='42')"]
    two = foreign.scalecua_lines(images, "Other", others, "desk/two")
    twin = foreign.scalecua_lines(images, "Task of\ntwo lines", ["doubleClick(x=0.1, y=0.1)", "wait(seconds=3)"])
    labeled = {"value": "Thought: It is there.\nAction: click(x=0.5, y=0.25)", "from": "gpt"}
    lone = {
        "image": "desk/one/images/0.png",
        "conversations": [{"from": "human", "value": "<image>\nOpen it"}, labeled],
    }
    mixed = [one[0], twin[0], two[0], one[1], twin[1], two[1], {"image": []}, one[2], two[2], lone]
    foreign.write_lines(tmp_path / "annotations" / "ubuntu.jsonl", mixed)
    meta = {"ubuntu": {"root": "data", "annotation": "annotations/ubuntu.jsonl", "conv_style": "x"},
            "gone": {"root": "data", "annotation": "annotations/gone.jsonl"}}  # fmt: skip
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    counts = imported(tmp_path, tmp_path / "meta.json", "scalecua")
    found = exchanges(tmp_path)
    actions = {name: [read(one["reply"]) for one in part] for name, part in found.items()}
    click, scroll = {"op": "click", "point": [50, 50]}, {"op": "scroll", "dy": 3, "point": [100, 50]}
    assert actions["ubuntu.1"] == [[click], [scroll], [{"op": "done"}]]
    assert actions["ubuntu.2"] == [[{"op": "click", "point": [20, 10], "count": 2}], [{"op": "wait", "seconds": 3}]]
    assert actions["ubuntu.3"] == [[{"op": "type", "text": "a"}, {"op": "key", "keys": ["enter"]}]]
    assert actions["ubuntu.3.1"] == [[{"op": "answer", "text": "42"}]]
    assert actions["ubuntu.10"] == [[{"op": "click", "point": [100, 25]}]]
    assert set(actions) == {"ubuntu.1", "ubuntu.2", "ubuntu.3", "ubuntu.3.1", "ubuntu.10"}
    said = found["ubuntu.1"][0]["reply"]
    assert said.startswith("## Thought:\nBecause of Task of\ntwo lines.\n\n## Action:\nDo 0\n\n## Code:\n")
    assert found["ubuntu.10"][0]["reply"].startswith("## Thought:\nIt is there.\n\n## Code:\n")
    assert "Task of\\ntwo lines" in json.dumps(found["ubuntu.1"][2]["messages"][1])
    assert len(screens(found["ubuntu.1"][2])) == 3
    assert counts.left_out == {"open_app": 1}
    assert [one.split(": ")[0].rpartition("/")[2] for one in counts.problems.lines] == [
        "ubuntu.jsonl:7", "ubuntu.jsonl:6", "meta.json",
    ]  # fmt: skip


def test_a_scalecua_sample_without_its_predecessor_starts_a_conversation(tmp_path: Path) -> None:
    lines = foreign.scalecua_lines(tmp_path, "t", ["click(x=0.1, y=0.1)", "click(x=0.2, y=0.2)", "click(x=0.3, y=0.3)"])
    source = foreign.write_lines(tmp_path / "part.jsonl", [lines[0], "{", lines[2]])
    imported(tmp_path, source, "scalecua")
    found = exchanges(tmp_path)
    assert {name: len(screens(part[0])) for name, part in found.items()} == {"part.1": 1, "part.3": 1}


def test_a_scalecua_sample_of_several_turns_is_not_cut_to_one(tmp_path: Path) -> None:
    one, two = foreign.scalecua_lines(tmp_path, "t", ["click(x=0.1, y=0.1)", "click(x=0.2, y=0.2)"])
    one["conversations"] += two["conversations"]
    two["conversations"] = [{"from": "system", "value": "s"}, *two["conversations"]]
    counts = imported(tmp_path, foreign.write_lines(tmp_path / "part.jsonl", [one, two]), "scalecua")
    assert set(exchanges(tmp_path)) == {"part.2"}
    assert [line.split(": ")[1] for line in counts.problems.lines] == [
        "not one image, a human's message and a reply; remove the line"
    ]


def test_a_text_that_no_tokenizer_reads_is_repaired(tmp_path: Path) -> None:
    line = foreign.agentnet_line(tmp_path, "net", [CLICK], task_completed="yes")
    line["traj"][0]["value"]["thought"] = "half \ud83d"
    whole = foreign.agentnet_line(tmp_path, "net", [CLICK])
    whole["traj"][0]["value"]["thought"] = "half \ud83d"
    source = foreign.write_lines(tmp_path / "net.jsonl", [line, whole])
    counts = imported(tmp_path, source, "agentnet")
    assert "half \ufffd" in exchanges(tmp_path)["net.2"][0]["reply"]
    assert counts.low_reward == 1, "what is not clearly completed is not trained"


def test_osworlds_actions_follow_the_screen_before_them(tmp_path: Path) -> None:
    results, tasks = tmp_path / "results" / "pyautogui" / "screenshot" / "model", tmp_path / "OSWorld"
    point = {"action_type": "CLICK", "parameters": {"x": 50, "y": 50}}
    replies = [
        ["import pyautogui; pyautogui.click(50, 50)", "pyautogui.press('enter')"],
        ["WAIT"],
        [point, "WAIT"],
        ["DONE"],
    ]
    folder = foreign.osworld_results(results, tasks, "good", replies)
    foreign.osworld_results(results, tasks, "failed", [["DONE"]], score=0.0)
    foreign.osworld_results(results, tasks, "crashed", [["DONE"]], score=None)
    foreign.osworld_results(results, tasks, "diverged", [["DONE"]], score=float("nan"))
    foreign.osworld_results(results, tasks, "headless", [["pyautogui.click(1, 1)"], ["DONE"]], has_first_screen=False)
    foreign.osworld_results(results, tasks, "unknown", [["DONE"]])
    (tasks / "evaluation_examples" / "examples" / "chrome" / "unknown.json").unlink()
    counts = imported(tmp_path, tmp_path / "results", "osworld", tasks=tasks)
    found = exchanges(tmp_path)
    assert [read(one["reply"]) for one in found["chrome.good"]] == [
        [{"op": "click", "point": [50, 50]}, {"op": "key", "keys": ["enter"]}],
        [{"op": "wait", "seconds": 2}],
        [{"op": "click", "point": [50, 50]}, {"op": "wait", "seconds": 2}],
        [{"op": "done"}],
    ]
    shown = ["step_0.png", "step_1_20261101@120001.png", "step_2_20261101@120002.png", "step_3_20261101@120004.png"]
    assert screens(found["chrome.good"][3]) == [sha256_of(folder / name) for name in shown]
    assert len(found["chrome.headless"]) == 1
    assert set(found) == {"chrome.good", "chrome.failed", "chrome.headless"}
    assert (counts.trajectories, counts.low_reward, counts.replies) == (3, 1, 5)
    expected = ("crashed/result.txt: no score", "diverged/result.txt: no score",
                "headless/traj.jsonl:1: the screen before it (step_0.png) is missing",
                "unknown: the instruction is unknown, chrome/unknown.json is not below")  # fmt: skip
    assert len(counts.problems.lines) == len(expected)
    for line, text in zip(counts.problems.lines, expected, strict=True):
        assert text in line


@pytest.mark.parametrize(
    ("replies", "torn", "kept"),
    [
        ([["pyautogui.click(10, 1)"], ["pyautogui.click(20, 1)"], ["pyautogui.click(30, 1)"], ["DONE"]], 1, [1, 4]),
        ([["pyautogui.click(10, 1)", "pyautogui.click(11, 1)"], ["pyautogui.click(20, 1)"], ["DONE"]], 1, [3]),
        ([["pyautogui.click(10, 1)"], ["pyautogui.click(20, 1)", "pyautogui.click(21, 1)"], ["DONE"]], 1, [3]),
        ([["pyautogui.click(10, 1)"], ["pyautogui.click(20, 1)"]], 1, [1]),
    ],
)
def test_a_torn_line_of_osworld_loses_only_steps_that_depend_on_it(replies, torn, kept, tmp_path: Path) -> None:
    folder = foreign.osworld_results(tmp_path / "results", tmp_path / "tasks", "t", replies)
    lines = (folder / "traj.jsonl").read_text().splitlines()
    whole = [json.loads(line) for line in lines]
    lines[torn] = lines[torn][:30]
    foreign.write_lines(folder / "traj.jsonl", lines)
    imported(tmp_path, tmp_path / "results", "osworld", tasks=tmp_path / "tasks")
    before = {1: "step_0.png"} | {line["step_num"] + 1: line["screenshot_file"] for line in whole}
    wanted = [sha256_of(folder / before[number]) for number in kept]
    assert [screens(one)[-1] for part in exchanges(tmp_path).values() for one in part] == wanted


def test_a_reply_in_the_agents_own_format_stays_as_it_was_said(tmp_path: Path) -> None:
    said = "## Action:\nPress it.\n\n## Code:\n```python\npyautogui.click(x=0.2525, y=0.505)\n```"
    other = "## Code:\n```python\npyautogui.click(x=0.9, y=0.9)\n```"
    actions = [["pyautogui.click(50, 50)"], ["pyautogui.click(50, 50)"], ["DONE"]]
    replies = [said, other, "Done."]
    foreign.osworld_results(tmp_path / "results", tmp_path / "tasks", "own", actions, responses=replies)
    imported(tmp_path, tmp_path / "results", "osworld", tasks=tmp_path / "tasks")
    ((first, second, _),) = exchanges(tmp_path).values()
    assert first["reply"] == said
    assert read(second["reply"]) == [{"op": "click", "point": [50, 50]}], "another action is not the one that was done"


@pytest.mark.parametrize("name", formats.available_formats())
def test_every_action_format_gets_the_same_click_and_a_thought_where_it_has_a_place(name: str) -> None:
    action_format = formats.get(name)
    ops: list[Op] = [Click(Point(50, 50, VIEW.screen))]
    action = action_format.emit(ops, VIEW)
    reply = with_thought(action_format, VIEW, action, "It is in the middle.", "Click it.")
    assert (reply is None) == (name == "deskhand_json")
    (*_, op) = action_format.parse(reply or action, VIEW)
    assert isinstance(op, Click)
    if op.point is not None:  # one format moves first
        assert max(abs(a - b) for a, b in zip(to_screen_px(op.point, *foreign.SIZE), (50, 50), strict=True)) <= 1
    assert reply is None or "It is in the middle." in reply


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("scalecua", "<think>\nWhy\n</think>\n<operation>\nWhat\n</operation>\n<action>\nclick("),
        ("uitars_1_5", "Thought: Why\nAction: click("),
        ("holo", '{"note": "", "thought": "Why", "tool_call": '),
        ("qwen3_vl", "Why\n<tool_call>\n"),
    ],
)
def test_a_thought_stands_where_the_format_has_it(name: str, start: str) -> None:
    action = formats.get(name).emit([Click(Point(50, 50, VIEW.screen))], VIEW)
    assert (with_thought(formats.get(name), VIEW, action, "Why", "What") or "").startswith(start)


def test_a_thought_that_contains_an_action_is_left_out() -> None:
    action_format = formats.get("pyautogui")
    action = action_format.emit([Click(Point(50, 50, VIEW.screen))], VIEW)
    assert with_thought(action_format, VIEW, action, "First ```python\npyautogui.click(x=0.1, y=0.1)\n```", "") is None


def test_what_the_agents_format_cannot_say_is_named(tmp_path: Path) -> None:
    line = foreign.agentnet_line(tmp_path, "net", ["pyautogui.hscroll(3)", CLICK, DONE])
    counts = imported(
        tmp_path, foreign.write_lines(tmp_path / "n.jsonl", [line]), "agentnet", config(action_format="scalecua")
    )
    assert counts.left_out == {"pyautogui.hscroll": 1}
    assert counts.replies == 2
    with pytest.raises(AgentError):
        formats.get("scalecua").emit(formats.get("opencua_relative").parse("pyautogui.hscroll(3)", VIEW), VIEW)


def test_screens_are_shown_in_the_size_that_the_agent_sees(tmp_path: Path) -> None:
    line = foreign.agentnet_line(tmp_path, "net", [CLICK, DONE])
    source = foreign.write_lines(tmp_path / "net.jsonl", [line])
    imported(tmp_path, source, "agentnet", config(max_pixels=64 * 64))
    ((first, _),) = exchanges(tmp_path).values()
    image = decode_rgb(SessionStore(tmp_path / "out").image(screens(first)[0]), max_pixels=10**6)
    assert image.size <= 3 * 64 * 64
    assert read(first["reply"]) == [{"op": "click", "point": [50, 50]}]


def test_a_failed_import_leaves_nothing_and_says_why(tmp_path: Path) -> None:
    line = foreign.agentnet_line(tmp_path, "net", ["pyautogui.screenshot()"])
    source = foreign.write_lines(tmp_path / "net.jsonl", [line])
    with pytest.raises(ConfigError, match=r"net\.jsonl: nothing to import; first of 1 problems: .*net\.jsonl:1 step 0"):
        imported(tmp_path, source, "agentnet")
    assert not (tmp_path / "out").exists()
    with pytest.raises(ConfigError, match="--tasks: required for osworld"):
        imported(tmp_path, source, "osworld")
    with pytest.raises(ConfigError, match=r"gone: does not exist"):
        imported(tmp_path, tmp_path / "gone", "agentnet")
    with pytest.raises(ConfigError, match=r"agent\.class and agent\.observation"):
        imported(tmp_path, source, "agentnet", config(observation="a11y_tree"))
    low = foreign.agentnet_line(tmp_path, "low", [CLICK], task_completed=False)
    with pytest.raises(ConfigError, match="1 trajectories have a score below 1"):
        imported(tmp_path, foreign.write_lines(tmp_path / "low.jsonl", [low]), "agentnet")
    imported(
        tmp_path,
        foreign.write_lines(tmp_path / "ok.jsonl", [foreign.agentnet_line(tmp_path, "ok", [CLICK])]),
        "agentnet",
    )
    with pytest.raises(ConfigError, match="out: not empty; write to a new folder"):
        imported(tmp_path, source, "agentnet")


def test_a_warm_start_trains_on_imports_of_all_three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    checkpoint = training_fixture.checkpoint(tmp_path / "checkpoint")
    (tmp_path / "config.yaml").write_text(f"model: {checkpoint}\n")
    agent = with_settings("agent.action_format=opencua_relative", "agent.prompt_style=compact")
    net = foreign.write_lines(tmp_path / "net.jsonl", [foreign.agentnet_line(tmp_path, "net", [CLICK, DONE]), "{"])
    steps = foreign.scalecua_lines(tmp_path, "scale", ["click(x=0.1, y=0.1)", "terminate(status='success')"])
    scale = foreign.write_lines(tmp_path / "scale.jsonl", steps)
    results, tasks = tmp_path / "results", tmp_path / "OSWorld"
    foreign.osworld_results(results, tasks, "world", [["pyautogui.click(50, 50)"], ["DONE"]])
    sources = {"agentnet": net, "scalecua": scale, "osworld": results}
    for kind, source in sources.items():
        words = [str(tmp_path / "config.yaml"), str(source), "--format", kind, "--out", str(tmp_path / kind)]
        code, out, err = called(monkeypatch, capsys, "import", *words, "--tasks", str(tasks), *agent)
        assert code == 0, err
        assert f"2 replies to train on in {tmp_path / kind}, of 1 trajectories" in out
        assert ("net.jsonl:2: not JSON" in err) == (kind == "agentnet")
    command = ["sft", str(tmp_path / "config.yaml"), str(tmp_path / "run")]
    episodes = [word for kind in sources for word in ("--episodes", str(tmp_path / kind))]
    sft = with_settings("sft.total_steps=1", "sft.warmup_steps=0", "sft.val_fraction=0", "sft.episodes_per_batch=3",
                        "sft.log_every=1", "trainer.torch_threads=1", "policy.lora.rank=4")  # fmt: skip
    code, out, err = called(monkeypatch, capsys, *command, *episodes, *agent, *sft)
    assert code == 0, err
    assert "3 training episodes, 0 validation episodes" in out
    assert "update 1/1  loss" in out
