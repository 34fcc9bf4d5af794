"""A run's parts, joined from its settings. Invariant: what is opened here is closed here, whatever happens in between.

One process holds everything: desktops, the engine, the recorder that agents talk to, and the trainer, with a copy of the
weights or (`engine.share_weights`) the very ones that the engine samples from. Importing this imports torch.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from deskhand.agents.desktop_agent import AgentConfig, DesktopAgent
from deskhand.agents.from_config import agent_of
from deskhand.config.load import Config
from deskhand.config.loop import LoopConfig
from deskhand.config.schema import MACHINE_BACKENDS
from deskhand.desktop.factory import build_remote_pool
from deskhand.desktop.lease_store import LeaseStore
from deskhand.desktop.local.desktop import LocalDesktop
from deskhand.desktop.local.isolation import ResourceLimits
from deskhand.desktop.pool import DesktopPool
from deskhand.desktop.remote import quota
from deskhand.engines.scripted import ScriptedEngine
from deskhand.errors import ConfigError
from deskhand.models.load import LoadedModel, checkpoint_folder, load, load_processors
from deskhand.recipes.concurrency import eval_concurrency, train_concurrency
from deskhand.recipes.engine_factory import build_engine
from deskhand.recipes.health import Alert
from deskhand.recipes.step_report import StepReport
from deskhand.recipes.suite import load_suite
from deskhand.recipes.training_loop import TrainingLoop
from deskhand.recorder.images import ImageCache
from deskhand.recorder.recorder import Recorder
from deskhand.recorder.renderer import ChatRenderer
from deskhand.rollout.episode import desktop_spec
from deskhand.rollout.eval_loop import evaluate
from deskhand.rollout.runner import DesktopLeaser, RecordedRunner, Script
from deskhand.rollout.scheduler import frozen_gc
from deskhand.store.metrics import WandbRun
from deskhand.store.run import Run
from deskhand.tasks.task import Task, seed_for
from deskhand.trainer.checkpoint import verify
from deskhand.trainer.policy import Policy
from deskhand.trainer.trainer import Trainer
from deskhand.trainer.weight_sync import attach_engine
from deskhand.types import Engine

LEASE_DB = "leases.sqlite"
"""The book of leases in a run's folder."""
SEEDS_PER_RUN = 1_000_000
"""Training seeds of one `config.seed`; another `config.seed` meets other tasks."""


@dataclass(frozen=True)
class PolicyRuntime:
    """What plays episodes with one model."""

    runner: RecordedRunner
    engine: Engine
    recorder: Recorder
    images: ImageCache
    renderer: ChatRenderer
    model: LoadedModel | None
    """None when the model is in another process."""


def train_families(config: Config) -> list[str]:
    """The task families that are trained, checked. Raises `ConfigError` for an unknown one."""
    return list(load_suite(config).train_tasks)


def train_task_factory(config: Config) -> Callable[[int], Task]:
    """The task of the group of a number: families in turn, each with seeds of its own."""
    suite = load_suite(config)
    names = suite.train_tasks

    def make(number: int) -> Task:
        index = number // len(names)
        return suite.make(names[number % len(names)], seed_for("train", config.seed * SEEDS_PER_RUN + index))

    return make


def eval_tasks(config: Config) -> list[Task]:
    """The same tasks for every version and every `config.seed`, as many of each family."""
    return load_suite(config).held_out_tasks(config.evaluation.num_episodes)


