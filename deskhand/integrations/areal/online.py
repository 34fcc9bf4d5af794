"""Episodes for AReaL's online mode, in which AReaL runs no agent: its gateway waits for sessions that others begin, play and end.
Invariant: a session without a score is rejected by AReaL, never trained with a reward of zero; and every session that was begun is
ended, but for one whose reward the gateway did not take, which is left to AReaL's own time limit.

A session that ends without a reward counts as 0 there. So one whose episode has no score is given a reward that is no number, which
AReaL 1.0.4 stumbles over when it fetches the session, and rejects it. `is_scored` rejects it where it would not stumble;
`areal.launch` hands it to AReaL as its filter.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import structlog

from deskhand.errors import ConfigError, DeskhandError, EvaluatorError, InfrastructureError

log = structlog.get_logger()
GATEWAY = "proxy_gateway.json"
FULL = 429
NO_SESSION_WAIT_S = 1.0
TRIES = 30
"""While the gateway answers that its workers do not: a run that ends, ends them first."""
NEVER_REQUESTED = 400
"""What a reward is answered with where the model was never asked."""
CALL_S = 150.0
"""Of a request about a session; the gateway itself gives its workers 120 s."""


class ProxyGatewayClosed(InfrastructureError):
    """Nobody answers there: the run has ended, or its machine is lost."""


@dataclass
class OnlineResult:
    """What came of the rows."""

    rewards: list[float] = field(default_factory=list)
    unscored: list[str] = field(default_factory=list)
    """Why, one line for each episode without a score."""


@dataclass(frozen=True)
class ProxyGateway:
    """AReaL's gateway: `http://host:port` and the key of its administrator."""

    address: str
    key: str

    @classmethod
    def of_run(cls, folder: Path) -> ProxyGateway:
        """That of the run which writes to `folder`. Raises `ConfigError` when there is none."""
        try:
            found = json.loads((folder / GATEWAY).read_text(encoding="utf-8"))
            return cls(found["address"], found["key"])
        except (OSError, ValueError, KeyError) as error:
            mend = "start one with rollout.agent.mode: online, and wait until it says its gateway"
            raise ConfigError(f"{folder / GATEWAY} names no gateway ({error}); {mend}") from None

    def keep(self, folder: Path) -> Path:
        """Write it where only its owner can read it."""
        path = folder / GATEWAY
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
            json.dump({"address": self.address, "key": self.key}, file)
        return path


class _Sessions:
    """The gateway's requests."""

    def __init__(self, gateway: ProxyGateway, client: httpx2.AsyncClient) -> None:
        self._gateway, self._client = gateway, client

    async def post(self, path: str, key: str, body: Mapping[str, Any]) -> httpx2.Response:
        headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        try:
            return await self._client.post(
                f"{self._gateway.address}/rl/{path}", headers=headers, content=json.dumps(body)
            )
        except httpx2.HTTPError as error:
            raise ProxyGatewayClosed(
                f"AReaL's gateway {self._gateway.address}: {type(error).__name__} {error}"
            ) from error

    async def begin(self, name: str) -> str:
        """The key of a new session; waits while AReaL wants none."""
        tries = 0
        while True:
            reply = await self.post("start_session", self._gateway.key, {"task_id": name})
            if reply.status_code == 200:
                return str(reply.json()["api_key"])
            if reply.is_server_error and tries < TRIES:
                tries += 1
            elif reply.status_code != FULL:
                kind = ProxyGatewayClosed if reply.is_server_error else InfrastructureError
                raise kind(f"AReaL's gateway {self._gateway.address} begins no session: HTTP {reply.status_code}")
            await asyncio.sleep(NO_SESSION_WAIT_S)

    async def end(self, key: str, reward: float) -> None:
        """Where the model was never asked there is nothing to reward, and AReaL rejects the session for that."""
        reply, tries = await self._reward(key, reward), 1
        while reply.is_server_error and tries < TRIES:
            await asyncio.sleep(NO_SESSION_WAIT_S)
            reply, tries = await self._reward(key, reward), tries + 1
        if reply.is_success or reply.status_code == NEVER_REQUESTED:
            reply = await self.post("end_session", key, {})
        if reply.is_error:
            log.warning("areal.online.not_ended", status=reply.status_code)

    async def _reward(self, key: str, reward: float) -> httpx2.Response:
        return await self.post("set_reward", key, {"interaction_id": None, "reward": reward})


async def run_online(
    agent: Any, rows: Iterable[Mapping[str, Any]], gateway: ProxyGateway, *, at_once: int = 1
) -> OnlineResult:
    """Play `rows` in turn, `at_once` at a time, each in a session of its own: `agent.run(row, base_url=..., api_key=...)`. Ends
    early when the gateway is gone, with what was played.

    Raises `GatewayGone` when it never answered, `ConfigError` when the agent does.
    """
    played, left = OnlineResult(), iter(enumerate(rows))

    async def one_after_another(sessions: _Sessions) -> None:
        for number, row in left:
            try:
                key = await sessions.begin(f"deskhand-{number}")
            except ProxyGatewayClosed:
                if played.rewards or played.unscored:
                    return
                raise
            reward = math.nan
            try:
                reward = float(await agent.run(dict(row), base_url=gateway.address, api_key=key))
                played.rewards.append(reward)
            except ConfigError:
                raise
            except (DeskhandError, TimeoutError) as error:
                kind = "evaluator" if isinstance(error, EvaluatorError) else "infrastructure"
                played.unscored.append(f"{kind}: {error}")
                log.warning("areal.online.unscored", row=number, cause=kind, message=str(error))
            finally:
                with suppress(ProxyGatewayClosed):
                    await asyncio.shield(sessions.end(key, reward))

    async with httpx2.AsyncClient(timeout=CALL_S) as client:
        players = [asyncio.ensure_future(one_after_another(_Sessions(gateway, client))) for _ in range(max(1, at_once))]
        try:
            await asyncio.gather(*players)
        finally:
            for player in players:
                if not player.cancelling():  # a second time would cut off the end of its session
                    player.cancel()
            await asyncio.gather(*players, return_exceptions=True)
    return played


def is_scored(trajectory: Mapping[str, Any]) -> bool:
    """For AReaL's `dynamic_filter_fn`: whether every row's reward is a number."""
    return bool(trajectory["rewards"].isfinite().all())
