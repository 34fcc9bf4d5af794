"""Desktops of a bridge on another machine. Invariant: an action is performed once or not at all, however often its request had to
be sent; when nobody can know which, the error says so.

`BridgePool` leases, keeps its leases alive and gives them back; `BridgeDesktop` is a lease's desktop, with everything that a
`StagedDesktop` has.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import secrets
from collections.abc import AsyncIterator
from dataclasses import asdict
from functools import partial
from types import TracebackType
from typing import Any

import httpx2

from deskhand.actions.ops import Drag, Op, Type, Wait
from deskhand.actions.serialization import op_to_json
from deskhand.desktop import frame_codec
from deskhand.desktop.base import CommandResult, DesktopSpec, Frame, StageableDesktop, Window
from deskhand.desktop.pool import Lease
from deskhand.desktop.remote.quota import QuotaManager
from deskhand.desktop.remote.retrying_client import RemoteTimeouts, RetryingClient, check_base_url
from deskhand.errors import ConfigError, InfrastructureError

__all__ = ["RemoteTimeouts", "ServerDesktop", "ServerPool"]

DESKTOPS_PER_CLIENT = 8
"""An HTTP client looks through all its connections for each request; more desktops get further clients."""
RENEWALS_PER_TTL = 4
"""How often a lease is renewed within the time after which an idle one is given back."""


class ServerDesktop:
    """Fulfils `StagedDesktop`; `http` shows the lease's key, `lease` is what the bridge said of it."""

    def __init__(self, link: RetryingClient, lease: dict[str, Any]) -> None:
        self._link = link
        self._root = f"/leases/{lease['lease']}"
        self._headers = {"authorization": f"Bearer {lease['key']}", frame_codec.EPOCH_HEADER: str(lease["epoch"])}
        self._size = (int(lease["width"]), int(lease["height"]))
        self._base: Frame | None = None
        self._closed = False

    @property
    def label(self) -> str:
        return f"{self._link.address}{self._root}"

    async def _send(
        self,
        method: str,
        path: str,
        *,
        may_take_s: float = 0.0,
        acts: bool = False,
        parks: bool = True,
        **arguments: Any,
    ) -> httpx2.Response:
        """The reply to a request. One that acts carries an id, so it may be sent again like any other; when no answer comes at all
        it is `DeliveryUnknown`."""
        if self._closed:
            raise InfrastructureError("the desktop is closed")
        headers = (
            self._headers
            | ({frame_codec.REQUEST_HEADER: secrets.token_hex(16)} if acts else {})
            | arguments.pop("headers", {})
        )
        about = f"{method} {self._root}{path}"

        def refused(reply: httpx2.Response) -> Exception | None:
            return (
                frame_codec.error_from_reply(_json(reply), reply.status_code, about)
                if reply.status_code >= 400
                else None
            )

        return await self._link.send(
            method,
            self._root + path,
            repeatable=True,
            acts=acts,
            parks=parks,
            may_take_s=may_take_s,
            headers=headers,
            refused=refused,
            **arguments,
        )

    async def _frame(self, method: str, path: str, **arguments: Any) -> Frame:
        base, copying = self._base, None
        if base is not None and base.content_hash:
            arguments["headers"] = {frame_codec.BASE_HEADER: base.content_hash}
            copying = asyncio.get_running_loop().run_in_executor(None, base.bgrx.copy)  # while the bridge works
        try:
            reply = await self._send(method, path, **arguments)
            copy = (
                copying.result() if copying is not None and copying.done() else None
            )  # nobody waits for a busy thread
        finally:
            if copying is not None:
                copying.cancel()
        self._base = frame_codec.decode_frame(reply.headers.get(frame_codec.FRAME_HEADER), reply.content, base, copy)
        return self._base

    async def reset(self, template: DesktopSpec) -> Frame:
        frame = await self._frame(
            "POST", "/desktop/reset", acts=True, may_take_s=60, json={"template": asdict(template)}
        )
        self._size = frame.size
        return frame

    async def perform(self, ops: list[Op], *, action_id: str) -> Frame:
        """See `Desktop.perform`; points are made pixels of the screen here, so one that is off it is refused at once."""
        body = {"ops": [op_to_json(op, *self._size) for op in ops], "action_id": action_id}
        longest_s = sum(_longest_s(op) for op in ops)
        return await self._frame("POST", "/desktop/perform", acts=True, may_take_s=longest_s, json=body)

    async def observe(self) -> Frame:
        return await self._frame("GET", "/desktop/frame")

    async def run(
        self, argv: list[str], *, timeout_s: float = 30.0, env: dict[str, str] | None = None, cwd: str | None = None
    ) -> CommandResult:
        body = {"argv": argv, "timeout_s": timeout_s, "env": env, "cwd": cwd}
        said = _json(await self._send("POST", "/desktop/run", acts=True, may_take_s=timeout_s, json=body))
        return CommandResult(said["returncode"], base64.b64decode(said["stdout"]), base64.b64decode(said["stderr"]))

    async def launch(self, argv: list[str], *, env: dict[str, str] | None = None, cwd: str | None = None) -> int:
        body = {"argv": argv, "env": env, "cwd": cwd}
        return int(_json(await self._send("POST", "/desktop/launch", acts=True, json=body))["pid"])

    async def pull(self, path: str) -> bytes:
        return (await self._send("GET", "/desktop/file", params={"path": path})).content

    async def push(self, path: str, data: bytes) -> None:
        await self._send("PUT", "/desktop/file", params={"path": path}, content=data)

    async def listdir(self, path: str) -> list[str]:
        return _json(await self._send("GET", "/desktop/folder", params={"path": path}))["names"]

    async def accessibility_tree(self) -> str | None:
        return _json(await self._send("GET", "/desktop/accessibility", may_take_s=30))["tree"]

    async def windows(self) -> list[Window]:
        return [Window(**window) for window in _json(await self._send("GET", "/desktop/windows"))["windows"]]

    async def wait_window(self, match: str, *, timeout_s: float = 20.0, count: int = 1) -> list[Window]:
        body = {"match": match, "timeout_s": timeout_s, "count": count}
        said = _json(await self._send("POST", "/desktop/windows/wait", may_take_s=timeout_s, json=body))
        return [Window(**window) for window in said["windows"]]

    async def place_window(
        self, window: Window, x: int, y: int, width: int | None = None, height: int | None = None
    ) -> Window:
        body = {"window": asdict(window), "x": x, "y": y, "width": width, "height": height}
        return Window(**_json(await self._send("POST", "/desktop/windows/place", acts=True, json=body))["window"])

    async def activate_window(self, window: Window) -> None:
        await self._send("POST", "/desktop/windows/activate", acts=True, json={"window": asdict(window)})

    async def close_window(self, window: Window) -> None:
        await self._send("POST", "/desktop/windows/close", acts=True, json={"window": asdict(window)})

    async def clipboard(self, selection: str = "CLIPBOARD") -> str | None:
        return _json(await self._send("GET", "/desktop/clipboard", params={"selection": selection}))["text"]

    async def events(self, after: int = 0) -> AsyncIterator[tuple[int, str, dict[str, Any]]]:
        """What happens to the lease from now to its end, or all since the event of number `after`: (number, event, data).

        A connection that breaks is made again where it was. Raises `InfrastructureError` when that does not help.
        """
        failures = 0
        while True:
            headers = self._headers | {"last-event-id": str(after)}
            times = self._link.timeouts
            timeout = httpx2.Timeout(None, connect=times.connect_s, read=times.read_s + 10)
            try:
                async with self._link.http.stream(
                    "GET", self._root + "/events", headers=headers, timeout=timeout
                ) as reply:
                    if reply.status_code != 200:
                        await reply.aread()
                        raise frame_codec.error_from_reply(_json(reply), reply.status_code, f"GET {self._root}/events")
                    failures = 0
                    async for after, event, data in _read_events(reply):
                        yield after, event, data
                        if event == "over":
                            return
            except httpx2.TransportError as error:
                failures += 1
                if failures == times.attempts:
                    raise InfrastructureError(f"GET {self._root}/events: {type(error).__name__} {error}") from error
            await asyncio.sleep(min(times.longest_pause_s, times.pause_s * 2**failures))

    async def renew(self) -> None:
        """Tell the bridge that the lease is still wanted."""
        await self._send("POST", "/renew", parks=False)

    async def close(self) -> None:
        """Give the lease back; a bridge that cannot be reached ends it when it has been idle. Idempotent."""
        if not self._closed:
            with contextlib.suppress(InfrastructureError):
                await self._send("DELETE", "", parks=False)
            self._closed = True


