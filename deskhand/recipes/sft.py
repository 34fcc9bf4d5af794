"""Supervised warm start (`deskhand sft`): from demonstrations to a checkpoint. Entry point: `run_sft_recipe`.

Demonstrations are successful episodes: the oracle's on training tasks that no training run uses, those of other runs,
or conversations from `deskhand record`. None comes from a held-out task. Screenshots with questions about their
elements (`recipes.grounding`) can be mixed in. `deskhand train --set model=FOLDER` starts from a checkpoint. An
interrupted warm start resumes from its last checkpoint with the same batches.
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

from deskhand.agents.desktop_agent import DesktopAgent
from deskhand.config.load import Config
from deskhand.errors import ConfigError
from deskhand.models.hub import SMALL_FILES
from deskhand.models.load import checkpoint_folder, load, load_processors
from deskhand.recipes import grounding, recorded_data
from deskhand.recipes.assemble import SEEDS_PER_RUN, open_run_pool, train_concurrency
from deskhand.recipes.download import fetch_weights
from deskhand.recipes.evaluate import PolicySpec, open_runner, run_evaluation
from deskhand.recipes.step_report import SCHEMA_VERSION, ProgressListener
from deskhand.recipes.suite import Suite, load_suite, require_oracles
from deskhand.recorder.chat_template import RewrittenHistory
from deskhand.recorder.images import ImageCache
from deskhand.recorder.renderer import ChatRenderer
from deskhand.rollout.run_writer import load_result
from deskhand.store.frames import Frames
from deskhand.store.run import DEMONSTRATIONS, Checkpoint, EpisodeRow, Run
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

ORACLE = "the tasks' oracle"
FIRST_SEED = 300_000_000
"""First seed of demonstrations in the training split; RL uses seeds from 0, the bundled policy from 1e8."""


@dataclass(frozen=True)
class Demonstration:
    """Training rows of one episode. `source` describes who played it."""

    episode_id: str
    rows: tuple[SupervisedRow, ...]
    source: str
    episode: EpisodeRow | None = None
    """Stored episode; None for recordings of other agents."""


def demonstration_tasks(suite: Suite, count: int, seed: int) -> list[Task]:
    """Return tasks of the training families in turn, each with its own seeds."""
    names, first = suite.train_tasks, FIRST_SEED + seed * SEEDS_PER_RUN
    return [suite.make(names[k % len(names)], seed_for("train", first + k // len(names))) for k in range(count)]


async def demonstrate(config: Config, run: Run, listener: ProgressListener) -> None:
    """Play the remaining oracle demonstrations, through agent and recorder."""
    tasks = demonstration_tasks(
        load_suite(config.suite, config.desktop.backend), config.sft.num_demonstrations, config.seed
    )
    require_oracles(tasks)
    tasks = [grounding.on_grid(task, config.sft.coordinate_grid) for task in tasks]
    if len(run.episodes(DEMONSTRATIONS, "scored")) >= len(tasks):
        return
    listener.status(f"{DEMONSTRATIONS}: the oracle plays")
    size, policy = train_concurrency(config), PolicySpec("script", DEMONSTRATIONS, "oracle")
    async with open_run_pool(config, run, size, listener) as pool, open_runner(config, run, pool, policy) as runner:
        await run_evaluation(run, DEMONSTRATIONS, tasks, runner, size, listener.demonstrations)


def first_screen_seed(config: Config) -> int:
    """Return the first training seed of a run's screens."""
    return grounding.FIRST_SEED + config.seed * SEEDS_PER_RUN


async def label_screens(config: Config, run: Run, listener: ProgressListener) -> list[grounding.StoredScreen]:
    """Return the run's screens, collected on desktops the first time. Raises `ConfigError` if no family has questions
    about its screens."""
    path, count = run.folder / "screens.jsonl", config.sft.num_screens
    if count and not path.exists():
        suite, size = load_suite(config.suite, config.desktop.backend), train_concurrency(config)
        plan = grounding.plan_screens(suite, count, first_screen_seed(config))
        if not plan:
            raise ConfigError("sft.num_screens: no training family has questions about its screens; set it to 0")
        listener.status(f"screens: {len(plan)} starts, {plan[0][1]} arrangements each")
        async with open_run_pool(config, run, size, listener) as pool:
            grounding.write_screens(path, await grounding.collect_screens(pool, plan, run.frames, size))
    return grounding.read_screens(path) if count else []


