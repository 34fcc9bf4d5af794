"""Watched episodes on painted desktops, with the recorder and a model that a person can replace."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import fake_desktop
import training_fixture

from deskhand.actions.formats import deskhand_json
from deskhand.agents.desktop_agent import DesktopAgent
from deskhand.engines.scripted import ScriptedEngine
from deskhand.engines.takeover import TakeoverEngine
from deskhand.recorder.images import ImageCache
from deskhand.recorder.recorder import Recorder
from deskhand.recorder.renderer import ChatRenderer
from deskhand.rollout.live_episode import WatchedPool
from deskhand.rollout.runner import RecordedRunner
from deskhand.server.live_desktops import LiveDesktops
from deskhand.store.run import Run

NOWHERE = '{"op":"click","x":20,"y":20}'
"""A reply of the model that hits no square."""


class Stage:
    """A runner on watched painted desktops whose model hesitates until `may_reply` is set."""

    def __init__(self, run: Run, tokenizer: Any, image_processor: Any, human_only: bool) -> None:
        self.run, self.renderer = run, ChatRenderer(tokenizer)
        self.asked, self.may_reply = asyncio.Event(), asyncio.Event()
        model = ScriptedEngine(lambda text: tokenizer.encode(text, add_special_tokens=False), self.renderer.stop_ids[0])
        engine = TakeoverEngine(model, self.renderer.encode_text, self.renderer.end_id)
        self.recorder = Recorder(self.renderer, engine, ImageCache(image_processor, fetch=run.frames.png))
        self.pool = WatchedPool(fake_desktop.PaintedPool(2), LiveDesktops(), run, human_only=human_only)
        agent = DesktopAgent(max_new_tokens=64)
        script = None if human_only else self._hesitates
        self.runner = RecordedRunner(self.pool, self.recorder, agent, run.frames, script=script, playing=model.playing)

    async def _hesitates(self, task: Any, desktop: Any) -> AsyncIterator[str]:
        self.asked.set()
        await self.may_reply.wait()
        yield NOWHERE
        async for ops in task.oracle(desktop):
            yield deskhand_json.emit(ops)


@asynccontextmanager
async def open_stage(run: Run, *, human_only: bool = False) -> AsyncIterator[Stage]:
    """A stage for a run; its recorder is closed at the end."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    from deskhand.models.tiny.tokenizer import build_tokenizer

    size = {"shortest_edge": 64, "longest_edge": 64 * 64}
    processor = Qwen2VLImageProcessorPil(patch_size=4, merge_size=2, temporal_patch_size=2, size=size)
    stage = Stage(run, build_tokenizer(training_fixture.CORPUS, merges=60), processor, human_only)
    try:
        yield stage
    finally:
        await stage.runner.close()
        stage.recorder.close()
