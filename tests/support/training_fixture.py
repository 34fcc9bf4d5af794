"""The whole circle at its smallest: painted desktops, the agent, the recorder, the hf engine with random weights, the
trainer.

As a program (`python training_fixture.py FOLDER STEPS JOURNAL CHECKPOINT_EVERY`) it trains in a run folder, new or
resumed; tests kill it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import fake_desktop

from deskhand.actions.ops import REL_1000, Click, Done, Op, Point
from deskhand.agents.desktop_agent import AgentConfig, DesktopAgent
from deskhand.config.schema import EngineConfig
from deskhand.recipes.health import resolve_bounds
from deskhand.recipes.training_loop import LoopConfig, TrainingLoop
from deskhand.recorder.images import ImageCache
from deskhand.recorder.recorder import Recorder
from deskhand.recorder.renderer import ChatRenderer
from deskhand.rollout.runner import RecordedRunner
from deskhand.store.run import Run
from deskhand.tasks.task import Task, seed_for

CORPUS = ["Click the blue square", "Click the red square", '{"op":"click","x":512,"y":300}', '{"op":"done"}', "error: "]


class ChanceFormat:
    """Understands every text: what an untrained model babbles becomes a click on one of the squares, or done."""

    name = "chance"

    @staticmethod
    def parse(text: str, view: object) -> list[Op]:
        draw = crc32(text.encode("utf-8", "replace")) % 3
        return [Done()] if draw == 0 else [Click(Point(187 if draw == 1 else 687, 800, REL_1000))]


def checkpoint(folder: Path, seed: int = 0) -> Path:
    """A random Qwen3-VL, much smaller than the bundled one, as a Hugging Face folder with its tokenizer."""
    import torch
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    from deskhand.models.tiny.architecture import PREPROCESSOR, build_config, save
    from deskhand.models.tiny.tokenizer import build_tokenizer

    if (folder / "preprocessor_config.json").exists():
        return folder
    tokenizer = build_tokenizer(CORPUS, merges=60)
    values = build_config(tokenizer).to_dict()
    rope = {**values["text_config"]["rope_parameters"], "mrope_section": [2, 1, 1]}
    text = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 8}
    vision = {
        "depth": 2,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_heads": 2,
        "patch_size": 8,
        "out_hidden_size": 32,
    }
    values["text_config"] |= {**text, "rope_parameters": rope}
    values["vision_config"] |= {**vision, "num_position_embeddings": 64}
    torch.manual_seed(seed)
    save(folder, Qwen3VLForConditionalGeneration(Qwen3VLConfig(**values)), tokenizer)
    small_images = {**PREPROCESSOR, "patch_size": 8, "size": {"shortest_edge": 16 * 16, "longest_edge": 128 * 128}}
    (folder / "preprocessor_config.json").write_text(json.dumps(small_images))
    return folder


class BabblingAgent(DesktopAgent):
    """Agent that accepts truncated replies, since an untrained model rarely ends one."""

    async def _act(self, episode, view, text, call_id, truncated):
        return await super()._act(episode, view, text, call_id, truncated=False)


@dataclass
class Assembly:
    run: Run
    pool: fake_desktop.PaintedPool
    engine: Any
    trainer: Any
    recorder: Recorder
    runner: RecordedRunner
    loop: TrainingLoop


@asynccontextmanager
async def assembled(  # noqa: PLR0913
    folder: Path,
    config: LoopConfig,
    *,
    pool: fake_desktop.PaintedPool | None = None,
    progress: Callable[[Any], None] | None = None,
    on_step: Callable[[int, list[str]], None] | None = None,
    evaluate: Callable[[int], Awaitable[float]] | None = None,
    algorithm: str = "grpo",
    policy: Any = None,
    settings: dict[str, Any] | None = None,
    agent: AgentConfig | None = None,
    make_task: Callable[[int], Task] = lambda n: fake_desktop.square_task(seed_for("train", n)),
    member_task: Callable[[Task, int], Task] | None = None,
) -> AsyncIterator[Assembly]:
    """`folder` holds the run and, beside it, the checkpoint. `policy` and `settings` are those of policy and trainer.
    `on_step` is told (steps before, episode ids) of every trainer step."""
    import torch

    from deskhand.config.trainer import PolicyConfig, TrainerConfig
    from deskhand.engines.hf import HfEngine
    from deskhand.models.load import load
    from deskhand.recipes.teacher import load_teacher
    from deskhand.trainer.policy import Policy
    from deskhand.trainer.trainer import Trainer

    torch.set_num_threads(1)
    source = checkpoint(folder.parent / f"{folder.name}-checkpoint")
    run = Run.open(folder) if (folder / "run.sqlite").exists() else Run.create(folder, {})
    loaded = load(str(source))
    engine = HfEngine(load(str(source)), EngineConfig(max_model_len=1024))
    images = ImageCache(loaded.image_processor, fetch=run.frames.png)
    renderer = ChatRenderer(loaded.tokenizer)
    recorder = Recorder(renderer, engine, images)

    class WatchedTrainer(Trainer):
        def step(self, samples, images):
            if on_step is not None:
                on_step(self.steps, sorted({sample.episode_id for sample in samples}))
            return super().step(samples, images)

    trainer_config = TrainerConfig(**{"learning_rate": 1e-4, "algorithm": algorithm, **(settings or {})})
    teacher, limits = None, {"dtype": "float32", "device": "cpu", "max_tokens": 1024, "environment": {}}
    if trainer_config.distillation is not None:
        teacher = load_teacher(trainer_config.distillation, loaded, renderer.banned_ids, PolicyConfig(), **limits)
    trainer = WatchedTrainer(Policy(loaded.model, policy, renderer.banned_ids), trainer_config, teacher=teacher)
    pool = pool or fake_desktop.PaintedPool(config.max_concurrent_episodes)
    speaker = BabblingAgent(agent or AgentConfig(max_new_tokens=3), action_format=ChanceFormat())
    runner = RecordedRunner(pool, recorder, speaker, run.frames)
    health = resolve_bounds(config.health, "hf", "float32", trainer.algorithm.ratio_level)
    loop = TrainingLoop(
        config.model_copy(update={"health": health}),
        run,
        runner,
        engine,
        trainer,
        images,
        source,
        make_task,
        member_task=member_task,
        on_step=progress,
        evaluate=evaluate,
    )
    try:
        yield Assembly(run, pool, engine, trainer, recorder, runner, loop)
    finally:
        await runner.close()
        recorder.close()
        await engine.close()
        run.close()


def small(**changes: Any) -> LoopConfig:
    return LoopConfig(
        **{"total_steps": 3, "groups_per_step": 2, "group_size": 4, "max_concurrent_episodes": 3, **changes}
    )


async def _main(folder: Path, steps: int, journal: Path, checkpoint_every: int) -> None:
    def note(kind: str, **values: Any) -> None:
        with journal.open("a") as file:
            file.write(json.dumps({"kind": kind, **values}) + "\n")

    config = small(total_steps=steps, save_every=checkpoint_every)
    async with assembled(folder, config, on_step=lambda at, ids: note("step", at=at, episodes=ids)) as parts:
        last = parts.run.checkpoint()
        note(
            "start",
            at=last.step if last else 0,
            finished=[row.id for row in parts.run.episodes() if row.finished_at is not None],
        )
        await parts.loop.run()
        note("end")


if __name__ == "__main__":
    asyncio.run(_main(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])))