def load_demonstrations(run: Run, phase: str | None = None, min_score: float = 1.0) -> list[Demonstration]:
    """Load the episodes of a run (of one phase, or all) on training tasks with at least this score, ordered by task."""
    rows = sorted(run.episodes(phase), key=lambda row: (row.seed, row.family, row.member, row.id))
    rows = [row for row in rows if row.split == "train" and (row.value or 0.0) >= min_score and run.has_record(row.id)]
    found = (_demonstration(run, row) for row in rows)
    return [demo for demo in found if any(any(row.target) for row in demo.rows)]


def _demonstration(run: Run, row: EpisodeRow) -> Demonstration:
    graph = load_result(run, row.id).graph
    if "human" in graph.untrained.values():
        source = f"a person in the run {run.folder.name}"
    else:
        source = ORACLE if row.phase == DEMONSTRATIONS else f"the policy in the run {run.folder.name}"
    return Demonstration(row.id, tuple(map(SupervisedRow.of, graph.sequences(imitation=True))), source, row)


def describe_sources(demonstrations: Sequence[Demonstration]) -> list[dict[str, Any]]:
    """Summarize demonstrations by source, as JSON that checkpoints store for the model card."""
    found: list[dict[str, Any]] = []
    for source in sorted({demo.source for demo in demonstrations}):
        part = [demo for demo in demonstrations if demo.source == source]
        rows = [demo.episode for demo in part if demo.episode is not None]
        seeds = [row.seed for row in rows]
        tasks = {"tasks": len({row.task_id for row in rows}), "families": sorted({row.family for row in rows})}
        found.append(
            {"source": source, "episodes": len(part), **tasks, "seeds": [min(seeds), max(seeds)] if seeds else []}
        )
    return found


def demonstrations_from_runs(
    folders: Sequence[Path],
    model: str,
    history: RewrittenHistory,
    frames: Frames,
    listener: ProgressListener,
    min_score: float = 1.0,
) -> list[Demonstration]:
    """Load demonstrations from other runs and recordings, and copy their screenshots to `frames`. Raises `ConfigError`
    if a folder contains no run or no success, or its tokenizer is not the model's."""
    own, found = _tokenizer_sha256(checkpoint_folder(model, SMALL_FILES)), list[Demonstration]()
    for folder in folders:
        if recorded_data.is_recording(folder):
            found += demonstrations_from_recordings(folder, model, history, frames, listener)
            continue
        with Run.open(folder, read_only=True) as other:
            theirs = other.metadata.get("config", {}).get("model", "")
            first = other.folder / "checkpoints" / "step-000000"
            if _tokenizer_sha256(first if first.is_dir() else checkpoint_folder(theirs, SMALL_FILES)) != own:
                raise ConfigError(
                    f"{folder}: recorded with the tokenizer of {theirs}, not that of {model}; record it again"
                )
            part = load_demonstrations(other, min_score=min_score)
            if not part:
                raise ConfigError(
                    f"{folder}: contains no episode on a training task with a score of {min_score:g} (sft.min_score); "
                    "use other runs"
                )
            for name in {span.sha256 for demo in part for row in demo.rows for span in row.spans}:
                frames.put(name, other.frames.rgb(name))
            found += part
    return found


def demonstrations_from_recordings(
    folder: Path, model: str, history: RewrittenHistory, frames: Frames, listener: ProgressListener
) -> list[Demonstration]:
    """Load demonstrations from the output of `deskhand record`."""
    tokenizer, processor = load_processors(model)
    renderer = ChatRenderer(tokenizer, source=model, history=history)
    data = recorded_data.read(folder, renderer, ImageCache(processor, fetch=frames.pixels), frames)
    skipped = "".join(f"; {count} replies skipped: {reason}" for reason, count in data.skipped.most_common())
    low = f", {data.num_low_reward} of them with a low reward" if data.num_low_reward else ""
    listener.log(f"{folder.name}: {len(data.graphs)} conversations of {data.sessions} sessions{low}{skipped}")
    source = f"recordings in {folder.name}"
    return [
        Demonstration(name, tuple(map(SupervisedRow.of, graph.sequences(imitation=True))), source)
        for name, graph in data.graphs.items()
    ]


def _tokenizer_sha256(folder: Path) -> str:
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise ConfigError(f"{file}: does not exist; use a complete checkpoint folder")
    return hashlib.sha256(file.read_bytes()).hexdigest()


def batches(
    data: Sequence[Sequence[SupervisedRow]], images: ImageCache, size: int, seed: int, start: int
) -> Iterator[SupervisedBatch]:
    """Iterate over batches of the rows of `size` episodes or screens without end, from update `start`; each epoch has
    its own order."""
    size = min(size, len(data))
    per_epoch, step = len(data) // size, start
    while True:
        epoch, batch = divmod(step, per_epoch)
        order = np.random.default_rng([seed, epoch]).permutation(len(data))
        rows = [row for index in order[batch * size : (batch + 1) * size] for row in data[index]]
        yield rows, images_in_rows(rows, images)
        step += 1


