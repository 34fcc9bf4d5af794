"""Policies that are programs. Invariant: a script speaks the agent's dialect, so what it says is parsed like any model's reply.

`oracle` shows what a suite allows at best and makes demonstrations; `noop` shows what doing nothing is worth.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from deskhand.actions.ops import Done
from deskhand.agents.desktop_agent import DesktopAgent
from deskhand.desktop.base import Desktop
from deskhand.errors import AgentError
from deskhand.rollout.runner import Script
from deskhand.tasks.task import Task


def oracle(agent: DesktopAgent) -> Script:
    """The task's own solution, one reply a step; ops that the dialect cannot say together are said one by one."""
    dialect = agent.action_format

    async def replies(task: Task, desktop: Desktop) -> AsyncIterator[str]:
        view = agent.view_of(task.width, task.height)
        async for ops in task.oracle(desktop):
            try:
                texts = [dialect.emit(ops, view)]
            except AgentError:
                texts = [dialect.emit([op], view) for op in ops]
            for text in texts:
                yield text

    return replies


def noop(agent: DesktopAgent) -> Script:
    """Says that it is done, at once."""

    async def replies(task: Task, desktop: Desktop) -> AsyncIterator[str]:
        yield agent.action_format.emit([Done()], agent.view_of(task.width, task.height))

    return replies


ORACLE, NOOP = "oracle", "noop"
SCRIPTED_POLICIES: dict[str, Callable[[DesktopAgent], Script]] = {ORACLE: oracle, NOOP: noop}
