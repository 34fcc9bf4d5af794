"""Assemble the parts of a run in one process: desktops, engine, recorder, agent and trainer. Imports torch.

Used by `recipes.train`, `recipes.evaluate` and `recipes.sft`; `run_training_loop` trains a run.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from deskhand import registry
from deskhand.actions import formats
from deskhand.actions.formats.smart_resize import model_image_size
from deskhand.agents.build import build_agent
from deskhand.agents.desktop_agent import DesktopAgent
from deskhand.algorithms.base import get_algorithm
from deskhand.config.load import Config
from deskhand.config.loop import LoopConfig
from deskhand.config.schema import MACHINE_BACKENDS, AgentConfig, DesktopConfig
from deskhand.desktop.base import DesktopPoolProtocol
from deskhand.desktop.factory import open_pool
from deskhand.desktop.host_capacity import max_desktops
from deskhand.engines.scripted import ScriptedEngine
from deskhand.engines.takeover import TakeoverEngine
from deskhand.errors import ConfigError
from deskhand.models.load import checkpoint_folder, load, load_processors
from deskhand.recipes.engine_factory import EngineBundle, EngineRequest, build_engine
from deskhand.recipes.health import resolve_bounds
from deskhand.recipes.health_rules import Alert
from deskhand.recipes.replay import check_replay
from deskhand.recipes.step_report import ProgressListener, StepReport
from deskhand.recipes.suite import Suite, load_suite, validation_split
from deskhand.recipes.teacher import load_teacher
from deskhand.recipes.training_loop import TrainingLoop
from deskhand.recorder.chat_template import RewrittenHistory
from deskhand.recorder.images import ImageCache
from deskhand.recorder.recorder import Recorder
from deskhand.recorder.renderer import ChatRenderer
from deskhand.rollout.curriculum import Curriculum
from deskhand.rollout.episode import desktop_spec
from deskhand.rollout.eval_loop import evaluate
from deskhand.rollout.live_episode import WatchedPool
from deskhand.rollout.reward import load_reward, with_overlong_penalty
from deskhand.rollout.runner import RecordedRunner, Script
from deskhand.rollout.scheduler import frozen_gc
from deskhand.server.live_app import serve_live
from deskhand.server.live_desktops import LiveDesktops
from deskhand.store.frames import Frames
from deskhand.store.metrics import WandbRun
from deskhand.store.run import Run
from deskhand.tasks.task import Split, Task, seed_for
from deskhand.trainer.checkpoint import verify
from deskhand.trainer.objective_settings import ObjectiveSettings
from deskhand.trainer.policy import Policy
from deskhand.trainer.trainer import Trainer
from deskhand.trainer.weight_sync import attach_engine
from deskhand.types import Engine

SEEDS_PER_RUN = 1_000_000
"""Training seeds per `config.seed`."""
SEEDS_PER_MEMBER = 10_000
"""Distance of the seeds of a group's members, if each has a variant of its own."""
SCRIPT_TOKENS = 1000
"""Token limit of a scripted reply, which is never truncated."""


def _capped(num_episodes: int, desktop: DesktopConfig) -> int:
    """At most one episode per machine."""
    return min(num_episodes, max(1, len(desktop.urls))) if desktop.backend in MACHINE_BACKENDS else num_episodes


def train_concurrency(config: Config) -> int:
    """Return the number of concurrent training episodes."""
    return _capped(config.loop.max_concurrent_episodes, config.desktop)


def eval_concurrency(config: Config) -> int:
    """Return the number of concurrent held-out episodes."""
    return _capped(config.evaluation.max_concurrent_episodes or config.loop.max_concurrent_episodes, config.desktop)


