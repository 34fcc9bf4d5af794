"""`deskhand sft`: demonstrations in, a checkpoint out. Invariant: what is learned was recorded, and none of what was played on
tasks of ours comes from a held-out one; what was interrupted goes on from its last checkpoint with the same batches.

Demonstrations are successful episodes: the oracle's, played here on training tasks that no training run meets, those of other
runs, or conversations of any agent that `deskhand record` kept. The result is a run whose checkpoints are ordinary Hugging Face
folders, from which `deskhand train --set model=<folder>` starts.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from deskhand.config.load import Config
from deskhand.errors import ConfigError
from deskhand.models.load import checkpoint_folder, load, load_processors
from deskhand.recipes import recorded_data
from deskhand.recipes.assemble import SEEDS_PER_RUN, open_run_pool
from deskhand.recipes.concurrency import train_concurrency
from deskhand.recipes.evaluate import PolicySpec, open_runner, run_evaluation
from deskhand.recipes.progress_listener import ProgressListener
from deskhand.recipes.step_report import SCHEMA_VERSION
from deskhand.recipes.suite import Suite, load_suite, require_oracles
from deskhand.recorder.chat_template import RewrittenHistory
from deskhand.recorder.images import ImageCache
from deskhand.recorder.renderer import ChatRenderer
from deskhand.rollout.run_writer import load_result
from deskhand.store.frames import Frames
from deskhand.store.run import Checkpoint, EpisodeRow, Run
from deskhand.tasks.task import Task, seed_for
from deskhand.trainer.checkpoint import CheckpointManager
from deskhand.trainer.optimizer import torch_threads
from deskhand.trainer.policy import Policy
from deskhand.trainer.supervised import (
    PolicySftLearner,
    Schedule,
    SupervisedBatch,
    SupervisedRow,
    cross_entropy,
    run_sft,
)
from deskhand.trainer.trainer import Trainer
from deskhand.types import PreparedImage

DEMONSTRATIONS = "demonstrations"
ORACLE = "the tasks' oracle"
START = 300_000_000
"""Where in the training split the seeds of demonstrations begin; RL takes its seeds from 0 on, the policy in the box from 1e8."""


@dataclass(frozen=True)
class Demonstration:
    """One episode's rows. `source`: who played it."""

    episode_id: str
    rows: tuple[SupervisedRow, ...]
    source: str
    episode: EpisodeRow | None = None
    """None where it was not played on a task of ours."""


