"""Audit a task with agents that try to earn reward without solving it (`tasks.audit_agents`).

Used by `deskhand tasks audit`; start with `audit`. A task passes if its oracle scores 1, no other agent exceeds its
limit, and every agent has a score. The agents of a session share one desktop, so a cheat also has what earlier ones
left behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from deskhand.actions.ops import Done, Op, Wait
from deskhand.desktop.base import StageableDesktop
from deskhand.desktop.local.desktop import LocalDesktop
from deskhand.desktop.local.isolation import guests_can_kill_this_user
from deskhand.errors import ConfigError, GuestFailure, InfrastructureError
from deskhand.tasks import end_state
from deskhand.tasks.audit_agents import (
    AUDIT_SESSIONS,
    EARLY_STOP,
    LIMITS,
    NO_CHEATS,
    NOOP,
    ORACLE,
    SHELL_AGENTS,
    UNREAD,
    AuditAgent,
    applies,
)
from deskhand.tasks.cheats.oracle_variants import Steps
from deskhand.tasks.family_checks import Lease, find_unread_texts, oracle
from deskhand.tasks.judge import AlreadySolvedError, broken_by_agent, ending, initial_score, judge
from deskhand.tasks.oracle_sight import needs_frames
from deskhand.tasks.outcome import Errored, Outcome, Scored
from deskhand.tasks.task import Task

USABLE_S = 5.0
"""Within this time a desktop on which the next agent may play shows its windows and runs a command."""
_COLUMNS = tuple(name for name in LIMITS if name in NO_CHEATS)


@dataclass(frozen=True)
class AuditResult:
    """Scores of one task by agent. None: errored; a missing agent does not apply."""

    task: str
    values: dict[str, float | None]
    messages: dict[str, str]

    def table_row(self, width: int) -> str:
        cells = [_score_text(self.values[name]) if name in self.values else "" for name in _COLUMNS]
        cells += map(str, (len(self.cheats), self.num_paid, self.num_voided))
        return f"{self.task:{width}} " + " ".join(f"{cell:>11}" for cell in cells).rstrip()

    @property
    def cheats(self) -> dict[str, float | None]:
        """Scores of the ways of cheating that were tried."""
        return {name: value for name, value in self.values.items() if name not in NO_CHEATS}

    @property
    def num_paid(self) -> int:
        """Number of cheats with a score above 0."""
        return sum(value is not None and value > 0.0 for value in self.cheats.values())

    @property
    def num_voided(self) -> int:
        """Number of cheats without a score."""
        return sum(value is None for value in self.cheats.values())

    @property
    def violations(self) -> list[str]:
        """One line for each score that exceeds its agent's limit or is missing, or for an oracle below 1."""
        found = []
        for name, value in self.values.items():
            limit, why = LIMITS[name], self.messages.get(name, "")
            if value is None and limit != "one":
                found.append(f"{self.task}: {name} has no score {why}".rstrip())
            elif limit == "one" and value != 1.0:
                found.append(f"{self.task}: {name} scores {_score_text(value)}, not 1 {why}".rstrip())
            elif value is not None and (value >= 1.0 if limit == "below one" else limit == "zero" and value > 0.0):
                found.append(f"{self.task}: {name} scores {_score_text(value)} {why}".rstrip())
        return found


def table_header(width: int) -> str:
    """Return the head of the table; the task column has `width` characters."""
    return f"{'task':{width}} " + " ".join(f"{name:>11}" for name in (*_COLUMNS, "cheats", "paid", "voided"))


