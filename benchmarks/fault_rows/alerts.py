"""Row 32: every rule of the health alerts raised by a fault, in a training run or in steps of engine and trainer.

`LOOP_FAULTS` run the real training loop on painted desktops; `alert_steps.STEP_FAULTS` are steps of a small model whose
metrics the same rules judge after healthy steps. A rule without a fault makes the row fail.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch
from zlib import crc32

from benchmarks.fault_rows.alert_steps import STEP_FAULTS, Pair, StepFault
from benchmarks.fault_rows.parts import SUPPORT, Row
from deskhand.actions import formats
from deskhand.actions.ops import REL_1000, Click, Done, Op, Point
from deskhand.agents.desktop_agent import DesktopAgent
from deskhand.config.loop import HealthConfig
from deskhand.engines.hf.decode_batch import DecodeBatch
from deskhand.recipes.health import find_alerts, resolve_bounds
from deskhand.recipes.health_rules import RULES
from deskhand.recipes.training_loop import TrainingLoop
from deskhand.recorder import graph
from deskhand.tasks.task import CheckResult, Task, seed_for

assert SUPPORT.is_dir()  # training_fixture and fake_desktop are there
LIMIT_S = 300.0
"""Longest run; a fault that is not noticed may leave the loop without a step."""
NO_PROBES: dict[str, Any] = {"vision_probe_every": 0, "publish_probe_samples": 0}


@dataclass(frozen=True)
class LoopFault:
    """A fault in a training run. `inject` returns a context in which the run has the fault; it is entered after
    `healthy` steps, and the run ends when all `rules` were raised, or `steps` later."""

    what: str
    rules: tuple[str, ...]
    inject: Callable[[Any], AbstractContextManager[object]]
    steps: int = 1
    healthy: int = 0
    loop: dict[str, Any] = field(default_factory=dict)
    health: dict[str, Any] = field(default_factory=dict)
    tasks: Callable[[], Callable[[int], Task]] | None = None
    """Returns the `make_task` of the run."""
    options: dict[str, Any] = field(default_factory=dict)
    """Other options of `training_fixture.assembled`."""


class _Stop(Exception):
    """Ends a run whose alerts have been raised."""


class Clicking:
    """Action format that understands every text as a click at one of two places, or always as `op`."""

    name = "clicking"

    def __init__(self, op: Op | None = None) -> None:
        self.op = op

    def parse(self, text: str, view: object) -> list[Op]:
        place = Point(187 if crc32(text.encode("utf-8", "replace")) % 2 else 687, 800, REL_1000)
        return [self.op or Click(place)]


def one_step_task(number: int, check: Callable[[Any], float], families: tuple[str, ...] = ("square",)) -> Task:
    """A task of one step whose score is `check(desktop)`."""
    import fake_desktop

    task = fake_desktop.square_task(seed_for("train", number))

    async def judged(desktop: Any) -> CheckResult:
        return CheckResult(check(desktop))

    async def nothing_yet(desktop: Any) -> CheckResult:
        return CheckResult(0.0)

    family = families[number % len(families)]
    return dataclasses.replace(task, family=family, max_steps=1, check=judged, start_check=nothing_yet, milestones=())


def _clicked(*families: str) -> Callable[[int], Task]:
    """Tasks that a click solves; scores alternate a little, so that every step has a signal."""
    count = itertools.count()

    def check(desktop: Any) -> float:
        return 0.9 + 0.1 * (next(count) % 2) if desktop.actions else 0.0

    return lambda number: one_step_task(number, check, families or ("square",))


@contextmanager
def _endless_replies(parts: Any) -> Iterator[None]:
    """Replies do not end before the token limit, which is raised, and cut ones are errors again."""
    agent = parts.runner.agent
    limit = agent.config.model_copy(update={"max_new_tokens": 4 * agent.config.max_new_tokens})
    with patch.object(type(agent), "_act", DesktopAgent._act), patch.object(agent, "config", limit):
        yield


def _foreign_format(parts: Any) -> AbstractContextManager[object]:
    return patch.object(parts.runner.agent, "action_format", formats.get("pyautogui"))


def _understands(op: Op | None = None) -> Callable[[Any], AbstractContextManager[object]]:
    return lambda parts: patch.object(parts.runner.agent, "action_format", Clicking(op))


@contextmanager
def _old_family(parts: Any) -> Iterator[None]:
    """The age of one family's episodes is read from the wrong version."""
    age = TrainingLoop._age

    def wrong(self: TrainingLoop, result: Any) -> int:
        return age(self, result) + 100 * (result.family == "slow")

    with _understands()(parts), patch.object(TrainingLoop, "_age", wrong):
        yield


def _mostly_zero() -> Callable[[int], Task]:
    """Tasks that score 0, but for those of the groups from number 26 on, whose episodes score 0 and 1 in turn."""
    count = itertools.count()

    def check(number: int, desktop: Any) -> float:
        place = desktop.__dict__.setdefault("place", next(count))  # an episode may be judged twice
        return float(number >= 26 and place % 2)

    return lambda number: one_step_task(number, partial(check, number))


def _broken_or_solved(number: int) -> Task:
    def check(desktop: Any) -> float:
        if number % 2:
            raise RuntimeError("injected: the check is broken")
        return 1.0

    return one_step_task(number, check, ("solved", "broken"))


@contextmanager
def _blind(parts: Any) -> Iterator[None]:
    """Every image has the same features."""
    visual = parts.trainer.policy.model.model.visual
    visual.requires_grad_(False)
    for name, parameter in visual.named_parameters():
        if "merger" in name:
            parameter.zero_()
    yield


