"""A group on a task of OSWorld in which one member plays the scripted solution while the model talks, and the others do
nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import areal_workflows

from benchmarks.osworld.scripted_actor import ScriptedActor
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
    """What the model says is recorded and not understood. The script acts in the first episode of all."""

    episodes: ClassVar[Any] = count()

    async def _act(self, episode, view, text, call_id, truncated):
        ops = (Done(),) if episode.steps else ()
        if not episode.steps and next(Scripted.episodes) == 0:
            await SOLUTIONS[TASK_ID](ScriptedActor(episode.desktop, *SIZE))
        await episode.act(ops, reply=text, call_id=call_id)
        await episode.observe()
        return None, ops


class OsworldWorkflow(areal_workflows.PaintedWorkflow):
    def make_agent(self, resources, temperature):
        return Scripted(resources.agent(temperature).config, action_format=areal_workflows.TimidDialect())