def images_in_rows(rows: Sequence[SupervisedRow], images: ImageCache) -> dict[str, PreparedImage]:
    """Return the prepared screenshots of rows."""
    return {sha256: images[sha256] for sha256 in dict.fromkeys(span.sha256 for row in rows for span in row.spans)}


def split(found: Sequence[Demonstration], fraction: float) -> tuple[list[Demonstration], list[Demonstration]]:
    """Return (training, validation), chosen by the hash of the episode ids, so that a resumed run has the same
    split."""
    validation = [
        demo for demo in found if int(hashlib.sha256(demo.episode_id.encode()).hexdigest()[:8], 16) < fraction * 2**32
    ]
    return [demo for demo in found if demo not in validation], validation


def finetune(
    config: Config,
    run: Run,
    found: Sequence[Demonstration],
    listener: ProgressListener,
    screens: Sequence[grounding.StoredScreen] = (),
) -> Path:
    """Fine-tune the config's model, from the run's last checkpoint if there is one; returns the last checkpoint."""
    settings = config.sft
    training, validation = split(found, settings.val_fraction)
    if not training:
        raise ConfigError(
            f"sft.num_demonstrations: no training episodes among {len(found)} successful ones; increase it"
        )
    loaded = load(config.model, dtype=config.dtype, device=config.device)
    images = ImageCache(loaded.image_processor, fetch=run.frames.pixels)
    renderer, agent = ChatRenderer(loaded.tokenizer, source=config.model), DesktopAgent(config.agent)
    asked = {"max_questions": settings.questions_per_screen, "grid": settings.coordinate_grid, "seed": config.seed}
    data = [demo.rows for demo in training]
    data += [grounding.screen_rows(screen, agent, renderer, images, **asked) for screen in screens]
    sources: dict[str, object] = {"demonstrations": describe_sources(training)}
    if screens:
        families = sorted({screen.family for screen in screens})
        sources["screens"] = {"count": len(screens), "families": families, "first_seed": first_screen_seed(config)}
    policy = Policy(loaded.model, config.policy, renderer.banned_ids, config.trainer.seed)
    trainer, checkpoints = Trainer(policy, config.trainer.supervised), CheckpointManager(run.folder / "checkpoints")
    assets, pending = checkpoint_folder(config.model), list[dict[str, object]]()

    def save() -> None:
        path = checkpoints.save(trainer, assets, sources)
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
        if validation:
            entry["eval/loss"] = validation_loss(policy, validation, images, settings.episodes_per_batch)
            text += f"  validation {entry['eval/loss']:.4f}"
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
    counts = f"{len(training)} training episodes, {len(validation)} validation episodes"
    listener.log(f"{counts}, {len(screens)} screens" if screens else counts)
    schedule = Schedule(settings.total_steps, warmup=settings.warmup_steps, decay=settings.decay_fraction)
    source = batches(data, images, settings.episodes_per_batch, config.trainer.seed, trainer.steps)
    with torch_threads(config.trainer.torch_threads):
        run_sft(learner, source, schedule, start=trainer.steps, report=report, every=settings.log_every, keep=keep)
    return checkpoints.path(trainer.steps)


def validation_loss(policy: Policy, demonstrations: Sequence[Demonstration], images: ImageCache, size: int) -> float:
    """Return the mean loss per target token in nats, in batches of `size` episodes as in training."""
    total, count = 0.0, 0
    for start in range(0, len(demonstrations), size):
        rows = [row for demo in demonstrations[start : start + size] for row in demo.rows]
        targets = sum(sum(row.target) for row in rows)
        total += targets * cross_entropy(policy, rows, images_in_rows(rows, images))
        count += targets
    return total / max(1, count)


def run_sft_recipe(config: Config, run: Run, folders: Sequence[Path], listener: ProgressListener) -> Path:
    """Collect screens and demonstrations and fine-tune; returns the last checkpoint."""
    screens = asyncio.run(label_screens(config, run, listener))
    if folders:
        history, least = config.engine.rewritten_history, config.sft.min_score
        found = demonstrations_from_runs(folders, config.model, history, run.frames, listener, least)
    else:
        asyncio.run(demonstrate(config, run, listener))
        found = load_demonstrations(run, DEMONSTRATIONS)
    asyncio.run(fetch_weights(config, config.model, listener, trains=True))
    return finetune(config, run, found, listener, screens)
