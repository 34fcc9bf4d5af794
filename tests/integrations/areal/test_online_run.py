"""Sessions of AReaL's gateway that we play: each is begun, rewarded and ended, and an outage gives no number."""

from __future__ import annotations

import asyncio
import math
import stat
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from fake_sglang import listening
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from deskhand.errors import CodeError, ConfigError, EvaluatorError, InfrastructureError
from deskhand.integrations.areal.online import ProxyGateway, ProxyGatewayClosed, is_scored, run_online
from deskhand.tasks.judge import AlreadySolvedError


class Desk:
    """The gateway's protocol, as AReaL's own has it: two sessions at a time, each with a key of its own. In AReaL's v2
    stack a session ends with its reward, and nothing else ends it."""

    def __init__(self, stack: str = "v1") -> None:
        self.stack = stack
        self.sessions: dict[str, list[Any]] = {}
        self.refused = 0
        self.slow_s = 0.0
        self.sick: dict[str, list[int]] = {"start": [], "reward": [], "end": []}
        """What is answered next, by request, before it is dealt with."""

    def app(self) -> Starlette:
        names: dict[str, Any] = {"start_session": self.start, "set_reward": self.reward}
        if self.stack == "v1":
            names["end_session"] = self.end
        return Starlette(routes=[Route(f"/rl/{name}", function, methods=["POST"]) for name, function in names.items()])

    async def start(self, request: Request) -> Response:
        if self.sick["start"]:
            return Response(status_code=self.sick["start"].pop())
        if request.headers["authorization"] != "Bearer admin":
            return Response(status_code=401)
        if sum("ended" not in session for session in self.sessions.values()) >= 2:
            self.refused += 1
            return Response(status_code=429)
        key = f"key-{len(self.sessions)}"
        self.sessions[key] = []
        name = (await request.json())["task_id"]
        if self.stack == "v2":
            made = {"session_id": f"{name}-0", "session_api_key": key}
            return JSONResponse({"group_id": name, "sessions": [made]}, status_code=201)
        if self.stack == "another":
            return JSONResponse({"session": name})
        return JSONResponse({"session_id": name, "api_key": key})

    async def reward(self, request: Request) -> Response:
        await asyncio.sleep(self.slow_s)
        if self.sick["reward"]:
            return Response(status_code=self.sick["reward"].pop())
        session = self.sessions[request.headers["authorization"].removeprefix("Bearer ")]
        session.append((await request.json())["reward"])
        if self.stack == "v2":
            session.append("ended")
        return JSONResponse({})

    async def end(self, request: Request) -> Response:
        if self.sick["end"]:
            return Response(status_code=self.sick["end"].pop())
        self.sessions[request.headers["authorization"].removeprefix("Bearer ")].append("ended")
        return JSONResponse({})


class Agent:
    """Returns the row's reward or raises it, once `ready` says so."""

    def __init__(self, ready: Callable[[], object] = lambda: True) -> None:
        self.ready = ready

    async def run(self, data: dict[str, Any], **extra: Any) -> float:
        while not self.ready():  # noqa: ASYNC110 the desk has no event for it
            await asyncio.sleep(0.01)
        assert set(extra) == {"base_url", "api_key"}
        if isinstance(data["then"], Exception):
            raise data["then"]
        return data["then"]


@pytest.mark.parametrize("stack", ["v1", "v2"])
async def test_every_session_is_rewarded_and_ended_and_an_outage_gives_no_number(monkeypatch, stack):
    monkeypatch.setattr("deskhand.integrations.areal.online.RETRY_S", 0.02)
    desk = Desk(stack)
    errors = [InfrastructureError("the desktop is lost"), EvaluatorError("the judge is late")]
    then = [0.0, errors[0], 1.0, errors[1], 0.5, AlreadySolvedError("done before"), CodeError("TypeError")]
    with listening(desk.app()) as address:
        agent, gateway = Agent(lambda: desk.refused), ProxyGateway(address, "admin")
        played = await run_online(agent, [{"then": each} for each in then], gateway, max_concurrent=3)
    assert sorted(played.rewards) == [0.0, 0.5, 1.0]
    assert sorted(played.errors) == [
        "already_solved: done before",
        "bug: TypeError",
        "evaluator: the judge is late",
        "infrastructure: the desktop is lost",
    ]
    assert desk.refused
    assert len(desk.sessions) == len(then)
    assert all(len(session) == 2 and session[1] == "ended" for session in desk.sessions.values())
    assert sum(math.isnan(session[0]) for session in desk.sessions.values()) == 4


