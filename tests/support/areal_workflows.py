"""Workflows for AReaL on painted desktops, importable by path in its processes: an untrained model's babble becomes
clicks, episodes have six turns, a window that drops turns makes forks, and some desktops fail."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from itertools import count, cycle
from typing import Any, ClassVar
from zlib import crc32

import fake_desktop

from deskhand.actions.ops import REL_1000, Click, Op, Point
from deskhand.agents.desktop_agent import DesktopAgent
from deskhand.desktop.local.desktop import LocalDesktop
from deskhand.desktop.pool import DesktopPool
from deskhand.errors import InfrastructureError
from deskhand.integrations.areal.workflow import OSWorldWorkflow
from deskhand.tasks.suites import basics
from deskhand.tasks.task import CheckResult, Task

TURNS = 6
SETTINGS: dict[str, Any] = {
    "desktops": {"factory": "areal_workflows.pool"},
    "tasks": "areal_workflows.square",
    "agent": {
        "history": "chunked",
        "history_max_turns": 4,
        "history_keep_turns": 2,
        "max_new_tokens": 5,
        "max_consecutive_errors": TURNS,
    },
    "loop": {"group_size": 4, "max_group_retries": 0},
    "zero_variance_groups": "keep",
    "engine": {"max_model_len": 1024},
    "group_timeout_s": 120,
}


class TimidDialect:
    """Understands every text; one in six is a click on the left square, one on the right, the rest on nothing."""

    name = "timid"

    @staticmethod
    def parse(text: str, view: object) -> list[Op]:
        place = {0: (187, 800), 1: (687, 800)}.get(crc32(text.encode("utf-8", "replace")) % 6, (10, 10))
        return [Click(Point(*place, REL_1000))]


class TimidAgent(DesktopAgent):
    """Takes replies that were cut, too."""

    async def _act(self, episode, view, text, call_id, truncated):
        return await super()._act(episode, view, text, call_id, False)


class FailingPool(fake_desktop.PaintedPool):
    """Every fourth desktop fails at its third action."""

    def __init__(self, size: int = 16) -> None:
        super().__init__(size)
        self._numbers = count(1)

    async def lease(self, spec=None):
        lease = await super().lease(spec)
        if next(self._numbers) % 4 == 0:
            lease.desktop.fail_at = 3
        return lease

    async def close(self) -> None:
        assert not self.leased, "a desktop was not given back"


class LostPool(FailingPool):
    """None of its desktops can be reset."""

    async def lease(self, spec=None):
        lease = await super().lease(spec)
        lease.desktop.fail_at = 0
        return lease


def pool() -> FailingPool:
    return FailingPool()


def lost_pool() -> LostPool:
    return LostPool()


def square(data: Mapping[str, Any]) -> Task:
    return replace(fake_desktop.square_task(int(data["seed"])), max_steps=TURNS)


def broken(data: Mapping[str, Any]) -> Task:
    """Its setup is a mistake of the code."""

    async def setup(desktop: Any) -> None:
        desktop.no_such_method()

    return replace(square(data), setup=setup)


def solved(data: Mapping[str, Any]) -> Task:
    """Its start state is worth 1."""

    async def check(desktop: Any) -> CheckResult:
        return CheckResult(1.0)

    return replace(square(data), check=check, milestones=())


def square_in_turns(data: Mapping[str, Any]) -> Task:
    """Whose episodes lose and win in turns, so that the rewards of a group differ whatever its members sampled."""
    scores = cycle((0.0, 1.0))

    async def check(desktop: Any) -> CheckResult:
        return CheckResult(next(scores))

    async def start_check(desktop: Any) -> CheckResult:
        return CheckResult(0.0)

    return replace(square(data), check=check, start_check=start_check, milestones=())


class PaintedWorkflow(OSWorldWorkflow):
    """As `OSWorldWorkflow`; keeps the samples and results of its groups, in this process alone."""

    samples: ClassVar[list[Any]] = []
    results: ClassVar[list[Any]] = []

    def make_agent(self, resources, temperature):
        return TimidAgent(resources.agent(temperature).config, action_format=TimidDialect())

    async def _run_group(self, resources, engine, task, size, temperature):
        group, results = await super()._run_group(resources, engine, task, size, temperature)
        from deskhand.algorithms.base import get_algorithm
        from deskhand.recipes.samples import group_to_samples

        PaintedWorkflow.results.extend(results)
        PaintedWorkflow.samples.extend(group_to_samples(group, get_algorithm(self.settings.algorithm)))
        return group, results


class FlakyDesktop(LocalDesktop):
    """A real desktop; of those that are used three in ten are lost at their second action."""

    used: ClassVar[Any] = count()

    def __init__(self) -> None:
        super().__init__()
        self._left = -1

    async def perform(self, ops, *, action_id):
        if self._left < 0:
            self._left = 1 if next(FlakyDesktop.used) % 10 in (1, 4, 7) else 1 << 30
        elif self._left == 1:
            raise InfrastructureError("flaky desktop: told to fail")
        return await super().perform(ops, action_id=action_id)


class FlakyPool(DesktopPool):
    """Starts with its first lease."""

    def __init__(self) -> None:
        super().__init__(4, make=FlakyDesktop)


def flaky_pool() -> FlakyPool:
    return FlakyPool()


def terminal_by_chance(data: Mapping[str, Any]) -> Task:
    """A task on a real desktop whose outcome is chance, so that groups of a model that knows nothing differ."""

    async def check(desktop: Any) -> CheckResult:
        return CheckResult(random.random())

    async def start_check(desktop: Any) -> CheckResult:
        return CheckResult(0.0)

    made = basics.make_task("terminal_run", int(data["seed"]))
    return replace(made, check=check, start_check=start_check, milestones=())
