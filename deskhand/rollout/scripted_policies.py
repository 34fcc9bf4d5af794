"""Scripted policies, whose replies are parsed like those of a model.

Used by `eval --policy` and by demonstrations. `oracle` solves the task: the upper bound of a suite. `noop` stops
immediately: the score of doing nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from deskhand.actions.ops import Done
from deskhand.agents.desktop_agent import DesktopAgent
from deskhand.desktop.base import StageableDesktop
from deskhand.errors import AgentError
from deskhand.rollout.runner import Script
from deskhand.tasks.task import Task


def oracle(agent: DesktopAgent) -> Script:
    """Return the task's solution; ops that the action format cannot combine in one reply are sent one by one."""
    action_format = agent.action_format

    async def replies(task: Task, desktop: StageableDesktop) -> AsyncIterator[str]:
        view = agent.view_of(task.width, task.height)
        async for ops in task.oracle(desktop):
            try:
                texts = [action_format.emit(ops, view)]
            except AgentError:
                texts = [action_format.emit([op], view) for op in ops]
            for text in texts:
                yield text

    return replies


def noop(agent: DesktopAgent) -> Script:
    """Return a policy that reports the task as done in its first reply."""

    async def replies(task: Task, desktop: StageableDesktop) -> AsyncIterator[str]:
        yield agent.action_format.emit([Done()], agent.view_of(task.width, task.height))

    return replies


ORACLE, NOOP = "oracle", "noop"
SCRIPTED_POLICIES: dict[str, Callable[[DesktopAgent], Script]] = {ORACLE: oracle, NOOP: noop}
