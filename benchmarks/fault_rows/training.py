"""Rows 20 to 31: bugs of rendering, recording, training, publishing, caches, resuming and judging, and healthy runs.

Each bug replaces one production function; a real run on painted desktops then trains a few steps with it. A bug counts
as survived if the run notices it: an alert, a rejected episode, or an error that stops the run.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.fault_rows import training_bugs as bugs
from benchmarks.fault_rows.parts import SUPPORT, Row, scaled
from deskhand.config.trainer import LoraConfig, PolicyConfig
from deskhand.errors import DeskhandError

ROOT = SUPPORT.parents[1]
HEALTHY_STEPS = (2, 200)
"""Steps of a healthy run, in tests and in full."""


@dataclass(frozen=True)
class Bug:
    """`patches` are (owner, attribute, replacement); `test` is a test that fails with the bug."""

    name: str
    patches: Sequence[tuple[Any, str, Any]]
    test: str
    steps: int = 3
    options: dict[str, Any] = field(default_factory=dict)
    resumes: bool = False
    """Whether the bug is in a resume: a step is trained without it first."""
    unnoticed: str = ""
    """Why a run cannot notice it."""

    @contextmanager
    def injected(self) -> Iterator[None]:
        with ExitStack() as stack:
            for owner, attribute, replacement in self.patches:
                stack.enter_context(patch.object(owner, attribute, replacement))
            yield


@dataclass(frozen=True)
class Notice:
    """What a run said first, and at which step (0: before the first)."""

    what: str
    step: int


class _Stop(Exception):
    """Ends a run that has noticed its bug."""


async def run_training(
    folder: Path, steps: int, bug: AbstractContextManager[Any] | None = None, **options: Any
) -> tuple[list[Notice], list[Any]]:
    """Train `steps` steps, or with a bug until the first notice; return the notices and the reports."""
    import training_fixture

    reports: list[Any] = []
    notices: list[Notice] = []

    def note(report: Any) -> None:
        reports.append(report)
        causes = [name for name in report.metrics if name.startswith("train/rejected/")]
        notices.extend(Notice(what, report.step) for what in (*causes, *(alert.metric for alert in report.alerts)))
        if notices and bug is not None:
            raise _Stop

    loop = {"total_steps": steps, "save_every": 1000, **options.pop("loop", {})}
    settings = {"learning_rate": 1e-3, **options.pop("settings", {})}
    try:
        with bug or ExitStack():
            async with training_fixture.assembled(
                folder, training_fixture.small(**loop), progress=note, settings=settings, **options
            ) as parts:
                parts.loop.source.alerts.on_alert = lambda alert: notices.append(
                    Notice(alert.metric, parts.trainer.steps)
                )
                await parts.loop.run()
    except _Stop:
        pass
    except (DeskhandError, ValueError, RuntimeError) as error:
        text = " ".join(str(error).split())
        notices.append(Notice(f"{type(error).__name__}: {text[:90]}", len(reports)))
    return notices, reports


async def inject(bug: Bug, folder: Path) -> Notice | None:
    """Train with the bug until it is noticed."""
    options = dict(bug.options)
    first = 0
    if bug.resumes:
        first = 1
        _, reports = await run_training(folder / "run", 1, **dict(options))
        assert len(reports) == 1
    notices, _ = await run_training(folder / "run", first + bug.steps, bug.injected(), **options)
    found = notices[0] if notices else None
    return replace(found, step=found.step - first) if found and found.step >= first else found


def fails_with(name: str, test: str) -> bool:
    """Whether a test fails, or does not end in ten minutes, while the bug of that name is injected."""
    environment = {**os.environ, "DESKHAND_BUG": name, "PYTHONPATH": os.pathsep.join((str(ROOT), str(SUPPORT)))}
    words = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "benchmarks.fault_rows.training_plugin", test]
    try:
        done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, check=False, timeout=600)
    except subprocess.TimeoutExpired:
        return True
    return done.returncode == 1


def _row(number: int, what: str, cases: Sequence[Bug]) -> Callable[[float, Path], Any]:
    async def row(size: float, folder: Path) -> Row:
        found = Row(number, what)
        for place, bug in enumerate(cases[: scaled(size, 1, len(cases))]):
            notice = await inject(bug, folder / str(place))
            found.injected += 1
            found.steps += notice.step if notice else bug.steps
            found.survived += notice is not None or bool(bug.unnoticed)
            found.demand(notice is not None or bool(bug.unnoticed), f"{bug.name}: not noticed in {bug.steps} steps")
            seen = f"{notice.what} at step {notice.step}" if notice else f"not noticed at run time ({bug.unnoticed})"
            tested = ""
            if size:
                is_found = await asyncio.to_thread(fails_with, bug.name, bug.test)
                found.demand(is_found, f"{bug.name}: {bug.test} does not find it")
                tested = f"; {bug.test} {'fails' if is_found else 'PASSES'}"
            found.details.append(f"{bug.name}: {seen}{tested}")
        found.note = f"{sum('not noticed' not in line for line in found.details)} of {found.injected} at run time"
        return found

    row.__doc__ = f"{what}."
    return row


def _healthy(number: int, name: str, **options: Any) -> Callable[[float, Path], Any]:
    async def row(size: float, folder: Path) -> Row:
        found = Row(number, f"healthy steps: {name}", injected=1)
        steps = scaled(size, *HEALTHY_STEPS)
        notices, reports = await run_training(folder / "run", steps, settings={"learning_rate": 1e-4}, **options)
        found.steps = len(reports)
        found.survived = int(not notices and len(reports) == steps)
        shown = "; ".join(f"{notice.what} at step {notice.step}" for notice in notices)
        found.demand(found.survived == 1, shown or "stopped early")
        found.details.append(f"{name}: alerts raised: {len(notices)}{': ' if shown else ''}{shown}")
        for metric in (
            "train/engine_kl_images",
            "policy/publish_kl",
            "train/approx_kl",
            "train/importance_weight_mean",
        ):
            values = [report.metrics[metric] for report in reports if metric in report.metrics]
            shown = f"{min(values):.3g} to {max(values):.3g}" if values else "not measured"
            found.details.append(f"{metric}: {shown} in {len(values)} steps")
        found.details.append(_shares(reports))
        return found

    row.__doc__ = f"Healthy steps of {name} without an alert."
    return row


def _shares(reports: Sequence[Any]) -> str:
    total = sum(report.metrics["time/step"] for report in reports) or 1.0
    phases = ("rollout_wait", "train_step", "train_check", "publish", "publish_probe", "vision_probe", "checkpoint")
    shares = ((name, sum(report.metrics.get(f"time/{name}", 0.0) for report in reports) / total) for name in phases)
    return "share of the time: " + ", ".join(f"{name} {100 * share:.1f} %" for name, share in shares)


LORA = {"policy": PolicyConfig(lora=LoraConfig(rank=4, alpha=16))}


GROUPS: dict[int, tuple[str, list[Bug]]] = {
    number: (what, [Bug(**case) for case in cases]) for number, (what, cases) in bugs.table(LORA).items()
}
BUGS = {bug.name: bug for _, cases in GROUPS.values() for bug in cases}
for _number, (_what, _cases) in GROUPS.items():
    globals()[f"row_{_number}"] = _row(_number, _what, _cases)
row_28 = _healthy(28, "grpo")
row_29 = _healthy(29, "gspo", algorithm="gspo")
row_30 = _healthy(30, "ppo", algorithm="ppo")
row_31 = _healthy(31, "lora", **LORA)
