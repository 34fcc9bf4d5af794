"""Episodes on local desktops, recorded by the components of a training run.

Additionally, the policy can be kept from ending episodes (so that all have the same number of turns), and bystanders
can load the engine.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from PIL import Image

from deskhand.actions.formats.base import ScreenView
from deskhand.actions.formats.deskhand_json import DeskhandJson
from deskhand.actions.ops import TERMINAL_OPS, Op
from deskhand.agents.desktop_agent import AgentConfig, DesktopAgent
from deskhand.desktop.pool import DesktopPool
from deskhand.engines.hf import HfEngine
from deskhand.engines.hf.decode_batch import EngineStats
from deskhand.errors import ParseError
from deskhand.models.load import load
from deskhand.recorder.images import ImageCache
from deskhand.recorder.messages import ImagePart, message
from deskhand.recorder.recorder import Recorder
from deskhand.recorder.renderer import ChatRenderer
from deskhand.rollout.episode_record import EpisodeResult
from deskhand.rollout.groups import EpisodeRequest
from deskhand.rollout.runner import RecordedRunner
from deskhand.store.frames import Frames
from deskhand.tasks.suites import family_registry
from deskhand.tasks.task import Task, seed_for
from deskhand.types import Sampling

EASY = family_registry.DEFAULT


@dataclass(frozen=True)
class Recording:
    """Recorded episodes and their configuration."""

    results: tuple[EpisodeResult, ...]
    frames: Frames
    images: ImageCache
    renderer: ChatRenderer
    engine: EngineStats


def held_out_tasks(count: int, families: Sequence[str] = EASY) -> list[Task]:
    """Return held-out tasks, alternating families."""
    return [
        family_registry.make_task(families[k % len(families)], seed_for("test", k // len(families)))
        for k in range(count)
    ]


class Endless(DeskhandJson):
    """Format in which ending the episode is an error."""

    def parse(self, text: str, view: ScreenView) -> list[Op]:
        ops = super().parse(text, view)
        if any(isinstance(op, TERMINAL_OPS) for op in ops):
            raise ParseError((0, len(text)), "it is not done yet")
        return ops


async def record(
    source: str,
    tasks: Sequence[Task],
    folder: Path,
    *,
    desktops: int = 2,
    agent: AgentConfig | None = None,
    turns: int | None = None,
    bystanders: int = 0,
    device: str = "cpu",
    dtype: str = "float32",
) -> Recording:
    """Play every task once at temperature 1 with the checkpoint `source`, `desktops` at a time; screens go to `folder`.

    `turns`: exactly so many turns an episode, whatever the model says.
    """
    model = load(source, dtype=dtype, device=device)
    renderer = ChatRenderer(model.tokenizer, source=source)
    frames = Frames(folder)
    images = ImageCache(model.image_processor, fetch=frames.png)
    engine = HfEngine(model)
    recorder = Recorder(renderer, engine, images)
    config, action_format = agent or AgentConfig(), None
    if turns is not None:
        config, action_format = config.model_copy(update={"max_consecutive_errors": turns + 1}), Endless()
        tasks = [replace(task, max_steps=turns) for task in tasks]
    async with DesktopPool(desktops, prewarm=0) as pool:
        runner = RecordedRunner(pool, recorder, DesktopAgent(config, action_format=action_format), frames)
        try:
            async with _bystanders(engine, renderer, model.image_processor, bystanders):
                limit = asyncio.Semaphore(desktops)

                async def play(task: Task) -> EpisodeResult:
                    async with limit:
                        return await runner.run(EpisodeRequest(task.id, task))

                results = await asyncio.gather(*(play(task) for task in tasks))
        finally:
            await runner.close()
            recorder.close()
            await engine.close()
    return Recording(tuple(results), frames, images, renderer, engine.stats)


@asynccontextmanager
async def _bystanders(engine: HfEngine, renderer: ChatRenderer, processor: object, count: int) -> AsyncIterator[None]:
    """Run `count` clients that call the engine with their own images."""
    images = ImageCache(processor)

    async def ask(seed: int) -> None:
        random = np.random.default_rng(seed)
        for turn in range(10**9):
            buffer = io.BytesIO()
            height, width = int(random.integers(2, 6)) * 32, int(random.integers(2, 8)) * 32
            Image.fromarray(random.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(buffer, "PNG")
            picture = images.add(buffer.getvalue()).sha256
            prompt = renderer.render((message("user", [ImagePart(picture), "What is this?"]),), images)
            await engine.generate(
                prompt, Sampling(int(random.integers(8, 40)), banned_ids=renderer.banned_ids, seed=turn)
            )
            await asyncio.sleep(0.02)

    asking = [asyncio.create_task(ask(seed)) for seed in range(count)]
    try:
        yield
    finally:
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
