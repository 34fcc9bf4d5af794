"""Agents that break their own desktop: a scored 0 where there is evidence, an outage where there is none."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable

import openai
import pytest
from desktops import ISOLATIONS, desktop_for, embedded
from patience import limit

from deskhand.actions.ops import Click, Point, Type, screen_px
from deskhand.agents.episode_context import EpisodeContext
from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.local import cgroup, processes
from deskhand.desktop.local.desktop import LocalDesktop
from deskhand.desktop.local.isolation import ResourceLimits, guests_can_kill_this_user
from deskhand.desktop.local.x_connection import XConnection
from deskhand.errors import GuestFailure, InfrastructureError
from deskhand.rollout.episode import run_episode
from deskhand.rollout.groups import EpisodeRequest
from deskhand.tasks.outcome import Errored, Outcome, Scored
from deskhand.tasks.suites.basics import make_task
from deskhand.tasks.suites.basics.layout import body

Breaking = Callable[[LocalDesktop], Awaitable[None]]
FORKS = "for i in `seq 99`; do sleep 60 & done; wait"
KILLS = {
    "the application": "kill -SEGV $PPID",
    "the application, unblockable": "kill -9 $PPID",
    "the window manager": "pkill -9 openbox",
    "everything": "kill -9 -1",
}


class TypingAgent:
    """Types a line into the first terminal; then acts again, until something fails."""

    def __init__(self, line: str = "", breaks: Breaking | None = None) -> None:
        self._line, self._breaks = line, breaks

    async def run(self, episode: EpisodeContext) -> None:
        frame = await episode.observe()
        desktop: LocalDesktop = episode.desktop.judged  # type: ignore[attr-defined]
        window = (await desktop.wait_window("xterm"))[0]
        await episode.act([Click(Point(*body(window).center, screen_px(*frame.size)))])
        if self._breaks is not None:
            await self._breaks(desktop)
        await episode.act([Type(f"{self._line}\n")])
        while not episode.done:
            await asyncio.sleep(0.3)
            await episode.act([Type("\n")])


async def outcome_of(agent: TypingAgent, **settings) -> Outcome:
    task = make_task("terminal_run", 0)
    async with embedded(DesktopSpec(task.theme, task.width, task.height), **settings) as desktop:
        async with asyncio.timeout(limit(60)):
            result = await run_episode(EpisodeRequest("e", task), desktop, agent, openai.AsyncOpenAI(api_key="none"))
    return result.outcome


@pytest.mark.parametrize("level", ISOLATIONS)
@pytest.mark.parametrize("what", KILLS)
async def test_an_agent_that_kills_what_it_works_with_is_scored_zero(what: str, level) -> None:
    if guests_can_kill_this_user(level):
        pytest.skip("guests of this machine could kill the processes of its user")
    outcome = await outcome_of(TypingAgent(KILLS[what]), isolation_level=level)
    assert isinstance(outcome, Scored), outcome
    assert outcome.value == 0.0


@pytest.mark.parametrize("level", ISOLATIONS)
async def test_an_agent_that_exceeds_a_limit_is_scored_zero(level) -> None:
    limits = ResourceLimits(max_processes=40)
    outcome = await outcome_of(TypingAgent(FORKS), isolation_level=level, limits=limits)
    assert isinstance(outcome, Scored), outcome
    assert outcome.value == 0.0


async def test_an_agent_that_grabs_the_x_server_is_scored_zero() -> None:
    connections: list[XConnection] = []

    async def grab(desktop: LocalDesktop) -> None:
        server = desktop._session.x_server  # type: ignore[union-attr]
        connections.append(XConnection(server.name, server.cookie))
        connections[0].core.GrabServer()
        connections[0].sync()

    try:
        outcome = await outcome_of(TypingAgent("", grab))
    finally:
        for connection in connections:
            connection.close()
    assert isinstance(outcome, Scored), outcome
    assert outcome.failed[0].clause == "the desktop"
    assert "a guest has grabbed it" in outcome.failed[0].read


async def test_an_agent_that_closes_the_hosts_connection_is_scored_zero() -> None:
    async def kill_client(desktop: LocalDesktop) -> None:
        session = desktop._session
        assert session is not None
        guest = XConnection(session.x_server.name, session.x_server.cookie)
        guest.core.KillClient(session.connection._damage)
        guest.sync()
        guest.close()

    outcome = await outcome_of(TypingAgent("", kill_client))
    assert isinstance(outcome, Scored), outcome
    assert "a guest closed the host's X connection" in outcome.failed[0].read


async def test_an_agent_that_crashes_the_x_server_is_scored_zero() -> None:
    async def crash(desktop: LocalDesktop) -> None:
        processes.kill(desktop.parts()["x server"][0], signal.SIGSEGV)

    outcome = await outcome_of(TypingAgent("", crash))
    assert isinstance(outcome, Scored), outcome
    assert outcome.value == 0.0


async def test_an_x_server_that_is_killed_is_an_outage() -> None:
    async def kill(desktop: LocalDesktop) -> None:
        processes.kill(desktop.parts()["x server"][0])

    outcome = await outcome_of(TypingAgent("", kill))
    assert isinstance(outcome, Errored), outcome
    assert outcome.cause == "infrastructure"


async def kernel_killed_something(desktop: LocalDesktop) -> None:
    """As if the kernel had killed a process of this machine for want of memory."""
    desktop._session.jail._oom_kills -= 1  # type: ignore[union-attr]


async def test_a_program_that_may_have_been_killed_for_want_of_memory_is_an_outage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cgroup, "hierarchies", lambda: ((), "switched off"))
    outcome = await outcome_of(TypingAgent("kill -9 $PPID", kernel_killed_something))
    assert isinstance(outcome, Errored), outcome
    assert "xterm was killed by SIGKILL" in outcome.message
    crash = await outcome_of(TypingAgent("kill -SEGV $PPID", kernel_killed_something))
    assert isinstance(crash, Scored), "the kernel does not kill with this signal for want of memory"


@pytest.mark.skipif(
    not any("memory" in each.controllers for each in cgroup.hierarchies()[0]), reason="no control groups for memory"
)
async def test_a_control_group_tells_who_killed_a_program() -> None:
    outcome = await outcome_of(TypingAgent("kill -9 $PPID", kernel_killed_something))
    assert isinstance(outcome, Scored), outcome
    assert "xterm was killed by SIGKILL" in outcome.failed[0].read


async def test_a_program_that_ends_before_the_agent_acts_is_an_outage() -> None:
    task = make_task("terminal_run", 0)

    class Looking:
        async def run(self, episode: EpisodeContext) -> None:
            await episode.observe()
            processes.kill(episode.desktop.judged.parts()["applications"][0])  # type: ignore[attr-defined]
            for _ in range(100):
                await asyncio.sleep(0.05)
                await episode.observe()

    async with desktop_for(task) as desktop:
        result = await run_episode(EpisodeRequest("e", task), desktop, Looking(), openai.AsyncOpenAI(api_key="none"))
    assert isinstance(result.outcome, Errored), result.outcome


def test_a_guest_failure_is_an_outage_to_those_who_do_not_know_it() -> None:
    assert issubclass(GuestFailure, InfrastructureError)
