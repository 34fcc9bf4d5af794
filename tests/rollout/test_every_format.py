"""End to end: in every action format the same tasks are solved on real desktops.

The normal run takes every third format; `DESKHAND_TEST_FULL=1` takes all.
"""

import asyncio

import pytest
from full import FULL

from deskhand.actions import formats
from deskhand.agents.desktop_agent import AgentConfig, DesktopAgent
from deskhand.desktop.pool import DesktopPool
from deskhand.engines.scripted import ScriptedEngine
from deskhand.recorder.images import ImageCache
from deskhand.recorder.recorder import Recorder
from deskhand.recorder.renderer import ChatRenderer
from deskhand.rollout.groups import EpisodeRequest
from deskhand.rollout.runner import RecordedRunner
from deskhand.rollout.scripted_policies import oracle
from deskhand.tasks.suites import basics
from deskhand.tasks.task import seed_for

FAMILIES = ("terminal_run", "terminal_close", "dialog_choice", "calculator_number", "editor_append")
DESKTOPS = 5


@pytest.mark.parametrize("name", formats.available_formats()[:: 1 if FULL else 3])
async def test_the_oracle_solves_five_tasks_in_every_format(name, tokenizer, image_processor):
    renderer = ChatRenderer(tokenizer)
    engine = ScriptedEngine(lambda text: tokenizer.encode(text, add_special_tokens=False), renderer.stop_ids[0])
    recorder = Recorder(renderer, engine, ImageCache(image_processor))
    agent = DesktopAgent(AgentConfig(action_format=name, max_new_tokens=1000))
    async with DesktopPool(DESKTOPS, prewarm=0) as pool:
        runner = RecordedRunner(pool, recorder, agent, script=oracle(agent), playing=engine.playing)
        tasks = [basics.make_task(family, seed_for("train", 3)) for family in FAMILIES]
        try:
            results = await asyncio.gather(*(runner.run(EpisodeRequest(task.id, task)) for task in tasks))
        finally:
            await runner.close()
            recorder.close()
    for result in results:
        said = [(step.text, step.error) for step in result.transcript.steps]
        assert result.success, (result.task_id, result.outcome, said)
        assert result.transcript.num_errors == 0, said
        assert result.transcript.stop_reason == "done", said
        assert result.first_click_on_target is True, said
        assert [call.text for call in result.graph.calls] == [step.text for step in result.transcript.steps]