def demonstration_tasks(suite: Suite, count: int, seed: int) -> list[Task]:
    """Families in turn, each with seeds of its own."""
    names, first = suite.train_tasks, START + seed * SEEDS_PER_RUN
    return [suite.make(names[k % len(names)], seed_for("train", first + k // len(names))) for k in range(count)]


async def demonstrate(config: Config, run: Run, listener: ProgressListener) -> None:
    """Let the oracle play what it has not played yet, through agent and recorder."""
    tasks = demonstration_tasks(
        load_suite(config.suite, config.desktop.backend), config.sft.num_demonstrations, config.seed
    )
    require_oracles(tasks)
    if len(run.episodes(DEMONSTRATIONS, "scored")) >= len(tasks):
        return
    listener.status(f"{DEMONSTRATIONS}: the oracle plays")
    size, policy = train_concurrency(config.loop, config.desktop), PolicySpec("script", DEMONSTRATIONS, "oracle")
    async with (
        open_run_pool(config, run, size, listener) as pool,
        open_runner(config, run, pool, policy) as runner,
    ):
        await run_evaluation(run, DEMONSTRATIONS, tasks, runner, size, listener.demonstrations)


def load_demonstrations(run: Run, purpose: str | None = None) -> list[Demonstration]:
    """The successful episodes of a run (of one purpose, or all) on training tasks, in the order of their tasks."""
    rows = sorted(run.episodes(purpose), key=lambda row: (row.seed, row.family, row.member, row.id))
    rows = [row for row in rows if row.split == "train" and (row.value or 0.0) >= 1.0 and run.has_record(row.id)]
    found = (
        Demonstration(
            row.id,
            tuple(map(SupervisedRow.of, load_result(run, row.id).graph.sequences())),
            ORACLE if row.phase == DEMONSTRATIONS else f"the policy in the run {run.folder.name}",
            row,
        )
        for row in rows
    )
    return [lesson for lesson in found if any(any(row.target) for row in lesson.rows)]


def describe_sources(taught: Sequence[Demonstration]) -> list[dict[str, Any]]:
    """What lessons are made of, by who played them; JSON types, kept with every checkpoint for the card of an export."""
    found: list[dict[str, Any]] = []
    for source in sorted({lesson.source for lesson in taught}):
        part = [lesson for lesson in taught if lesson.source == source]
        rows = [lesson.episode for lesson in part if lesson.episode is not None]
        seeds = [row.seed for row in rows]
        tasks = {"tasks": len({row.task_id for row in rows}), "families": sorted({row.family for row in rows})}
        found.append(
            {"source": source, "episodes": len(part), **tasks, "seeds": [min(seeds), max(seeds)] if seeds else []}
        )
    return found


def demonstrations_from_runs(
    folders: Sequence[Path], model: str, history: RewrittenHistory, frames: Frames, listener: ProgressListener
) -> list[Demonstration]:
    """Lessons of other runs and of what `deskhand record` kept, for a model; their screens are copied to `frames`.

    Raises `ConfigError` for a folder without a run or without a success, and when another tokenizer wrote its ids.
    """
    own, found = _tokenizer_sha256(checkpoint_folder(model)), list[Demonstration]()
    for folder in folders:
        if recorded_data.is_recording(folder):
            found += demonstrations_from_recordings(folder, model, history, frames, listener)
            continue
        with Run.open(folder, read_only=True) as other:
            theirs = other.metadata.get("config", {}).get("model", "")
            first = other.folder / "checkpoints" / "step-000000"
            if _tokenizer_sha256(first if first.is_dir() else checkpoint_folder(theirs)) != own:
                raise ConfigError(
                    f"{folder} was recorded with the tokenizer of {theirs}, not that of {model}; record it anew"
                )
            part = load_demonstrations(other)
            if not part:
                raise ConfigError(f"{folder} holds no successful episode on a training task; give other runs")
            for name in {span.sha256 for lesson in part for row in lesson.rows for span in row.spans}:
                frames.put(name, other.frames.rgb(name))
            found += part
    return found


def demonstrations_from_recordings(
    folder: Path, model: str, history: RewrittenHistory, frames: Frames, listener: ProgressListener
) -> list[Demonstration]:
    """Lessons of the conversations that `deskhand record` kept, whatever model said them."""
    tokenizer, processor = load_processors(model)
    renderer = ChatRenderer(tokenizer, source=model, history=history)
    kept = recorded_data.read(folder, renderer, ImageCache(processor, fetch=frames.png), frames)
    left = "".join(f"; {count} replies skipped: {reason}" for reason, count in kept.skipped.most_common())
    poor = f", {kept.num_low_reward} of them with too low a reward" if kept.num_low_reward else ""
    listener.log(f"{folder.name}: {len(kept.graphs)} conversations of {kept.sessions} sessions{poor}{left}")
    source = f"what deskhand record kept in {folder.name}"
    return [
        Demonstration(name, tuple(map(SupervisedRow.of, graph.sequences())), source)
        for name, graph in kept.graphs.items()
    ]


def _tokenizer_sha256(folder: Path) -> str:
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise ConfigError(f"{file}: not there; name a complete checkpoint folder")
    return hashlib.sha256(file.read_bytes()).hexdigest()


def batches(
    taught: Sequence[Demonstration], images: ImageCache, size: int, seed: int, start: int
) -> Iterator[SupervisedBatch]:
    """Endless batches of `size` episodes from update `start` on: each pass over the lessons is in an order of its own."""
    size = min(size, len(taught))
    per_pass, step = len(taught) // size, start
    while True:
        number, place = divmod(step, per_pass)
        order = np.random.default_rng([seed, number]).permutation(len(taught))
        rows = [row for index in order[place * size : (place + 1) * size] for row in taught[index].rows]
        yield rows, images_in_rows(rows, images)
        step += 1


def images_in_rows(rows: Sequence[SupervisedRow], images: ImageCache) -> dict[str, PreparedImage]:
    """The screenshots of some rows, prepared."""
    return {sha256: images[sha256] for sha256 in dict.fromkeys(span.sha256 for row in rows for span in row.spans)}


def split(found: Sequence[Demonstration], share: float) -> tuple[list[Demonstration], list[Demonstration]]:
    """(taught, held out), chosen by the hash of the episode's id, so that it is the same after a resume."""
    held = [
        lesson
        for lesson in found
        if int(hashlib.sha256(lesson.episode_id.encode()).hexdigest()[:8], 16) < share * 2**32
    ]
    return [lesson for lesson in found if lesson not in held], held


def finetune(config: Config, run: Run, found: Sequence[Demonstration], listener: ProgressListener) -> Path:
    """Fit the config's model to lessons, from the run's last checkpoint if it has one; the folder of the last checkpoint."""
    settings = config.sft
    taught, held = split(found, settings.val_fraction)
    if not taught:
        raise ConfigError(
            f"sft: {len(found)} successful episodes leave none to learn from; raise sft.num_demonstrations"
        )
    loaded = load(config.model, dtype=config.dtype, device=config.device)
    images = ImageCache(loaded.image_processor, fetch=run.frames.png)
    banned = ChatRenderer(loaded.tokenizer, source=config.model).banned_ids
    policy = Policy(loaded.model, config.policy, banned, config.trainer.seed)
    trainer, checkpoints = Trainer(policy, config.trainer.supervised), CheckpointManager(run.folder / "checkpoints")
    assets, pending = checkpoint_folder(config.model), list[dict[str, object]]()

    def save() -> None:
        path = checkpoints.save(trainer, assets, {"taught": describe_sources(taught)})
        run.commit(
            counts=run.episode_counts(),
            checkpoint=Checkpoint(trainer.steps, trainer.steps, path, time.time()),
            metrics=pending,
        )
        pending.clear()

    def report(step: int, loss: float, seconds: float) -> None:
        entry: dict[str, object] = {"schema_version": SCHEMA_VERSION, "step": step, "train/loss": loss}
        entry |= {"train/grad_norm": learner.norm, "time/elapsed": seconds}
        text = f"update {step}/{settings.total_steps}  loss {loss:.4f}"
        if held:
            entry["eval/loss"] = validation_loss(policy, held, images, settings.episodes_per_batch)
            text += f"  on held-out episodes {entry['eval/loss']:.4f}"
        pending.append(entry)
        listener.log(text)

    def keep(step: int) -> None:
        trainer.steps = trainer.updates = step
        if step % settings.save_every == 0 or step == settings.total_steps:
            save()

    learner = PolicySftLearner(policy, trainer.optimizer, settings.learning_rate, config.trainer.max_grad_norm)
    last = run.checkpoint()
    if last is None:
        save()
    else:
        checkpoints.load(trainer, last.step)
    listener.log(f"{len(taught)} episodes to learn from, {len(held)} held out")
    schedule = Schedule(settings.total_steps, warmup=settings.warmup_steps, decay=settings.decay_fraction)
    source = batches(taught, images, settings.episodes_per_batch, config.trainer.seed, trainer.steps)
    with torch_threads(config.trainer.torch_threads):
        run_sft(learner, source, schedule, start=trainer.steps, report=report, every=settings.log_every, keep=keep)
    return checkpoints.path(trainer.steps)


def validation_loss(policy: Policy, held: Sequence[Demonstration], images: ImageCache, size: int) -> float:
    """Mean nats per target token of some lessons, `size` episodes at a time: no more is held than when they are learned."""
    total, count = 0.0, 0
    for start in range(0, len(held), size):
        rows = [row for lesson in held[start : start + size] for row in lesson.rows]
        targets = sum(sum(row.target) for row in rows)
        total += targets * cross_entropy(policy, rows, images_in_rows(rows, images))
        count += targets
    return total / max(1, count)


def run_sft_recipe(config: Config, run: Run, folders: Sequence[Path], listener: ProgressListener) -> Path:
    """The whole command; returns the folder of the last checkpoint."""
    if folders:
        found = demonstrations_from_runs(folders, config.model, config.engine.rewritten_history, run.frames, listener)
    else:
        asyncio.run(demonstrate(config, run, listener))
        found = load_demonstrations(run, DEMONSTRATIONS)
    return finetune(config, run, found, listener)
