"""Parked time is in no deadline, no episode's seconds and no rate, and it is to be seen."""

from __future__ import annotations

import asyncio
import time

import httpx2
from patience import limit
from rich.console import Console
from serving import on_a_port
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from benchmarks.fault_rows.parts import CountedEpisodes, Faults, faulty_server
from benchmarks.thresholds import ROOT
from deskhand import pausable_timeout
from deskhand.config.load import load_config
from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.factory import open_pool
from deskhand.desktop.remote import quota_file
from deskhand.desktop.remote.quota import QuotaManager
from deskhand.reporting.terminal import TerminalDisplay
from deskhand.rollout.scheduler import Scheduler
from deskhand.server.active_leases import ActiveLeases
from deskhand.tasks.outcome import Errored, Scored


async def test_waiting_for_quota_counts_against_no_timeout_or_rate():
    state, longest_s = {"until": 0.0}, limit(1.5)
    away_s = longest_s + 0.1

    def refuse(request: httpx2.Request) -> httpx2.Response | None:
        if not request.url.path.endswith("/perform"):
            return None
        state["until"] = state["until"] or time.monotonic() + away_s
        if time.monotonic() < state["until"]:
            return httpx2.Response(429, headers={"retry-after": f"{away_s + 0.1:.1f}"}, request=request)
        return None

    lot = QuotaManager(seed=1)
    async with faulty_server(1, Faults(refuse=refuse), quota=lot) as (pool, made, _, _):
        source = CountedEpisodes(pool, 1, 3, longest_s=longest_s)
        await source.run(1)
        (result,) = source.results
        assert isinstance(result.outcome, Scored), result.outcome
        assert result.seconds["quota_wait"] >= away_s
        assert result.seconds["total"] < longest_s
        assert result.seconds["solve"] < longest_s
        assert made[0].actions == ["step-0", "step-1", "step-2"]
        assert lot.total_s >= away_s


async def test_a_lease_survives_a_quota_wait_longer_than_its_idle_limit():
    state, idle_s = {"until": 0.0}, limit(0.4)
    later = {"retry-after": f"{4 * idle_s:.1f}"}

    def refuse(request: httpx2.Request) -> httpx2.Response | None:
        if not request.url.path.endswith("/perform"):
            return None
        state["until"] = state["until"] or time.monotonic() + 3.7 * idle_s
        return httpx2.Response(429, headers=later, request=request) if time.monotonic() < state["until"] else None

    async with faulty_server(1, Faults(refuse=refuse), idle_s=idle_s) as (pool, made, _, book):
        sweeping = asyncio.create_task(sweep(book))
        source = CountedEpisodes(pool, 1, 2)
        await source.run(1)
        sweeping.cancel()
        (result,) = source.results
        assert isinstance(result.outcome, Scored), result.outcome
        assert made[0].actions == ["step-0", "step-1"]


async def sweep(book: ActiveLeases) -> None:
    while True:
        await asyncio.sleep(0.05)
        await book.expire_idle()


async def test_an_episode_that_hangs_is_errored():
    async with faulty_server(1, Faults()) as (pool, _, _, _):
        source = CountedEpisodes(pool, 1, 50, longest_s=0.2)
        source.pause_s = 0.05
        await source.run(1)
        (result,) = source.results
        assert isinstance(result.outcome, Errored)
        assert "longer than" in result.outcome.message
        assert result.reward is None


async def test_the_rate_excludes_quota_waits():
    waited = [0.0]
    scheduler = Scheduler(None, None, 2, quota_wait_s=lambda: waited[0])  # type: ignore[arg-type]
    scheduler._started = time.monotonic() - 30
    scheduler._before_window = (scheduler._started, 0.0)
    for _ in range(5):
        scheduler._ended.append((time.monotonic(), waited[0]))
    assert abs(scheduler.episodes_per_minute - 10) < 0.2
    waited[0] = 2 * 20.0  # both slots waited for 20 of the 30 seconds
    assert abs(scheduler.episodes_per_minute - 30) < 0.6


async def test_a_full_server_is_shown_and_stored(tmp_path):
    async def full(request):
        return JSONResponse({"error": "full"}, 429, {"retry-after": "60"})

    said: list[str] = []
    async with on_a_port(Starlette(routes=[Route("/leases", full, methods=["POST"])])) as address:
        settings = ["desktop.backend=server", f"desktop.urls=[{address}]"]
        config = load_config(ROOT / "configs" / "tiny_cpu.yaml", settings, {})
        async with open_pool(config.desktop, DesktopSpec(), 1, run_dir=tmp_path, on_wait=said.append) as pool:
            waiting = asyncio.create_task(pool.lease())
            async with asyncio.timeout(limit(10)):
                while not said or "429" not in said[-1]:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert said[-1].startswith(f"1 waiting at {address} (desktops) (429, ")
            assert quota_file.saved_summary(tmp_path / quota_file.QUOTA_FILE).startswith("1 waiting at ")
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
    assert said[-1] == quota_file.saved_summary(tmp_path / quota_file.QUOTA_FILE) == ""


def test_quota_waits_are_shown(capsys):
    display = TerminalDisplay(Console(force_terminal=False, width=200))
    display.quota_wait("")
    display.quota_wait("3 waiting at http://a (429, 5 s; next try in 20 s)")
    display.quota_wait("2 waiting at http://a (429, 6 s; next try in 19 s)")
    display.quota_wait("")
    assert capsys.readouterr().out.splitlines() == ["3 waiting at http://a (429, 5 s; next try in 20 s)"]


async def test_concurrent_episodes_measure_their_own_pauses():
    async def episode(seconds: float) -> float:
        with pausable_timeout.measure_paused() as meter:
            with pausable_timeout.pause_timeouts():
                await asyncio.sleep(seconds)
            return meter.paused_s

    found = await asyncio.gather(episode(0.05), episode(0.2))
    assert 0.05 <= found[0] < 0.15 < found[1]
