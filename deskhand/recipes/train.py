"""Create runs, train them, and compare success before and after. Used by `deskhand train` and `deskhand demo`.

Start with `create_run` and `run_training`. Training comes first, so that the first update is early; the initial version
is evaluated afterwards from its stored weights.
"""

from __future__ import annotations

import asyncio
import os
import platform
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Any

from deskhand.config.load import AGENT_SET, Config, config_of_run
from deskhand.config.schema import MACHINE_BACKENDS
from deskhand.desktop.base import DesktopPoolProtocol
from deskhand.desktop.factory import LEASE_DB
from deskhand.desktop.remote.quota_file import QUOTA_FILE
from deskhand.desktop.remote.waa_desktop import BASELINES_FILE
from deskhand.errors import ConfigError
from deskhand.models.load import check_checkpoint, check_device
from deskhand.recipes.assemble import (
    check_plugins,
    eval_concurrency,
    for_split,
    open_run_pool,
    run_training_loop,
    train_concurrency,
)
from deskhand.recipes.download import fetch_weights
from deskhand.recipes.evaluate import evaluate_policy, resolve_policy
from deskhand.recipes.health import new_alerts
from deskhand.recipes.health_rules import Alert
from deskhand.recipes.process_memory import limit_arenas
from deskhand.recipes.step_report import ProgressListener, StepReport
from deskhand.recipes.suite import load_suite, validation_split
from deskhand.rollout.eval_loop import EvalReport
from deskhand.server.live_app import LIVE_FILE
from deskhand.store.run import Run
from deskhand.trainer.checkpoint import CheckpointManager

WATCH_INTERVAL_S = 2.0
MAX_TITLE_FAMILIES = 12
"""Maximum number of families listed in a run's title."""
CRASH_LEFTOVERS = ("checkpoints", "lock", "run.sqlite.partial", "run.sqlite.partial-journal")
LIVE_FILES = (LIVE_FILE, str(Path(LIVE_FILE).with_suffix(".partial")))
LEASE_FILES = tuple(f"{LEASE_DB}{end}" for end in ("", "-wal", "-shm", ".lock"))


@dataclass(frozen=True)
class TrainingSummary:
    """Result of a run; `before` and `after` are None if evaluation is disabled."""

    steps: int
    before: EvalReport | None
    after: EvalReport | None


def create_run(
    config: Config, folder: Path, command: str, more: Mapping[str, Any] | None = None, *, needs_model: bool = True
) -> Run:
    """Create a run in a new or empty directory.

    Args:
        command: Command that created it, for the report.
        more: Further metadata.
        needs_model: Whether the run uses the config's model, and not only other policies. Weights of a hub model are
            not downloaded here.

    Raises:
        ConfigError: The directory is not empty, or the device or the model does not exist.
    """
    if foreign := _foreign_file(folder):
        raise ConfigError(f"{folder}: contains other files ({foreign}); use a new or empty directory")
    check_plugins(config)
    suite = load_suite(config.suite, config.desktop.backend)
    families = (
        ", ".join(suite.train_tasks)
        if len(suite.train_tasks) <= MAX_TITLE_FAMILIES
        else f"{len(suite.train_tasks)} families"
    )
    if needs_model:
        if config.engine.backend == "hf":
            check_device(config.device)
        check_checkpoint(config.model, download=False)
    if not suite.is_parametric:
        print(suite.summary)
    for line in machine_notices(config):
        print(line)
    model = Path(config.model)
    name = f"{model.parent.parent.name} {model.name}" if model.parent.name == "checkpoints" else model.name
    policy = ("The bundled policy" if config.model == "tiny" else name) if needs_model else "Policies"
    metadata = {
        "title": f"{'Warm start: ' if 'sft' in (more or {}) else ''}{policy} on {families}",
        "config": config.model_dump(mode="json"),
        AGENT_SET: sorted(config.agent.model_fields_set),
        "facts": {
            "command": command,
            **({"model": config.model} if needs_model else {}),
            "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
            "versions": ", ".join(f"{name} {package_version(name)}" for name in ("torch", "transformers")),
            "seed": config.seed,
            "started": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        },
        **({"scrub": config.tracking.scrubbed} if config.tracking.scrub else {}),
        **(more or {}),
    }
    return Run.create(folder, metadata)


def machine_notices(config: Config) -> Iterator[str]:
    """Lines to print before episodes run on machines: concurrency, and whether the machines are reset."""
    desktop, num_evals = config.desktop, config.evaluation.max_concurrent_episodes or 0
    if desktop.backend not in MACHINE_BACKENDS:
        return
    count, requested = len(desktop.urls), max(config.loop.max_concurrent_episodes, num_evals)
    capped = f"; episodes are limited to {count} at a time, max_concurrent_episodes is {requested}"
    yield f"machines: {count}{capped if requested > count else ''}"
    if desktop.skip_reset and desktop.backend == "osworld":
        yield (
            "machines: they are not reset (desktop.skip_reset), so changes of an episode remain; set "
            "desktop.reset_command to reset them"
        )


def _foreign_file(folder: Path) -> str:
    """Name of a file in a directory without a run that no crashed start can have left there; or empty."""
    if not folder.is_dir() or (folder / "run.sqlite").exists():
        return ""
    return next((path.name for path in sorted(folder.iterdir()) if path.name not in CRASH_LEFTOVERS), "")


