"""Client of AReaL's online mode, in which external programs start, run and end sessions at AReaL's gateway.

Started by `entrypoint --run-online`. Every started session is ended, except one whose reward the gateway rejects,
which AReaL times out. AReaL's gateways speak one of two protocols, which differ in the reply to `start_session`: in
that of 1.0.4 a session ends with `end_session`; in that of 2.x (`rollout._version: v2`) with its reward.

Invariant: a session without a score is rejected by AReaL, never trained with reward 0. AReaL counts a session without
a reward as 0, so an errored episode gets NaN, on which AReaL 1.0.4 rejects the session; `is_scored`, AReaL's filter,
catches the rest.
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

from deskhand.errors import ConfigError, DeskhandError, InfrastructureError
from deskhand.integrations.areal.installed_areal import SUPPORTED_VERSIONS
from deskhand.rollout.scored_workflow import EPISODE_ERRORS
from deskhand.tasks.judge import AlreadySolvedError

log = structlog.get_logger()
GATEWAY_FILE = "proxy_gateway.json"
FULL = 429
RETRY_S = 1.0
MAX_ATTEMPTS = 30
"""Attempts while the gateway's workers do not respond: a finishing run stops them first."""
NEVER_REQUESTED = 400
"""Reply to a reward if the model was never called."""
REQUEST_TIMEOUT_S = 150.0
"""Timeout of a session request; the gateway gives its workers 120 s."""


class ProxyGatewayClosed(InfrastructureError):
    """The gateway does not respond: the run has ended."""


@dataclass
class OnlineResult:
    """Outcome of the rows."""

    rewards: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    """One line per episode without a score."""


@dataclass(frozen=True)
class ProxyGateway:
    """AReaL's gateway: `http://host:port` and its admin key."""

    address: str
    key: str

    @classmethod
    def of_run(cls, folder: Path) -> ProxyGateway:
        """Return the gateway of the run in `folder`. Raises `ConfigError` if there is none."""
        try:
            found = json.loads((folder / GATEWAY_FILE).read_text(encoding="utf-8"))
            return cls(found["address"], found["key"])
        except (OSError, ValueError, KeyError) as error:
            hint = "start a run with rollout.agent.mode: online and wait until it prints its gateway"
            raise ConfigError(f"{folder / GATEWAY_FILE}: no gateway ({error}); {hint}") from None

    def save(self, folder: Path) -> Path:
        """Write it to a file that only its owner can read."""
        path = folder / GATEWAY_FILE
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
            json.dump({"address": self.address, "key": self.key}, file)
        return path


@dataclass(frozen=True)
class _Session:
    key: str
    ends_with_reward: bool
    """The gateway has no `end_session`."""

    @classmethod
    def of_reply(cls, reply: httpx2.Response) -> _Session | None:
        """Return the session that `start_session` started, None if the reply is of neither protocol."""
        try:
            content = reply.json()
            if "sessions" in content:
                return cls(str(content["sessions"][0]["session_api_key"]), True)
            return cls(str(content["api_key"]), False)
        except (ValueError, KeyError, IndexError, TypeError):
            return None


class _Sessions:
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

    async def start(self, name: str) -> _Session:
        """Return a new session; waits while AReaL wants none."""
        attempts = 0
        while True:
            reply = await self.post("start_session", self._gateway.key, {"task_id": name})
            if reply.is_success:
                if (session := _Session.of_reply(reply)) is not None:
                    return session
                raise ConfigError(
                    f"AReaL's gateway {self._gateway.address}: its reply to start_session is of no known protocol; "
                    f"supported: AReaL {SUPPORTED_VERSIONS}"
                )
            if reply.is_server_error and attempts < MAX_ATTEMPTS:
                attempts += 1
            elif reply.status_code != FULL:
                kind = ProxyGatewayClosed if reply.is_server_error else InfrastructureError
                raise kind(f"AReaL's gateway {self._gateway.address} started no session: HTTP {reply.status_code}")
            await asyncio.sleep(RETRY_S)

    async def end(self, session: _Session, reward: float) -> None:
        """AReaL rejects a session itself if the model was never called."""
        reply, attempts = await self._reward(session.key, reward), 1
        while reply.is_server_error and attempts < MAX_ATTEMPTS:
            await asyncio.sleep(RETRY_S)
            reply, attempts = await self._reward(session.key, reward), attempts + 1
        if not session.ends_with_reward and (reply.is_success or reply.status_code == NEVER_REQUESTED):
            reply = await self.post("end_session", session.key, {})
        if reply.is_error:
            log.warning("areal.online.session_not_closed", status=reply.status_code)

    async def _reward(self, key: str, reward: float) -> httpx2.Response:
        return await self.post("set_reward", key, {"interaction_id": None, "reward": reward})


async def run_online(
    agent: Any, rows: Iterable[Mapping[str, Any]], gateway: ProxyGateway, *, max_concurrent: int = 1
) -> OnlineResult:
    """Run `rows` in order, `max_concurrent` at once, each in its own session: `agent.run(row, base_url=...,
    api_key=...)`.

    Ends early with the results so far if the gateway closes. Raises `ProxyGatewayClosed` if it never responded, and
    `ConfigError`.
    """
    result, remaining = OnlineResult(), iter(enumerate(rows))

    async def run_rows(sessions: _Sessions) -> None:
        for number, row in remaining:
            try:
                session = await sessions.start(f"deskhand-{number}")
            except ProxyGatewayClosed:
                if result.rewards or result.errors:
                    return
                raise
            reward = math.nan
            try:
                reward = float(await agent.run(dict(row), base_url=gateway.address, api_key=session.key))
                result.rewards.append(reward)
            except (DeskhandError, TimeoutError) as error:
                if isinstance(error, ConfigError) and not isinstance(error, AlreadySolvedError):
                    raise
                kinds = [kind for kind, raised in EPISODE_ERRORS.items() if isinstance(error, raised)]
                kind = kinds[0] if kinds else "infrastructure"
                result.errors.append(f"{kind}: {error}")
                log.warning("areal.online.episode_errored", row=number, cause=kind, message=str(error))
            finally:
                with suppress(ProxyGatewayClosed):
                    await asyncio.shield(sessions.end(session, reward))

    async with httpx2.AsyncClient(timeout=REQUEST_TIMEOUT_S) as client:
        tasks = [asyncio.ensure_future(run_rows(_Sessions(gateway, client))) for _ in range(max(1, max_concurrent))]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                if not task.cancelling():  # a second cancellation would interrupt closing its session
                    task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    return result


def is_scored(trajectory: Mapping[str, Any]) -> bool:
    """Return whether every reward is finite; for AReaL's `dynamic_filter_fn`."""
    return bool(trajectory["rewards"].isfinite().all())