@asynccontextmanager
async def open_pool(
    config: Config, count: int, folder: Path | None = None, parked: Callable[[str], None] = lambda text: None
) -> AsyncIterator[DesktopLeaser]:
    """`count` desktops at a time: embedded ones, their leases booked in the run's `folder`, or those of other machines, with what
    is known of their quotas there. `parked` is told what waits for a quota whenever that changes. Raises `ConfigError` or
    `InfrastructureError` when none starts."""
    first = train_task_factory(config)(0)
    desktop = config.desktop
    if desktop.backend != "embedded":
        lot = quota.QuotaManager(folder / quota.FILE if folder is not None else None)
        lot.listen(lambda: parked(lot.line()))
        with ExitStack() as stack:
            book = LeaseStore(folder / LEASE_DB) if folder is not None and desktop.backend in MACHINE_BACKENDS else None
            if book is not None:
                stack.callback(book.close)
            async with build_remote_pool(
                desktop.backend, desktop, desktop_spec(first), lot, os.environ, folder, book
            ) as elsewhere:
                elsewhere.episode_s = desktop.episode_timeout_s
                yield elsewhere
        return

    limits = ResourceLimits(desktop.memory_limit_mib, desktop.max_processes, desktop.disk_limit_mib)

    def make() -> LocalDesktop:
        isolation = None if desktop.isolation == "best" else desktop.isolation
        return LocalDesktop(
            isolation_level=isolation, limits=limits, settle_ms=desktop.settle_ms, settle_timeout_s=desktop.settle_timeout_s
        )

    template = desktop_spec(first)
    book = LeaseStore(folder / LEASE_DB if folder is not None else None)
    async with DesktopPool(
        count, template, prewarm=desktop.prewarm, make=make, lease_store=book, memory_request_mib=desktop.memory_request_mib
    ) as pool:
        yield pool


@asynccontextmanager
async def open_policy(
    config: Config, run: Run, pool: DesktopLeaser, source: str, version: int, temperature: float
) -> AsyncIterator[PolicyRuntime]:
    """An engine with the checkpoint `source` as weights of that version, behind a recorder, with an agent that asks it."""
    async with AsyncExitStack() as stack:
        made = await build_engine(config, source, version, run.folder / "engine", run.frames.png)
        stack.push_async_callback(made.engine.close)
        renderer = ChatRenderer(made.tokenizer, source=source, history=config.engine.rewritten_history)
        images = ImageCache(made.image_processor, fetch=run.frames.png)
        recorder = Recorder(renderer, made.engine, images, context_tokens=made.context_tokens)
        stack.callback(recorder.close)
        runner = RecordedRunner(
            pool, recorder, DesktopAgent(agent_of(config.agent, temperature, made.image_processor)), run.frames
        )
        stack.push_async_callback(runner.close)
        yield PolicyRuntime(runner, made.engine, recorder, images, renderer, made.model)


@asynccontextmanager
async def open_scripted_policy(
    config: Config, run: Run, pool: DesktopLeaser, script: Callable[[AgentConfig], Script], reply_tokens: int
) -> AsyncIterator[RecordedRunner]:
    """A script behind the recorder of the config's model, whose weights are not loaded: renderer and images are the model's."""
    tokenizer, image_processor = load_processors(config.model)
    renderer = ChatRenderer(tokenizer, source=config.model, history=config.engine.rewritten_history)
    engine = ScriptedEngine(lambda text: tokenizer.encode(text, add_special_tokens=False), renderer.stop_ids[0])
    recorder = Recorder(renderer, engine, ImageCache(image_processor, fetch=run.frames.png))
    agent = replace(agent_of(config.agent, 1.0, image_processor), max_tokens=reply_tokens)
    runner = RecordedRunner(
        pool, recorder, DesktopAgent(agent), run.frames, script=script(agent), playing=engine.playing
    )
    try:
        yield runner
    finally:
        await runner.close()
        recorder.close()