def discard_if_empty(run: Run) -> bool:
    """Close and remove a run without episodes and checkpoints; returns whether it was removed."""
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
        *LIVE_FILES,
        BASELINES_FILE,
        QUOTA_FILE,
    ):
        (run.folder / name).unlink(missing_ok=True)
    for folder in (run.folder / "checkpoints", run.folder / "frames", run.folder):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    return True


def archive_run(folder: Path) -> Path | None:
    """Rename an existing run to the first free `<folder>-N`; returns its new path, or None if there is no run."""
    if not (folder / "run.sqlite").exists():
        return None
    number = 1
    while (target := folder.with_name(f"{folder.name}-{number}")).exists():
        number += 1
    Run.open(folder).close()  # raises if another process uses it
    folder.rename(target)
    return target


def progress_of(folder: Path) -> tuple[int, int] | None:
    """Return (finished steps, total steps) of the run in `folder`; None if there is none."""
    if not (folder / "run.sqlite").exists():
        return None
    with Run.open(folder, read_only=True) as run:
        last = run.checkpoint()
        return (last.step if last else 0), config_of_run(run.metadata, folder).loop.total_steps


async def run_training(config: Config, run: Run, listener: ProgressListener, started_at: float) -> TrainingSummary:
    """Train the remaining steps, then evaluate the first and the last version.

    `started_at` is `time.monotonic()` at the start of the command, for the time until the first update.
    """
    first_update = True
    last_alerts: Sequence[Alert] = ()

    def progress(step: StepReport) -> None:
        nonlocal first_update, last_alerts
        listener.step(step)
        for alert in new_alerts(step.alerts, last_alerts):
            listener.log(f"alert at step {step.step}: {alert.line()}")
        last_alerts = step.alerts
        if first_update:
            listener.log(f"first update {time.monotonic() - started_at:.0f} s after the start")
            first_update = False

    last = run.checkpoint()
    unfinished = last is None or last.step < config.loop.total_steps
    if config.training_error and unfinished:
        raise ConfigError(config.training_error)
    limit_arenas()
    listener.status("starting desktops and loading the policy")
    size = max(train_concurrency(config), eval_concurrency(config))
    async with open_run_pool(config, run, size, listener) as pool:
        before, after = None, None
        if unfinished:
            await fetch_weights(config, config.model, listener, trains=True)
            await _train(config, run, pool, progress, listener)
            last = run.checkpoint()
        if config.evaluation.num_episodes and last is not None:
            if last.step:
                after = await evaluate_step(config, run, pool, last.step, listener)
            else:
                listener.log("no step finished; only the initial version is evaluated")
            before = await evaluate_step(config, run, pool, 0, listener)
            if config.loop.eval_every:
                known = {0: before, **({last.step: after} if after else {})}

                async def evaluate(settings: Config, step: int) -> EvalReport:
                    return await evaluate_step(settings, run, pool, step, listener)

                checkpoints = CheckpointManager(run.folder / "checkpoints")
                listener.log(await announce_best(config, checkpoints, known, evaluate))
    return TrainingSummary(last.step if last else 0, before, after)


async def announce_best(
    config: Config,
    checkpoints: CheckpointManager,
    known: Mapping[int, EvalReport],
    evaluate: Callable[[Config, int], Awaitable[EvalReport]],
) -> str:
    """Validate the first and the last checkpoint, too; return a line on the best one with its success on other tasks.

    `known`: reports on `evaluation.split` by step; `evaluate` returns the report of settings and step. The maximum over
    noisy validation scores is too high an estimate, so the line has a score that did not select the checkpoint.
    """
    split = validation_split(config)
    for step in known:
        report = await evaluate(for_split(config, split), step)
        checkpoints.record_eval(step, report.success_of_started.value)
    best = checkpoints.best()
    if best is None:
        return "no checkpoint has a validation score"
    report = known.get(best.step) or await evaluate(config, best.step)
    tasks = "training tasks" if split == "train" else f"{split} split"
    score = (
        "" if split == "train" else f"; {str(report.success_of_started).strip()} on the {config.evaluation.split} split"
    )
    return f"best checkpoint: step {best.step}, selected by {100 * best.success:.1f} % on the {tasks}{score} (kept)"


async def _train(
    config: Config,
    run: Run,
    pool: DesktopPoolProtocol,
    progress: Callable[[StepReport], None],
    listener: ProgressListener,
) -> None:
    """Train until the last step or `max_minutes`."""
    limit = asyncio.timeout(60 * config.max_minutes if config.max_minutes else None)
    watching = asyncio.create_task(_watch(run, listener))
    try:
        async with limit:
            await run_training_loop(config, run, pool, progress, lambda alert: listener.log(f"alert: {alert.line()}"))
    except TimeoutError:
        if not limit.expired():
            raise
        listener.log(f"training stopped after {config.max_minutes:g} minutes (max_minutes)")
    finally:
        watching.cancel()


async def _watch(run: Run, listener: ProgressListener) -> None:
    """Report the episode counts periodically; before the first step there is no other progress."""
    while True:
        await asyncio.sleep(WATCH_INTERVAL_S)
        counts = await asyncio.to_thread(run.episode_counts)
        if counts:
            ended = counts["started"] - counts["in_flight"]
            errored = sum(counts["errored"].values())
            listener.episodes(ended, counts["trained"], counts["zero_variance"], errored)


async def evaluate_step(
    config: Config, run: Run, pool: DesktopPoolProtocol, step: int | None, listener: ProgressListener
) -> EvalReport:
    """Evaluate the checkpoint of a step (None: the last)."""
    return await evaluate_policy(config, run, pool, resolve_policy(config, run, None, step), 1, listener)