def _score_text(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


async def audit(task: Task, lease: Lease, names: Iterable[str] = (), save_dir: Path | None = None) -> AuditResult:
    """Run the oracle and all agents (or those of `names`) on a task.

    `lease` leases a desktop that was just reset for the task; `save_dir` gets the end states, one subfolder per agent.
    Raises `InfrastructureError` if no desktop could be leased or set up, and `ConfigError` for an unknown agent, or for
    one with a shell where guests can kill this user's processes.
    """
    selected = set(names) or set(LIMITS)
    if unknown := selected - set(LIMITS):
        raise ConfigError(f"--agents: unknown agent {min(unknown)!r}; agents: {', '.join(LIMITS)}")
    result = AuditResult(task.id, {}, {})
    async with lease(task) as desktop:
        _check_shells(selected, desktop)
        await task.setup(desktop)
        await desktop.observe()  # settles, as at the start of an episode
        facts = {
            "has_distractors": bool((await task.first_click_targets(desktop))[1]),
            "has_browser": any("chromium" in window.wm_class.lower() for window in await desktop.windows()),
        }
        steps = Steps()
        if not task.oracle_unavailable:
            steps, outcome, earlier = await _run_oracle(task, desktop, early=EARLY_STOP in selected)
            await _record(result, task, desktop, ORACLE, outcome, save_dir)
            if earlier is not None:
                result.values[EARLY_STOP] = earlier
    if UNREAD in selected and result.values.get(ORACLE) == 1.0:
        await _count_unread(result, task, lease, steps)
    for session in AUDIT_SESSIONS:
        agents = [each for each in session if each.name in selected and applies(each, task, steps, **facts)]
        while agents:
            async with lease(task) as desktop:
                await task.setup(desktop)
                await desktop.observe()
                try:
                    await initial_score(task, desktop)
                except AlreadySolvedError as error:  # every agent would score 1
                    result.values[NOOP], result.messages[NOOP] = 1.0, f"({error})"
                    return result
                instruction = await task.resolve_instruction(desktop)  # later the program that gives it may be gone
                resolved = replace(task, instruction=instruction, instruction_from=None)
                while agents:
                    agent = agents.pop(0)
                    outcome = await _run_agent(resolved, desktop, agent, steps, is_last=not agents)
                    await _record(result, task, desktop, agent.name, outcome, save_dir)
                    if not await _is_usable(desktop):  # a desktop of which this is unclear is replaced
                        break
    return result


def _check_shells(selected: set[str], desktop: StageableDesktop) -> None:
    """Their scripts kill and stop all that they can."""
    shells = selected & SHELL_AGENTS
    if shells and isinstance(desktop, LocalDesktop) and guests_can_kill_this_user(desktop.isolation_level):
        others = [name for name in LIMITS if name not in SHELL_AGENTS]
        raise ConfigError(
            f"--agents: {min(shells)} could kill your processes, because guests of this machine can; audit as root, in "
            f"a container or with bubblewrap, or without agents that have a shell: --agents {','.join(others)}"
        )


async def _count_unread(result: AuditResult, task: Task, lease: Lease, steps: Steps) -> None:
    """Replay the oracle on a desktop with an accessibility tree, if only frames can explain what it acted on."""
    try:
        unread = await find_unread_texts(task, lease, steps) if needs_frames(task, task.instruction, steps) else []
    except InfrastructureError as error:
        unread, result.messages[UNREAD] = None, f"({error})"
    result.values[UNREAD] = None if unread is None else float(len(unread))
    if unread:
        result.messages[UNREAD] = f"({'; '.join(unread)})"


async def _is_usable(desktop: StageableDesktop) -> bool:
    try:
        async with asyncio.timeout(USABLE_S):
            await desktop.windows()
            await desktop.observe()
            await desktop.run(["true"], timeout_s=USABLE_S)
    except (InfrastructureError, TimeoutError):
        return False
    return True


async def _record(
    result: AuditResult, task: Task, desktop: StageableDesktop, name: str, outcome: Outcome, save_dir: Path | None
) -> None:
    result.values[name] = outcome.value if isinstance(outcome, Scored) else None
    if isinstance(outcome, Errored):
        result.messages[name] = f"({outcome.cause}: {outcome.message})"
    if save_dir is not None:
        with contextlib.suppress(InfrastructureError):  # the agent may have broken the desktop
            await end_state.save_end_state(task, desktop, outcome, save_dir / name)


async def _run_oracle(task: Task, desktop: StageableDesktop, *, early: bool) -> tuple[Steps, Outcome, float | None]:
    """Return the oracle's steps, its outcome and, if `early`, the best score before any of its steps (None: no step).

    Steps that only wait do not count: after the last action the task may be solved.
    """
    steps: Steps = []
    earlier: float | None = None
    try:
        async for ops in oracle(task, desktop):
            if early and not all(isinstance(op, (Done, Wait)) for op in ops):
                before = await judge(task, desktop, grace_s=0.0)
                if isinstance(before, Scored):
                    earlier = max(earlier or 0.0, before.value)
            await desktop.perform(ops, action_id=f"{ORACLE}#{task.id}#{len(steps)}")
            steps.append(ops)
    except InfrastructureError as error:
        return steps, Errored("infrastructure", str(error)), earlier
    return steps, await judge(task, desktop, acted_at=time.monotonic(), **ending(steps[-1] if steps else ())), earlier


async def _run_agent(
    task: Task, desktop: StageableDesktop, agent: AuditAgent, steps: Steps, *, is_last: bool
) -> Outcome:
    """Run one agent and judge it; only the last agent of a desktop gets the grace period."""
    index, best, acted_at, last = 0, Scored(0.0), None, list[Op]()
    try:
        async for ops in agent.steps(task, desktop, steps):
            await desktop.perform(ops, action_id=f"{agent.name}#{task.id}#{index}")
            index, acted_at, last = index + 1, time.monotonic(), ops
            if agent.judge_every_step:
                outcome = await judge(task, desktop, grace_s=0.0, **ending(ops))
                if isinstance(outcome, Errored):
                    return outcome
                best = max(best, outcome, key=lambda each: each.value)
    except GuestFailure as failure:
        return broken_by_agent(failure)
    except InfrastructureError as error:
        return Errored("infrastructure", str(error))
    if agent.judge_every_step:
        return best
    grace_s = None if is_last else 0.0
    return await judge(task, desktop, grace_s=grace_s, acted_at=acted_at, **ending(last))