async def run_training_loop(
    config: Config,
    run: Run,
    pool: DesktopLeaser,
    progress: Callable[[StepReport], None],
    alarmed: Callable[[Alert], None] | None = None,
) -> None:
    """Train `run` up to its last step, from its last checkpoint if it has one. `progress` is told of every step, `alarmed` of what
    is wrong between two. The settings must be trainable (`Config.untrainable`)."""
    if config.tracking.wandb:
        run.track(
            await asyncio.to_thread(WandbRun, run.folder, config.tracking.wandb_project, config.model_dump(mode="json"))
        )
    async with open_policy(config, run, pool, config.model, 0, config.agent.temperature) as parts:
        shared = parts.model if config.engine.share_weights else None
        model = shared or load(config.model, dtype=config.dtype, device=config.device)
        trainer = Trainer(
            Policy(model.model, config.policy, parts.renderer.banned_ids, config.trainer.seed), config.trainer
        )
        attach_engine(trainer, parts.engine)
        examining = agent_of(config.agent, config.evaluation.temperature, parts.images.processor)
        examiner = RecordedRunner(pool, parts.recorder, DesktopAgent(examining), run.frames)

        async def held_out(version: int) -> float:
            name = result_label(version_label(version), run.metadata.get("config", {}), config)
            tasks, places = eval_tasks(config), eval_concurrency(config)
            report = await evaluate(run, name, tasks, examiner, places, seed=config.seed)
            return report.success.value

        loop = TrainingLoop(
            _loop_config(config),
            run,
            parts.runner,
            parts.engine,
            trainer,
            parts.images,
            checkpoint_folder(config.model),
            train_task_factory(config),
            seed=config.seed,
            progress=progress,
            alarmed=alarmed,
            evaluate=held_out if config.evaluation.num_episodes else None,
        )
        try:
            with frozen_gc():
                await loop.run()
        finally:
            await examiner.close()


def _loop_config(config: Config) -> LoopConfig:
    """The loop's settings, with as many places as there are desktops; a run that is blind on purpose is not watched for it."""
    health = (
        config.loop.health.model_copy(update={"canary_every": 0}) if config.agent.noise_images else config.loop.health
    )
    return config.loop.model_copy(update={"health": health, "desktops": train_concurrency(config)})


def version_label(version: int) -> str:
    """Under which the store keeps the evaluation of a version of the run itself, with the settings that the run began with."""
    return f"version-{version}"


RESULT_RELEVANT_SETTINGS = {
    "agent": None,
    "desktop": ("kind", "quiet_ms", "cap_s", "isolation"),
    "engine": ("max_tokens", "history"),
    "evaluation": ("temperature",),
    "suite": ("screen", "max_steps"),
}
"""Settings that bear on what an evaluation finds, by section; None is all of the section."""


def result_label(name: str, before: Mapping[str, Any], config: Config, more: Sequence[str] = ()) -> str:
    """`name` with the settings that bear on what is found and are not those that the run began with (`before`), as key=value,
    after what else is different: results that were made in another way never stand under one name."""
    now, changes = config.model_dump(mode="json"), list(more)
    engines = now["engine"], before.get("engine", {})
    remote = ("kind", "url", "name") if "remote" in (each.get("kind") for each in engines) else ()
    for section, keys in RESULT_RELEVANT_SETTINGS.items():
        for key, value in now[section].items():
            named = keys is None or key in keys or (section == "engine" and key in remote)
            if named and before.get(section, {}).get(key, value) != value:
                changes.append(f"{section}.{key}={value}")
    if before.get("dtype", now["dtype"]) != now["dtype"]:
        changes.append(f"dtype={now['dtype']}")
    return f"{name} ({', '.join(changes)})" if changes else name


def checkpoint_source(config: Config, run: Run, step: int | None = None) -> tuple[str, int]:
    """Source and version of a run's checkpoint (None: the last); the untrained model where the run has trained nothing.

    Raises `ConfigError` when it is not there or damaged.
    """
    found = run.checkpoint(step)
    if found is None and not step and run.checkpoint() is None:
        return config.model, 0
    if found is None or not found.path.is_dir():
        which = "no checkpoint" if step is None else f"no checkpoint of step {step}"
        kept = ", ".join(
            str(int(path.name.removeprefix("step-"))) for path in sorted(run.folder.glob("checkpoints/step-*"))
        )
        raise ConfigError(f"{run.folder} has {which}; steps that are kept: {kept or 'none'}")
    verify(found.path)
    return str(found.path), found.version