def judging_desktops(desktop: DesktopConfig, size: int) -> int:
    """Return the number of desktops for episodes that are being judged, beyond the `size` of concurrent episodes."""
    if desktop.num_judging is not None:
        return desktop.num_judging
    if desktop.backend != "local":
        return 0
    num_free = max_desktops(desktop.memory_request_mib)[0] - desktop.prewarm - size
    return max(0, min(size // 2, num_free))


def check_plugins(config: Config) -> None:
    """Import what the config names. Raises `ConfigError` with the key, the reference and the import that failed."""
    action_format = formats.get(config.agent.action_format)
    for name in ("prompt", "parse", "emit"):
        if not callable(getattr(action_format, name, None)):
            raise ConfigError(f"agent.action_format: {config.agent.action_format} has no method {name}")
    build_agent(config.agent)
    load_reward(config.reward)
    check_replay(config.loop, ObjectiveSettings.of(config.trainer).algorithm)
    backends: dict[registry.Kind, str] = {"engine": config.engine.backend, "desktop": config.desktop.backend}
    for kind, ref in backends.items():
        if not callable(registry.resolve(kind, ref)):
            raise ConfigError(f"{kind}.backend: {ref} is not a function")


def train_task_factory(suite: Suite, seed: int, loop: LoopConfig | None = None) -> Callable[[int], Task]:
    """Return a function from group number to task: families in turn, each with its own seeds, or as `loop.curriculum`
    says."""
    names, first = suite.train_tasks, seed * SEEDS_PER_RUN
    if loop is not None and loop.curriculum == "frontier":
        share = loop.curriculum_uniform_share
        return Curriculum(names, suite.make, lambda n: seed_for("train", first + n), uniform_share=share, seed=seed)

    def make(number: int) -> Task:
        return suite.make(names[number % len(names)], seed_for("train", first + number // len(names)))

    return make


def member_task_factory(suite: Suite, loop: LoopConfig) -> Callable[[Task, int], Task] | None:
    """Return a function from a group's task and the number of a member to the member's own variant of the family; None
    if all members have the group's task."""
    if loop.group_by == "task":
        return None
    return lambda task, member: suite.make(task.family, task.seed + member * SEEDS_PER_MEMBER)


@asynccontextmanager
async def open_run_pool(
    config: Config, run: Run, size: int, listener: ProgressListener, *, human_only: bool = False
) -> AsyncIterator[WatchedPool]:
    """Open desktops for `size` concurrent episodes, with the screen of the first training task. Leases and quotas are
    stored with the run, and `deskhand view` shows the desktops. `human_only`: a person plays every episode
    (`rollout.live_episode`)."""
    check_plugins(config)
    first = train_task_factory(load_suite(config.suite, config.desktop.backend), config.seed)(0)
    desktops, num_judging = LiveDesktops(), 0 if human_only else judging_desktops(config.desktop, size)
    places = size + num_judging
    opening = open_pool(config.desktop, desktop_spec(first), places, run_dir=run.folder, on_wait=listener.quota_wait)
    async with opening as pool, serve_live(desktops, run.folder):
        yield WatchedPool(pool, desktops, run, human_only=human_only, num_judging=num_judging)


async def engine_of(config: Config, run: Run, checkpoint: str, version: int) -> EngineBundle:
    """Build the engine for a checkpoint with this version."""
    request = EngineRequest(
        config=config.engine,
        checkpoint=checkpoint,
        version=version,
        device=config.device,
        dtype=config.dtype,
        run_dir=run.folder / "engine",
        read_png=run.frames.png,
        lora=config.policy.lora,
        max_images=config.agent.max_images,
        served_checkpoint=config.model,
    )
    return await build_engine(request)


def _with_takeover(engine: Engine, renderer: ChatRenderer) -> TakeoverEngine:
    return TakeoverEngine(engine, renderer.encode_text, renderer.end_id)


@asynccontextmanager
async def open_policy(
    engine: EngineBundle, agent: AgentConfig, pool: DesktopPoolProtocol, frames: Frames
) -> AsyncIterator[RecordedRunner]:
    """Open agent and recorder for an engine; all are closed at the end."""
    async with AsyncExitStack() as stack:
        stack.push_async_callback(engine.engine.close)
        images = ImageCache(engine.image_processor, fetch=frames.pixels)
        served = _with_takeover(engine.engine, engine.renderer)
        recorder = Recorder(engine.renderer, served, images, context_tokens=engine.context_tokens)
        stack.callback(recorder.close)
        player, settings = build_agent(agent, image_size=model_image_size(engine.image_processor))
        runner = RecordedRunner(pool, recorder, player, frames, settings=settings)
        stack.push_async_callback(runner.close)
        yield runner


@asynccontextmanager
async def open_scripted_policy(
    script: Callable[[DesktopAgent], Script] | None,
    agent: AgentConfig,
    pool: DesktopPoolProtocol,
    frames: Frames,
    *,
    model: str,
    history: RewrittenHistory,
) -> AsyncIterator[RecordedRunner]:
    """Open a scripted policy behind the recorder of a model, without loading its weights.

    `script` None: a person plays, on a pool that is `human_only`.
    """
    tokenizer, image_processor = load_processors(model)
    renderer = ChatRenderer(tokenizer, source=model, history=history)
    engine = ScriptedEngine(lambda text: tokenizer.encode(text, add_special_tokens=False), renderer.stop_ids[0])
    recorder = Recorder(renderer, _with_takeover(engine, renderer), ImageCache(image_processor, fetch=frames.pixels))
    scripted = agent.model_copy(update={"temperature": 1.0, "max_new_tokens": SCRIPT_TOKENS})
    speaker = DesktopAgent(scripted, model_image_size=model_image_size(image_processor))
    replies = None if script is None else script(speaker)
    runner = RecordedRunner(pool, recorder, speaker, frames, script=replies, playing=engine.playing)
    try:
        yield runner
    finally:
        await runner.close()
        recorder.close()


async def run_training_loop(
    config: Config,
    run: Run,
    pool: DesktopPoolProtocol,
    on_step: Callable[[StepReport], None],
    on_alert: Callable[[Alert], None] | None = None,
) -> None:
    """Train `run` from its last checkpoint to its last step. `on_alert` is called with alerts between steps."""
    if config.tracking.wandb:
        project, settings = config.tracking.wandb_project, config.model_dump(mode="json")
        run.track(await asyncio.to_thread(WandbRun, run.folder, project, settings))
    suite, evaluation = load_suite(config.suite, config.desktop.backend), config.evaluation
    engine = await engine_of(config, run, config.model, 0)
    async with open_policy(engine, config.agent, pool, run.frames) as runner:
        shared = engine.model if config.engine.share_weights else None
        model = shared or load(config.model, dtype=config.dtype, device=config.device)
        banned, distillation, teacher = engine.renderer.banned_ids, config.trainer.distillation, None
        if distillation is not None:
            teacher = await asyncio.to_thread(
                load_teacher, distillation, model, banned, config.policy, dtype=config.dtype, device=config.device,
                max_tokens=engine.context_tokens, environment=os.environ,
            )  # fmt: skip
        trainer = Trainer(
            Policy(model.model, config.policy, banned, config.trainer.seed),
            config.trainer,
            config.loop.total_steps,
            teacher,
        )
        attach_engine(trainer, engine.engine)
        eval_agent, settings = build_agent(config.eval_agent, image_size=model_image_size(engine.image_processor))
        eval_runner = RecordedRunner(pool, runner.recorder, eval_agent, run.frames, settings=settings)
        eval_runner.reward = load_reward(config.reward)
        buffer_length, factor = config.loop.overlong_buffer_len, config.loop.overlong_penalty_factor
        runner.reward = with_overlong_penalty(eval_runner.reward, config.agent.max_new_tokens, buffer_length, factor)

        split = validation_split(config)

        async def eval_version(version: int) -> float:
            settings = for_split(config, split).model_dump(mode="json")
            name = result_label(version_label(version), run.metadata.get("config", {}), settings)
            tasks, concurrency = suite.tasks_of(split, evaluation.num_episodes), eval_concurrency(config)
            report = await evaluate(run, name, tasks, eval_runner, concurrency, seed=config.seed)
            return report.success_of_started.value

        # With noise images the vision probe always fails.
        no_probe = {"vision_probe_every": 0} if config.agent.noise_images else {}
        health = resolve_bounds(
            config.loop.health, config.engine.backend, config.dtype, get_algorithm(config.trainer.algorithm).ratio_level
        )
        changes = {
            "health": health.model_copy(update=no_probe),
            "max_concurrent_episodes": train_concurrency(config),
        }
        loop = TrainingLoop(
            config.loop.model_copy(update=changes),
            run,
            runner,
            engine.engine,
            trainer,
            runner.recorder.images,
            checkpoint_folder(config.model),
            train_task_factory(suite, config.seed, config.loop),
            member_task=member_task_factory(suite, config.loop),
            seed=config.seed,
            on_step=on_step,
            on_alert=on_alert,
            evaluate=eval_version if evaluation.num_episodes else None,
        )
        try:
            with frozen_gc():
                await loop.run()
        finally:
            await eval_runner.close()


def version_label(version: int) -> str:
    """Name of the evaluation of one of the run's own versions, with its original settings."""
    return f"version-{version}"


def for_split(config: Config, split: Split) -> Config:
    """Return the settings with another split to evaluate on."""
    return config.model_copy(update={"evaluation": config.evaluation.model_copy(update={"split": split})})


RESULT_RELEVANT_SETTINGS = {
    "agent": None,
    "desktop": ("backend", "settle_ms", "settle_timeout_s", "isolation"),
    "engine": ("max_model_len", "rewritten_history"),
    "evaluation": ("temperature", "split"),
    "suite": ("screen_size", "max_episode_steps"),
}
"""Settings that affect evaluation results, by section; None is the whole section."""


def result_label(name: str, before: Mapping[str, Any], now: Mapping[str, Any], more: Sequence[str] = ()) -> str:
    """Return `name` with `more` and the changed settings that affect results, as key=value.

    Results of different settings must never share a name: the store would mix their episodes. `before` are the original
    settings of the run.
    """
    changes = list(more)
    engines = now["engine"], before.get("engine", {})
    endpoint = (
        ("backend", "base_url", "served_model_name") if "openai" in (each.get("backend") for each in engines) else ()
    )
    for section, keys in RESULT_RELEVANT_SETTINGS.items():
        for key, value in now[section].items():
            is_relevant = keys is None or key in keys or (section == "engine" and key in endpoint)
            if is_relevant and before.get(section, {}).get(key, value) != value:
                changes.append(f"{section}.{key}={value}")
    if before.get("dtype", now["dtype"]) != now["dtype"]:
        changes.append(f"dtype={now['dtype']}")
    return f"{name} ({', '.join(changes)})" if changes else name


def checkpoint_source(run: Run, model: str, step: int | None = None) -> tuple[str, int]:
    """Return path and version of a run's checkpoint (None: the last), or the untrained `model` if the run has none.
    Raises `ConfigError` if the checkpoint is missing or damaged."""
    found = run.checkpoint(step)
    if found is None and not step and run.checkpoint() is None:
        return model, 0
    if found is None or not found.path.is_dir():
        which = "no checkpoint" if step is None else f"no checkpoint of step {step}"
        steps = [str(int(path.name.removeprefix("step-"))) for path in sorted(run.folder.glob("checkpoints/step-*"))]
        raise ConfigError(f"{run.folder}: {which}; available steps: {', '.join(steps) or 'none'}")
    verify(found.path)
    return str(found.path), found.version
