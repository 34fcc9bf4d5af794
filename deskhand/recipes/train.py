"""The demo and `deskhand train`: train, then compare held-out success before and after. Invariant: a run is never overwritten, and
what was interrupted goes on from its last step.

Training comes first, so that the first update is early; the version before training is evaluated from its stored weights.
"""

from __future__ import annotations

import asyncio
import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from deskhand.config.load import Config, config_of_run
from deskhand.desktop.base import DesktopPoolProtocol
from deskhand.desktop.factory import LEASE_DB
from deskhand.desktop.remote import baselines, quota
from deskhand.errors import ConfigError
from deskhand.models.load import check_checkpoint
from deskhand.recipes.assemble import open_run_pool, run_training_loop
from deskhand.recipes.concurrency import eval_concurrency, machine_notices, train_concurrency
from deskhand.recipes.evaluate import evaluate_policy, resolve_policy
from deskhand.recipes.progress_listener import ProgressListener
from deskhand.recipes.step_report import StepReport
from deskhand.recipes.suite import load_suite
from deskhand.rollout.eval_loop import EvalReport
from deskhand.store.run import Run
from deskhand.trainer.checkpoint import CheckpointManager

WATCH_S = 2.0
NAMED = 12
"""Families that a run's title names one by one."""
CRASH_LEFTOVERS = ("checkpoints", "lock", "run.sqlite.partial", "run.sqlite.partial-journal")
LEASE_FILES = tuple(f"{LEASE_DB}{end}" for end in ("", "-wal", "-shm", ".lock"))


@dataclass(frozen=True)
class TrainingSummary:
    """What a run came to; `before` and `after` are None where evaluation is switched off."""

    steps: int
    before: EvalReport | None
    after: EvalReport | None


def create_run(
    config: Config, folder: Path, command: str, more: Mapping[str, Any] | None = None, *, needs_model: bool = True
) -> Run:
    """A new run; `more` is kept with what it is about. `needs_model`: it is of the config's model, and not of other policies alone.

    Raises `ConfigError` when the folder holds one or anything else, or the model is not there.
    """
    if foreign := _foreign(folder):
        raise ConfigError(f"{folder} holds no run, but other files ({foreign}); name a new or empty folder")
    suite = load_suite(config.suite, config.desktop.backend)
    named = ", ".join(suite.train_tasks) if len(suite.train_tasks) <= NAMED else f"{len(suite.train_tasks)} families"
    if needs_model:
        check_checkpoint(config.model)
    if not suite.is_parametric:
        print(suite.summary)
    for line in machine_notices(config.evaluation, config.loop, config.desktop):
        print(line)
    model = Path(config.model)
    name = f"{model.parent.parent.name} {model.name}" if model.parent.name == "checkpoints" else model.name
    policy = ("The policy in the box" if config.model == "tiny" else name) if needs_model else "Policies"
    about = {
        "title": f"{'Warm start: ' if 'sft' in (more or {}) else ''}{policy} on {named}",
        "config": config.model_dump(mode="json"),
        "facts": {
            "command": command,
            **({"model": config.model} if needs_model else {}),
            "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
            "versions": ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "transformers")),
            "seed": config.seed,
            "started": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        },
        **(more or {}),
    }
    return Run.create(folder, about)


def _foreign(folder: Path) -> str:
    """What a folder without a run holds that no start which was killed can have left there; a name, or nothing."""
    if not folder.is_dir() or (folder / "run.sqlite").exists():
        return ""
    return next((path.name for path in sorted(folder.iterdir()) if path.name not in CRASH_LEFTOVERS), "")


def discard_if_empty(run: Run) -> bool:
    """Close and remove a run in which nothing was played and nothing was saved; returns whether it was."""
    if run.episodes() or run.checkpoint() is not None:
        return False
    run.close()
    for name in (
        "run.sqlite",
        "run.sqlite-wal",
        "run.sqlite-shm",
        "lock",
        "log.jsonl",
        "metrics.jsonl",
        *LEASE_FILES,
        baselines.FILE,
        quota.FILE,
    ):
        (run.folder / name).unlink(missing_ok=True)
    for folder in (run.folder / "checkpoints", run.folder / "frames", run.folder):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    return True