class ServerPool:
    """Leases of the bridge at `address`, as `DesktopPool` gives them. Raises `ConfigError` for an address that is none.

    `transport` is for tests; `wait_s` is how long the bridge is asked to wait for a free desktop at a time, `lot` where those wait
    that it has none for.
    """

    def __init__(
        self,
        address: str,
        key: str | None = None,
        *,
        template: DesktopSpec | None = None,
        timeouts: RemoteTimeouts | None = None,
        wait_s: float = 60.0,
        lot: QuotaManager | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self.template = template or DesktopSpec()
        self.episode_s = (timeouts or RemoteTimeouts()).episode_s
        self._wait_s = wait_s
        address = check_base_url(address, "the bridge's address")
        self._make_link = partial(RetryingClient, address, key, timeouts=timeouts, transport=transport)
        self.link = self._make_link(lot=lot)
        self._links, self._users = [self.link], [0]
        self._held: dict[str, tuple[ServerDesktop, asyncio.Task[None]]] = {}
        self._seats: dict[str, int] = {}
        self._names: dict[int, str] = {}

    async def __aenter__(self) -> ServerPool:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def lot(self) -> QuotaManager:
        """Where those wait that the bridge has no desktop for."""
        return self.link.lot

    async def lease(self, template: DesktopSpec | None = None) -> Lease:
        """A fresh desktop in the state `template` (default: the pool's). Waits while the bridge has none free."""
        body = {"template": asdict(template or self.template), "wait_s": self._wait_s}
        headers = {frame_codec.REQUEST_HEADER: secrets.token_hex(16)}
        number = self._take_seat()
        link = self._links[number]
        try:
            reply = await link.send(
                "POST", "/leases", repeatable=True, acquires=True, may_take_s=self._wait_s + 60, headers=headers, json=body
            )  # fmt: skip
            told = _json(reply)
            if reply.status_code != 201:
                self.link.gate.desktops.released()
                kind = ConfigError if reply.status_code in (400, 401, 403) else InfrastructureError
                raise kind(f"POST {self.link.address}/leases: {reply.status_code} {told.get('error', '')}")
        except BaseException:
            self._users[number] -= 1
            raise
        desktop = ServerDesktop(link, told)
        self._held[told["lease"]] = (desktop, asyncio.create_task(_renewing(desktop, float(told["idle_s"]))))
        self._seats[told["lease"]] = number
        self._names[told["epoch"]] = told["lease"]
        held: StageableDesktop = desktop
        return Lease(held, told["epoch"])

    async def release(self, lease: Lease) -> None:
        """Give a lease back. A second release of the same lease does nothing."""
        name = self._names.pop(lease.epoch, None)
        if name is not None:
            await self._give_back(name)

    async def close(self) -> None:
        """Give all leases back. Idempotent."""
        for epoch in list(self._names):
            await self._give_back(self._names.pop(epoch))
        for link in self._links:
            await link.close()

    def _take_seat(self) -> int:
        """The number of a link that has room for one more desktop, which then has one less."""
        number = next(
            (number for number, users in enumerate(self._users) if users < DESKTOPS_PER_CLIENT), len(self._links)
        )
        if number == len(self._links):
            self._links.append(self._make_link(lot=self.lot, gate=self.link.gate))
            self._users.append(0)
        self._users[number] += 1
        return number

    async def _give_back(self, name: str) -> None:
        desktop, renewing = self._held.pop(name)
        renewing.cancel()
        try:
            await desktop.close()
        finally:
            self._users[self._seats.pop(name)] -= 1
            self.link.gate.desktops.released()


async def _renewing(desktop: ServerDesktop, idle_s: float) -> None:
    """Keeps a lease while its episode thinks; ends when the lease has."""
    while True:
        await asyncio.sleep(idle_s / RENEWALS_PER_TTL)
        try:
            await desktop.renew()
        except frame_codec.RemoteLeaseExpired:
            return
        except InfrastructureError:
            continue  # the next call of the episode says what is wrong; until then the bridge may come back


async def _read_events(reply: httpx2.Response) -> AsyncIterator[tuple[int, str, dict[str, Any]]]:
    fields: dict[str, str] = {}
    async for line in reply.aiter_lines():
        name, _, value = line.partition(":")
        if line:
            fields[name] = value.strip()
        elif "event" in fields:
            yield int(fields["id"]), fields["event"], json.loads(fields["data"])
            fields = {}


def _json(reply: httpx2.Response) -> dict[str, Any]:
    try:
        body = reply.json()
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def _longest_s(op: Op) -> float:
    """How long an op may take, at most, with the settling after it."""
    match op:
        case Wait():
            return op.seconds
        case Drag():
            return 2.0 + len(op.path)
        case Type():
            return 10.0 + 0.05 * len(op.text)
        case _:
            return 2.0