async def test_a_gateway_of_another_protocol_is_named_at_the_first_session():
    with listening(Desk("another").app()) as address, pytest.raises(ConfigError, match="of no known protocol"):
        await run_online(Agent(), [{"then": 1.0}], ProxyGateway(address, "admin"))


async def test_a_cancelled_or_misconfigured_episode_ends_its_session_without_a_reward():
    desk = Desk()
    with listening(desk.app()) as address:
        with pytest.raises(ConfigError):
            await run_online(Agent(), [{"then": ConfigError("wrong")}], ProxyGateway(address, "admin"))
        desk.slow_s = 0.2
        slow = Slow()
        work = asyncio.ensure_future(run_online(slow, [{}], ProxyGateway(address, "admin")))
        await slow.began.wait()
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
    assert all(math.isnan(session[0]) and session[1] == "ended" for session in desk.sessions.values())


class Slow:
    def __init__(self) -> None:
        self.began = asyncio.Event()

    async def run(self, data: dict[str, Any], **extra: Any) -> float:
        self.began.set()
        await asyncio.sleep(60)
        return 1.0


async def test_a_gateway_that_is_gone_or_refuses_the_key_is_named():
    with pytest.raises(ProxyGatewayClosed, match=r"127\.0\.0\.1:9"):
        await run_online(Agent(), [{"then": 1.0}], ProxyGateway("http://127.0.0.1:9", "admin"))
    with listening(Desk().app()) as address, pytest.raises(InfrastructureError, match="HTTP 401"):
        await run_online(Agent(), [{"then": 1.0}], ProxyGateway(address, "another"))


async def test_a_run_that_ends_its_workers_first_ends_early_with_the_results_so_far(monkeypatch):
    monkeypatch.setattr("deskhand.integrations.areal.online.RETRY_S", 0.0)
    desk = Desk()

    class Last(Agent):
        async def run(self, data: dict[str, Any], **extra: Any) -> float:
            desk.sick |= {"start": [502] * 100, "end": [502]}
            return await super().run(data, **extra)

    with listening(desk.app()) as address:
        desk.sick["start"] = [502, 502]  # away for a moment
        played = await run_online(Last(), [{"then": 1.0}, {"then": 1.0}], ProxyGateway(address, "admin"))
        assert played.rewards == [1.0]
        with pytest.raises(ProxyGatewayClosed, match="HTTP 502"):
            await run_online(Agent(), [{"then": 1.0}], ProxyGateway(address, "admin"))


@pytest.mark.parametrize(
    ("answers", "session"),
    [([502], [1.0, "ended"]), ([502] * 100, []), ([400], ["ended"]), ([410], [])],
    ids=["once away", "away", "never asked", "over"],
)
async def test_a_session_whose_reward_did_not_arrive_is_not_ended(monkeypatch, answers, session):
    """AReaL would train it with a reward of zero."""
    monkeypatch.setattr("deskhand.integrations.areal.online.RETRY_S", 0.0)
    desk = Desk()
    desk.sick["reward"] = list(answers)
    with listening(desk.app()) as address:
        await run_online(Agent(), [{"then": 1.0}], ProxyGateway(address, "admin"))
    assert list(desk.sessions.values()) == [session]


def test_only_the_owner_can_read_the_gateway_file_of_a_run(tmp_path):
    path = ProxyGateway("http://h:1", "secret").save(tmp_path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    ProxyGateway("http://h:2", "secret").save(tmp_path)
    assert ProxyGateway.of_run(tmp_path).address == "http://h:2"
    with pytest.raises(ConfigError, match="no gateway"):
        ProxyGateway.of_run(tmp_path / "none")


@pytest.mark.parametrize(("rewards", "fine"), [([0.0, 1.0], True), ([0.0, np.nan], False), ([np.inf], False)])
def test_areal_s_filter_takes_rows_with_numbers_alone(rewards, fine):
    assert is_scored({"rewards": torch.tensor(rewards)}) is fine
