"""Small stand-ins in the formats of AgentNet, ScaleCUA and OSWorld's runners, with screenshots of noise."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import recording

SIZE = (200, 100)
"""Width and height of the screenshots."""


def screenshot(path: Path, seed: int) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(recording.png(seed, *SIZE))
    return path.name


def write_lines(path: Path, lines: Sequence[dict[str, Any] | str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def agentnet_line(images: Path, task: str, codes: Sequence[str], **more: Any) -> dict[str, Any]:
    """A trajectory as in AgentNet's files: every step has an observation, a thought, an action in words and code."""
    steps = []
    for index, code in enumerate(codes):
        value = {
            "observation": "A dialog with two squares.",
            "thought": f"The task asks for step {index}.",
            "action": f"Do step {index} of the task.",
            "code": code,
            "last_step_correct": True,
            "last_step_redundant": False,
            "reflection": "It worked.",
        }
        name = screenshot(images / f"{task}-{index}.png", sum(map(ord, task)) * 100 + index)
        steps.append({"index": index, "image": name, "value": value})
    scores = {"alignment_score": 9, "efficiency_score": 8, "task_difficulty": 2, "task_completed": True}
    return {"task_id": task, "instruction": f"Instruction of {task}", **scores, "traj": steps, **more}


def scalecua_lines(images: Path, task: str, actions: Sequence[str], folder: str = "desk/one") -> list[dict[str, Any]]:
    """The lines of one trajectory: each step is a sample with the operations before it."""
    lines, before = list[dict[str, Any]](), list[str]()
    for index, action in enumerate(actions):
        name = screenshot(images / folder / "images" / f"{index}.png", sum(map(ord, task)) * 100 + index)
        asked = (
            "<image>\nPlease generate the next move according to the UI screenshot, task and previous operations.\n\n"
            f"Task: {task}\n\nPrevious operations:\n{chr(10).join(before) or 'None'}"
        )
        said = f"<think>\nBecause of {task}.\n</think>\n<operation>\nDo {index}\n</operation>\n"
        talk = [
            {"from": "human", "value": asked},
            {"from": "gpt", "value": f"{said}<action>\n{action}\n</action>"},
        ]
        size = {"width": SIZE[0], "height": SIZE[1]}
        lines.append({"image": f"{folder}/images/{name}", "conversations": talk, **size})
        before.append(f'Step {index + 1}: "Do {index}"')
    return lines


def osworld_results(
    results: Path,
    tasks: Path,
    example: str,
    replies: Sequence[Sequence[Any]],
    *,
    score: float | None = 1.0,
    has_first_screen: bool = True,
    responses: Sequence[str] = (),
) -> Path:
    """A result folder in the domain `chrome`, and the task's JSON; `replies` are the actions of each reply."""
    folder, seed = results / "chrome" / example, sum(map(ord, example)) * 100
    folder.mkdir(parents=True)
    task = {"id": example, "instruction": f"Instruction of {example}", "evaluator": {"func": "exact_match"}}
    write_lines(tasks / "evaluation_examples" / "examples" / "chrome" / f"{example}.json", [task])
    if has_first_screen:
        screenshot(folder / "step_0.png", seed)
    lines = []
    for number, actions in enumerate(replies, 1):
        for action in actions:
            stamp = f"20261101@1200{len(lines):02}"
            name = screenshot(folder / f"step_{number}_{stamp}.png", seed + len(lines) + 1)
            line = {"step_num": number, "action_timestamp": stamp, "action": action, "reward": 0.0, "done": False}
            answer = {"response": responses[number - 1]} if responses else {}
            lines.append({**line, "info": {}, "screenshot_file": name, **answer})
    write_lines(folder / "traj.jsonl", lines)
    if score is not None:
        (folder / "result.txt").write_text(f"{score}\n")
    return folder
