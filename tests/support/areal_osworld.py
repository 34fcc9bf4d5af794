"""A group on a task of OSWorld in which one member plays the scripted solution while the model talks, and the others do
nothing."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import areal_workflows

from benchmarks.osworld.scripted_actor import Hands
from benchmarks.osworld.solutions import SOLUTIONS
from deskhand.actions.ops import Done
from deskhand.osworld.task import load_task
from deskhand.tasks.task import Task

SIZE = (1280, 720)
TASK_ID = "bb5e4c0d-f964-439c-97b6-bdb9747de3f4"


def task(data: Mapping[str, Any]) -> Task:
    """With the accessibility tree, in which the script finds its places; two steps."""
    return replace(load_task(Path(data["osworld"]), size=SIZE, accessibility=True), max_steps=2)


class Scripted(areal_workflows.TimidAgent):
    """What the model says is recorded and not understood. The first desktop of all is acted on by the script."""

    seen: ClassVar[weakref.WeakKeyDictionary[Any, int]] = weakref.WeakKeyDictionary()

    async def _act(self, desktop, view, text, truncated, action_id):
        steps = Scripted.seen.setdefault(desktop, 0)
        Scripted.seen[desktop] += 1
        if steps:
            return (Done(),), None, "", None
        hands = Hands(desktop, *SIZE)
        if len(Scripted.seen) == 1:
            await SOLUTIONS[TASK_ID](hands)
        return tuple(hands.ops), None, "", await desktop.observe()


class OsworldWorkflow(areal_workflows.PaintedWorkflow):
    def make_agent(self, place, temperature):
        return Scripted(replace(place.agent(temperature).config, dialect=areal_workflows.TimidDialect()))
