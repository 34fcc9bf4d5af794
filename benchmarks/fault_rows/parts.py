"""Building blocks of the fault matrix: rows, a faulty network, and agents that record what was executed.

A row fails if an action was lost or repeated, an outage became a score, or the episode counts do not add up.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from deskhand.actions.ops import Move, Point, screen_px
from deskhand.agents.episode_context import EpisodeContext
from deskhand.config.schema import RemoteTimeouts
from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.pool import DesktopPool
from deskhand.desktop.remote.quota import QuotaManager
from deskhand.desktop.remote.server_desktop import ServerPool
from deskhand.rollout.episode import errored_result, run_episode
from deskhand.rollout.episode_counts import EpisodeCounts
from deskhand.rollout.episode_record import EpisodeResult
from deskhand.rollout.groups import EpisodeRequest
from deskhand.rollout.scheduler import Scheduler
from deskhand.server.active_leases import ActiveLeases
from deskhand.server.app import create_app
from deskhand.server.auth import LeaseAuth
from deskhand.tasks.outcome import Errored, Scored
from deskhand.tasks.task import CheckResult, Task

SUPPORT = Path(__file__).resolve().parents[2] / "tests" / "support"
sys.path.insert(0, str(SUPPORT))

KEY = "the-key-of-the-fault-matrix"
SCREEN = DesktopSpec("plain", 64, 48)
QUICK = RemoteTimeouts(
    connect_s=2.0, read_s=5.0, step_s=60.0, max_attempts=12, initial_backoff_s=0.001, max_backoff_s=0.05
)


@dataclass
class Row:
    """Result of a row; `wrong` is empty if it passed."""

    number: int
    what: str
    steps: int = 0
    injected: int = 0
    survived: int = 0
    unscored: int = 0
    recovery_s: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    note: str = ""
    details: list[str] = field(default_factory=list)
    """Lines to print below the table."""

    def demand(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self.wrong.append(otherwise)

    def add(self, other: Row) -> None:
        """Add what another part of the row found."""
        for name in ("steps", "injected", "survived", "unscored", "recovery_s", "wrong", "details"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def cells(self) -> tuple[str, ...]:
        """Return the table cells of the row."""
        rate = f"{1000 * self.injected / self.steps:.1f}" if self.steps else "-"
        share = f"{self.survived} of {self.injected}"
        recovered = f"{1000 * statistics.mean(self.recovery_s):.1f} ms" if self.recovery_s else "-"
        state = "; ".join(self.wrong) if self.wrong else "ok" + (f" ({self.note})" if self.note else "")
        return (str(self.number), self.what, str(self.steps), rate, share, str(self.unscored), recovered, state)


@dataclass
class Faults:
    """Fractions of requests: `lost` replies after execution, `undelivered` requests, `bad` status codes (502, 503,
    504)."""

    lost: float = 0.0
    undelivered: float = 0.0
    bad: float = 0.0
    refuse: Callable[[httpx2.Request], httpx2.Response | None] = lambda request: None


class FaultyNetwork(httpx2.AsyncBaseTransport):
    """HTTP transport that injects `faults` and measures the time until a path works again."""

    def __init__(self, app: Any, faults: Faults, seed: int = 0, inner: httpx2.AsyncBaseTransport | None = None) -> None:
        self._inner = inner or httpx2.ASGITransport(app=app, client=("127.0.0.1", 1))
        self.faults = faults
        self.injected = 0
        self.recovery_s: list[float] = []
        self._began: dict[str, float] = {}
        self._random = random.Random(seed)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        path, faults, drawn = request.url.path, self.faults, self._random.random()
        if (refusal := faults.refuse(request)) is not None:
            self._hit(path)
            return refusal
        if drawn < faults.undelivered:
            self._hit(path)
            raise httpx2.ConnectError("injected: not delivered", request=request)
        drawn -= faults.undelivered
        if 0 <= drawn < faults.bad / 2:
            self._hit(path)
            return httpx2.Response(self._random.choice([502, 503, 504]), request=request)
        reply = await self._inner.handle_async_request(request)
        drawn -= faults.bad / 2
        if 0 <= drawn < faults.bad / 2 + faults.lost:
            await reply.aread()
            self._hit(path)
            if drawn < faults.bad / 2:
                return httpx2.Response(self._random.choice([502, 504]), request=request)
            raise httpx2.ReadError("injected: the reply is lost", request=request)
        if path in self._began:
            self.recovery_s.append(time.monotonic() - self._began.pop(path))
        return reply

    def _hit(self, path: str) -> None:
        self.injected += 1
        self._began.setdefault(path, time.monotonic())

    async def aclose(self) -> None:
        await self._inner.aclose()


@asynccontextmanager
async def faulty_server(
    size: int, faults: Faults, *, seed: int = 0, quota: QuotaManager | None = None, idle_s: float = 3600.0
) -> AsyncIterator[tuple[ServerPool, list[Any], FaultyNetwork, ActiveLeases]]:
    """Yield (pool, desktops, network, leases): a server over fake desktops, reached over a faulty network."""
    from fake_pool import painted_pool

    made: list[Any] = []
    own: DesktopPool = painted_pool(size, made, SCREEN)
    async with own:
        book = ActiveLeases(own, idle_s=idle_s)
        network = FaultyNetwork(create_app(book, LeaseAuth(book, KEY)), faults, seed)
        pool = ServerPool(
            "http://server.test", KEY, spec=SCREEN, timeouts=QUICK, quota=quota, transport=network, wait_s=0.05
        )
        try:
            yield pool, made, network, book
        finally:
            network.faults = Faults()
            await pool.close()
            await book.close()


def point(x: int, y: int) -> Point:
    return Point(x, y, screen_px(SCREEN.width, SCREEN.height))


class Pointing:
    """Agent that moves the pointer `steps` times, so that executed actions can be compared."""

    def __init__(self, steps: int, pause_s: float = 0.0) -> None:
        self.steps, self.pause_s = steps, pause_s
        self.performed = 0

    async def run(self, episode: EpisodeContext) -> None:
        for number in range(self.steps):
            await episode.desktop.perform([Move(point(number % 60, number % 40))], action_id=f"step-{number}")
            self.performed += 1
            if self.pause_s:
                await asyncio.sleep(self.pause_s)


def pointing_task(number: int, steps: int, check: Any = None) -> Task:
    async def setup(desktop: Any) -> None:
        await desktop.push("task.txt", str(number).encode())

    async def judged(desktop: Any) -> CheckResult:
        return CheckResult(float(await desktop.pull("task.txt") == str(number).encode()))

    async def nothing_yet(desktop: Any) -> CheckResult:
        return CheckResult(0.0)  # the check asks for what the setup wrote

    async def targets(desktop: Any) -> tuple[None, list[Any]]:
        return None, []

    return Task(
        id=f"pointing/{number}", family="pointing", suite="faults", seed=number, instruction="point",
        width=SCREEN.width,
        height=SCREEN.height, max_steps=steps, setup=setup, check=check or judged, oracle=lambda desktop: iter(()),  # type: ignore[arg-type]
        first_click_targets=targets, settle_grace_s=0.0, start_check=nothing_yet,
    )  # fmt: skip


class CountedEpisodes:
    """Source of `count` episodes that checks the episode counts after each one."""

    def __init__(self, pool: Any, count: int, steps: int, check: Any = None, longest_s: float | None = None) -> None:
        self.pool, self.count, self.steps, self.longest_s = pool, count, steps, longest_s
        self.counts = EpisodeCounts()
        self.results: list[EpisodeResult] = []
        self.performed = 0
        self.pause_s = 0.0
        self._check = check
        self._numbers = itertools.count()

    @property
    def exhausted(self) -> bool:
        return self.counts.started >= self.count

    async def next(self) -> EpisodeRequest | None:
        if self.exhausted:
            return None
        self.counts.start()
        number = next(self._numbers)
        return EpisodeRequest(f"episode-{number}", pointing_task(number, self.steps, self._check), "group", number)

    async def on_result(self, result: EpisodeResult) -> None:
        if isinstance(result.outcome, Scored):
            self.counts.mark_scored()
        else:
            self.counts.mark_errored(result.outcome.cause)
        self.counts.check()
        self.results.append(result)

    async def play(self, ticket: EpisodeRequest) -> EpisodeResult:
        from deskhand.errors import InfrastructureError

        try:
            lease = await self.pool.lease(SCREEN)
        except InfrastructureError as error:
            return errored_result(ticket, "infrastructure", str(error))
        agent: Any = Pointing(self.steps, self.pause_s)
        client: Any = None
        try:
            return await run_episode(ticket, lease.desktop, agent, client, timeout_s=self.longest_s)
        finally:
            self.performed += agent.performed
            await asyncio.shield(self.pool.release(lease))

    async def run(self, concurrency: int) -> None:
        await Scheduler(self, self.play, concurrency, max_failures=10**9).run()

    def into(self, row: Row) -> None:
        """Add the results to a row; an outage must not become a score."""
        row.steps += self.performed
        row.unscored += sum(isinstance(result.outcome, Errored) for result in self.results)
        row.demand(len(self.results) == self.count, f"{self.count - len(self.results)} episodes were lost")
        zeros = sum(isinstance(result.outcome, Scored) and result.outcome.value < 1 for result in self.results)
        row.demand(not zeros, f"{zeros} outages became a score")

    @property
    def scored_share(self) -> float:
        return sum(isinstance(result.outcome, Scored) for result in self.results) / max(1, len(self.results))


def check_actions(row: Row, made: list[Any], steps: int) -> None:
    """Check that every desktop executed a prefix of the actions, once and in order."""
    wanted = [f"step-{number}" for number in range(steps)]
    wrong = [desktop.actions for desktop in made if desktop.actions != wanted[: len(desktop.actions)]]
    row.demand(not wrong, f"{len(wrong)} desktops performed other actions than were sent: {wrong[:1]}")


def scaled(size: float, small: int, full: int) -> int:
    """Interpolate between the count of tests (size 0) and of a full run (size 1)."""
    return round(small + (full - small) * size)
