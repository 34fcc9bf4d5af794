"""Sibling episodes of one task on real desktops with different end states, evaluated concurrently and sequentially."""

from __future__ import annotations

import asyncio
from typing import Any

from deskhand.desktop.local.desktop import LocalDesktop
from deskhand.osworld.scoring import default_official_evaluators
from deskhand.osworld.task import Official, task_of
from deskhand.rollout.episode import desktop_spec
from deskhand.tasks.formats.osworld import OsworldTask
from deskhand.tasks.judge import judge
from deskhand.tasks.outcome import Outcome
from deskhand.tasks.task import Task

SIZE = (320, 240)
WORDS = "the quick brown fox jumps over the lazy dog"
_NOTES = "/home/user/notes.txt"
_TASK: dict[str, Any] = {
    "id": "siblings",
    "instruction": "Write the sentence.",
    "config": [{"type": "execute", "parameters": {"command": ["mkdir", "-p", "/home/user/kept"]}}],
    "evaluator": {
        "func": ["fuzzy_match", "check_list"],
        "result": [
            {"type": "vm_command_line", "command": ["cat", _NOTES]},
            {"type": "vm_file", "path": _NOTES, "dest": "notes.txt"},
        ],
        "expected": [{"type": "rule", "rules": {"expected": WORDS}}, {"type": "rule", "rules": {"expect": ["quick"]}}],
    },
}


async def _sibling(task: Task, number: int) -> LocalDesktop:
    """Return a desktop at the end of an episode; each has a differently truncated sentence."""
    desktop = LocalDesktop()
    try:
        await desktop.reset(desktop_spec(task))
        await task.setup(desktop)
        words = WORDS.replace("quick ", "") if number % 5 == 0 else WORDS
        await desktop.push(_NOTES, words[: len(words) - number % 24].encode())
    except BaseException:
        await desktop.close()
        raise
    return desktop


async def outcomes(
    count: int, evaluators: Official = default_official_evaluators
) -> tuple[list[Outcome], list[Outcome]]:
    """Return the outcomes of `count` siblings, evaluated concurrently, then sequentially."""
    task = task_of(OsworldTask.model_validate(_TASK), domain="siblings", size=SIZE, evaluators=evaluators)
    desktops: list[LocalDesktop] = []
    try:
        for number in range(count):
            desktops.append(await _sibling(task, number))  # noqa: PERF401 (close the earlier ones if one fails)
        together = await asyncio.gather(*(judge(task, desktop) for desktop in desktops))
        return list(together), [await judge(task, desktop) for desktop in desktops]
    finally:
        await asyncio.gather(*(desktop.close() for desktop in desktops))
