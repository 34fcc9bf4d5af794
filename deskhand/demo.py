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
from typing import Any, Literal, Protocol

from deskhand.config import Config, settings_of
from deskhand.desktop.remote import first_looks, parking
from deskhand.errors import ConfigError
from deskhand.evaluation import chosen, evaluate_policy
from deskhand.models.load import check
from deskhand.places import evaluation_places, machine_lines, training_places
from deskhand.rollout.evaluate import Report
from deskhand.rollout.progress import Progress
from deskhand.rollout.runner import Pool
from deskhand.store.run import Run
from deskhand.suite import suite_of
from deskhand.training.checkpoint import Checkpoints
from deskhand.workshop import LEASES, desktops, train

WATCH_S = 2.0
NAMED = 12
"""Families that a run's title names one by one."""
LEFT_BY_A_KILL = ("checkpoints", "lock", "run.sqlite.partial", "run.sqlite.partial-journal")
BOOK = tuple(f"{LEASES}{end}" for end in ("", "-wal", "-shm", ".lock"))


class Display(Protocol):
    """Where progress is shown."""

    def say(self, text: str) -> None: ...

    def working(self, text: str) -> None: ...

    def step(self, progress: Progress) -> None: ...

    def episodes(self, ended: int, trained: int, equal: int, unscored: int) -> None: ...

    def evaluated(self, name: str, done: int, total: int, successes: int, lost: int) -> None: ...

    def parked(self, text: str) -> None: ...


@dataclass(frozen=True)
class Finished:
    """What a run came to; `before` and `after` are None where evaluation is switched off."""

    steps: int
    before: Report | None
    after: Report | None


def start(config: Config, folder: Path, command: str, more: Mapping[str, Any] | None = None, *, needs_model: bool = True) -> Run:
    """A new run; `more` is kept with what it is about. `needs_model`: it is of the config's model, and not of other policies alone.

    Raises `ConfigError` when the folder holds one or anything else, or the model is not there.
    """
    if foreign := _foreign(folder):
        raise ConfigError(f"{folder} holds no run, but other files ({foreign}); name a new or empty folder")
    suite = suite_of(config)
    named = ", ".join(suite.trained) if len(suite.trained) <= NAMED else f"{len(suite.trained)} families"
    if needs_model:
        check(config.model)
    if not suite.varied:
        print(suite.summary)
    for line in machine_lines(config):
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
    return next((path.name for path in sorted(folder.iterdir()) if path.name not in LEFT_BY_A_KILL), "")


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
        *BOOK,
        first_looks.FILE,
        parking.FILE,
    ):
        (run.folder / name).unlink(missing_ok=True)
    for folder in (run.folder / "checkpoints", run.folder / "frames", run.folder):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    return True


def set_aside(folder: Path) -> Path | None:
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
        return (last.step if last else 0), settings_of(run.about, folder).loop.steps


async def work(config: Config, run: Run, display: Display, began: float) -> Finished:
    """Train what is left, then evaluate what is left.

    `began`: `time.monotonic()` at the start of the command, for the time of the first update.
    """
    first_update = True
    raised: set[str] = set()

    def progress(step: Progress) -> None:
        nonlocal first_update
        display.step(step)
        for alarm in step.alarms:
            if alarm.sign not in raised:
                display.say(f"alarm at step {step.step}: {alarm.line()}")
        raised.clear()
        raised.update(alarm.sign for alarm in step.alarms)
        if first_update:
            display.say(f"first update {time.monotonic() - began:.0f} s after the start")
            first_update = False

    last = run.checkpoint()
    if config.untrainable and (last is None or last.step < config.loop.steps):
        raise ConfigError(config.untrainable)
    display.working("starting desktops and loading the policy")
    async with desktops(config, max(training_places(config), evaluation_places(config)), run.folder, display.parked) as pool:
        before, after = None, None
        if last is None or last.step < config.loop.steps:
            await _train(config, run, pool, progress, display)
            last = run.checkpoint()
        if config.evaluation.episodes and last is not None:
            if last.step:
                after = await evaluate_step(config, run, pool, last.step, display)
            else:
                display.say("no step was taken; only the version before training is evaluated")
            before = await evaluate_step(config, run, pool, 0, display)
    _say_best(Checkpoints(run.folder / "checkpoints"), ((0, before), (last.step if last else 0, after)), display)
    return Finished(last.step if last else 0, before, after)


def _say_best(checkpoints: Checkpoints, found: Iterable[tuple[int, Report | None]], display: Display) -> None:
    """Rate what was evaluated before and after training, (step, report) each, like what was evaluated in between, and say which
    checkpoint is the best."""
    for step, report in found:
        if report is not None:
            checkpoints.rate(step, report.success.value)
    best = checkpoints.best()
    if best is not None:
        display.say(f"best held-out success {100 * best.success:.1f} % at step {best.step}, which is kept")


async def _train(config: Config, run: Run, pool: Pool, progress: Callable[[Progress], None], display: Display) -> None:
    """Train up to the last step or to the end of the time."""
    limit = asyncio.timeout(60 * config.minutes if config.minutes else None)
    watching = asyncio.create_task(_watch(run, display))
    try:
        async with limit:
            await train(config, run, pool, progress, lambda alarm: display.say(f"alarm: {alarm.line()}"))
    except TimeoutError:
        if not limit.expired():
            raise
        display.say(f"training ended after {config.minutes:g} minutes, as the settings say")
    finally:
        watching.cancel()


async def _watch(run: Run, display: Display) -> None:
    """Say from time to time how far the episodes are: before the first step there is nothing else to see."""
    while True:
        await asyncio.sleep(WATCH_S)
        books = await asyncio.to_thread(run.books)
        if books:
            ended = books["started"] - books["in_flight"]
            lost = sum(books["unscored"].values())
            display.episodes(ended, books["trained"], books["zero_variance"], lost)


async def evaluate_step(config: Config, run: Run, pool: Pool, step: int | None, display: Display) -> Report:
    """Held-out success of a step (None: the last), shown as it goes."""
    return await evaluate_policy(config, run, pool, chosen(config, run, None, step), 1, display)