def archive_run(folder: Path) -> Path | None:
    """Move a run out of the way, to the first free `<folder>-N`; None when there is none there."""
    if not (folder / "run.sqlite").exists():
        return None
    number = 1
    while (target := folder.with_name(f"{folder.name}-{number}")).exists():
        number += 1
    Run.open(folder).close()  # fails when another process uses it
    folder.rename(target)
    return target


def progress_of(folder: Path) -> tuple[int, int] | Literal["none"]:
    """(steps taken, steps in all) of the run in `folder`, or "none"."""
    if not (folder / "run.sqlite").exists():
        return "none"
    with Run.open(folder, read_only=True) as run:
        last = run.checkpoint()
        return (last.step if last else 0), config_of_run(run.metadata, folder).loop.total_steps


async def run_training(config: Config, run: Run, listener: ProgressListener, began: float) -> TrainingSummary:
    """Train what is left, then evaluate what is left.

    `began`: `time.monotonic()` at the start of the command, for the time of the first update.
    """
    first_update = True
    raised: set[str] = set()

    def progress(step: StepReport) -> None:
        nonlocal first_update
        listener.step(step)
        for alarm in step.alarms:
            if alarm.metric not in raised:
                listener.log(f"alarm at step {step.step}: {alarm.line()}")
        raised.clear()
        raised.update(alarm.metric for alarm in step.alarms)
        if first_update:
            listener.log(f"first update {time.monotonic() - began:.0f} s after the start")
            first_update = False

    last = run.checkpoint()
    unfinished = last is None or last.step < config.loop.total_steps
    if config.training_error and unfinished:
        raise ConfigError(config.training_error)
    listener.status("starting desktops and loading the policy")
    evaluating = eval_concurrency(config.evaluation, config.loop, config.desktop)
    size = max(train_concurrency(config.loop, config.desktop), evaluating)
    async with open_run_pool(config, run, size, listener) as pool:
        before, after = None, None
        if unfinished:
            await _train(config, run, pool, progress, listener)
            last = run.checkpoint()
        if config.evaluation.num_episodes and last is not None:
            if last.step:
                after = await evaluate_step(config, run, pool, last.step, listener)
            else:
                listener.log("no step was taken; only the version before training is evaluated")
            before = await evaluate_step(config, run, pool, 0, listener)
    _say_best(CheckpointManager(run.folder / "checkpoints"), ((0, before), (last.step if last else 0, after)), listener)
    return TrainingSummary(last.step if last else 0, before, after)


def _say_best(
    checkpoints: CheckpointManager, found: Iterable[tuple[int, EvalReport | None]], listener: ProgressListener
) -> None:
    """Rate what was evaluated before and after training, (step, report) each, like what was evaluated in between, and say which
    checkpoint is the best."""
    for step, report in found:
        if report is not None:
            checkpoints.record_eval(step, report.success.value)
    best = checkpoints.best()
    if best is not None:
        listener.log(f"best held-out success {100 * best.success:.1f} % at step {best.step}, which is kept")


async def _train(
    config: Config,
    run: Run,
    pool: DesktopPoolProtocol,
    progress: Callable[[StepReport], None],
    listener: ProgressListener,
) -> None:
    """Train up to the last step or to the end of the time."""
    limit = asyncio.timeout(60 * config.max_minutes if config.max_minutes else None)
    watching = asyncio.create_task(_watch(run, listener))
    try:
        async with limit:
            await run_training_loop(config, run, pool, progress, lambda alarm: listener.log(f"alarm: {alarm.line()}"))
    except TimeoutError:
        if not limit.expired():
            raise
        listener.log(f"training ended after {config.max_minutes:g} minutes, as the settings say")
    finally:
        watching.cancel()


async def _watch(run: Run, listener: ProgressListener) -> None:
    """Say from time to time how far the episodes are: before the first step there is nothing else to see."""
    while True:
        await asyncio.sleep(WATCH_S)
        books = await asyncio.to_thread(run.episode_counts)
        if books:
            ended = books["started"] - books["in_flight"]
            lost = sum(books["errored"].values())
            listener.episodes(ended, books["trained"], books["zero_variance"], lost)


async def evaluate_step(
    config: Config, run: Run, pool: DesktopPoolProtocol, step: int | None, listener: ProgressListener
) -> EvalReport:
    """Held-out success of a step (None: the last), shown as it goes."""
    return await evaluate_policy(config, run, pool, resolve_policy(config, run, None, step), 1, listener)