@contextmanager
def _early_mask(parts: Any) -> Iterator[None]:
    sequence = graph._sequence

    def one_early(path: Any, trained: Any) -> Any:
        row = sequence(path, trained)
        return dataclasses.replace(row, loss_mask=(*row.loss_mask[1:], False))

    with patch.object(graph, "_sequence", one_early):
        yield


PPO: dict[str, Any] = {"algorithm": "ppo"}
"""Trains groups with equal rewards, too, so that steps do not wait for others."""
LOOP_FAULTS = (
    LoopFault(
        "replies run to a raised token limit", ("length", "truncation", "reward_drop"), _endless_replies,
        steps=6, healthy=6, loop={"group_size": 4}, health={"reward_window": 3},
        tasks=_clicked, options=PPO,
    ),
    LoopFault(
        "the agent expects another action format", ("parse_rate",), _foreign_format, steps=4, options=PPO,
        loop={"group_size": 4},
    ),
    LoopFault(
        "the episodes of one family look old", ("stale", "family_stale", "family_trained"), _old_family,
        steps=6, loop={"groups_per_step": 4},
        tasks=lambda: _clicked("quick", "slow"), options=PPO,
    ),
    LoopFault(
        "the judge says 0", ("no_signal", "zero_variance"), _understands(),
        steps=2, tasks=_mostly_zero,
    ),
    LoopFault(
        "one family's check raises, another's start state is the solution",
        ("errored", "group_errored", "solved_at_start"), _understands(Done()),
        steps=8, loop={"max_group_retries": 0}, tasks=lambda: _broken_or_solved, options=PPO,
    ),
    LoopFault(
        "the engine keeps its old weights", ("publish_kl",),
        lambda parts: patch.object(DecodeBatch, "load_weights", lambda self, *_: self.clear_caches(True)),
        steps=4, health={"publish_probe_samples": 2}, options=PPO | {"settings": {"learning_rate": 1e-2}},
    ),
    LoopFault(
        "every image has the same features", ("image_sensitivity",), _blind, loop={"group_size": 4},
        health={"vision_probe_every": 1},
    ),
    LoopFault("the loss mask is one token early", ("rejected",), _early_mask, options=PPO),
)  # fmt: skip


async def raise_in_loop(fault: LoopFault, folder: Path) -> dict[str, int]:
    """Return the steps with the fault before each rule was first raised (0: before a step ended).

    Raises `AssertionError` for an alert before the fault.
    """
    import training_fixture

    seen: dict[str, int] = {}
    steps = fault.healthy + fault.steps
    loop = {"total_steps": steps, "save_every": 1000, "groups_per_step": 1, "group_size": 2, **fault.loop}
    config = training_fixture.small(health=HealthConfig(**NO_PROBES | fault.health), **loop)
    options = {**fault.options, **({"make_task": fault.tasks()} if fault.tasks else {})}
    with ExitStack() as stack:

        def hear(alerts: Iterable[Any], step: int) -> None:
            for alert in alerts:
                assert step > fault.healthy or not fault.healthy, f"before the fault: {alert.line()}"
                seen.setdefault(alert.rule, step - fault.healthy)

        def note(report: Any) -> None:
            hear(report.alerts, report.step)
            if set(fault.rules) <= seen.keys():
                raise _Stop
            if report.step == fault.healthy:
                stack.enter_context(fault.inject(parts))

        try:
            async with training_fixture.assembled(folder, config, progress=note, **options) as parts:
                parts.loop.source.alerts.on_alert = lambda alert: hear([alert], parts.trainer.steps)
                if fault.healthy:
                    parts.runner.agent.action_format = Clicking()
                else:
                    stack.enter_context(fault.inject(parts))
                async with asyncio.timeout(LIMIT_S):
                    await parts.loop.run()
        except (_Stop, TimeoutError):
            pass
    return seen


async def raise_in_steps(fault: StepFault, healthy: list[dict[str, Any]]) -> dict[str, int]:
    """Return the steps with the fault until each rule was first raised, after the metrics of healthy steps."""
    bounds, found, seen = resolve_bounds(HealthConfig(), fault.backend, fault.dtype, "token"), await fault.run(), {}
    for number, metrics in enumerate(found):
        for alert in find_alerts(metrics, [*healthy, *found[:number]], bounds):
            seen.setdefault(alert.rule, number + 1)
    return seen


def without_fault() -> list[str]:
    """Return the rules that no fault raises."""
    return [name for name in RULES if not any(name in fault.rules for fault in (*LOOP_FAULTS, *STEP_FAULTS))]


async def row_32(size: float, folder: Path) -> Row:
    """Every rule of the health alerts raised by a fault."""
    found = Row(32, "a fault for each health alert")
    found.demand(not without_fault(), f"rules without a fault: {', '.join(without_fault())}")
    healthy = await Pair().steps(HealthConfig().baseline_steps)
    bounds = resolve_bounds(HealthConfig(), "hf", "float32", "token")
    for number, metrics in enumerate(healthy):
        early = find_alerts(metrics, healthy[:number], bounds)
        found.demand(not early, f"healthy step {number + 1}: {[alert.rule for alert in early]}")
    for place, fault in enumerate((*LOOP_FAULTS, *STEP_FAULTS)):
        if isinstance(fault, LoopFault):
            seen = await raise_in_loop(fault, folder / str(place))
        else:
            seen = await raise_in_steps(fault, healthy)
        found.steps += max(seen.values(), default=0)
        for rule in fault.rules:
            found.injected += 1
            found.survived += rule in seen
            found.demand(rule in seen, f"{rule}: not raised by: {fault.what}")
            shown = f"raised at step {seen[rule]}" if rule in seen else "NOT RAISED"
            found.details.append(f"{rule}: {fault.what}: {shown}")
    found.note = f"{found.survived} of {len(RULES)} rules"
    return found
