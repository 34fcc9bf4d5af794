"""Desktops of a bridge on another machine. Invariant: an action is performed once or not at all, however often its request had to
be sent; when nobody can know which, the error says so.

`BridgePool` leases, keeps its leases alive and gives them back; `BridgeDesktop` is a lease's desktop, with everything that a
`StagedDesktop` has.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from typing import Any

import httpx2

from deskhand.actions.ops import Drag, Op, Type, Wait
from deskhand.actions.serialization import op_to_json
from deskhand.config.schema import RemoteTimeouts
from deskhand.desktop import frame_codec
from deskhand.desktop.base import CommandResult, DesktopSpec, Frame, Window
from deskhand.desktop.remote.quota import QuotaManager
from deskhand.desktop.remote.remote_pool import RemotePool
from deskhand.desktop.remote.retrying_client import RetryingClient, check_base_url
from deskhand.desktop.remote.transport import HttpTransport, Sandbox, object_of
from deskhand.errors import InfrastructureError

__all__ = ["RemoteTimeouts", "ServerDesktop", "ServerPool"]


class BridgeTransport(HttpTransport):
    """Fulfills `LeaseTransport` in the bridge's own dialect; `make_link` gives a link that shows a key. Each lease has a
    link of its own: an HTTP client looks through all its connections for each request."""

    root, command_path, file_path, id_header = "/leases", "/desktop/run", "/desktop/file", frame_codec.REQUEST_HEADER

    def __init__(self, link: RetryingClient, make_link: Callable[[str], RetryingClient]) -> None:
        super().__init__(link)
        self._make_link = make_link
        self._links: dict[str, RetryingClient] = {}

    def link_to(self, sandbox: Sandbox) -> RetryingClient:
        if sandbox.id not in self._links:
            link = self._links[sandbox.id] = self._make_link(sandbox.key)
            link.headers[frame_codec.EPOCH_HEADER] = str(sandbox.epoch)
        return self._links[sandbox.id]

    async def delete(self, sandbox: Sandbox) -> None:
        try:
            await super().delete(sandbox)
        finally:
            await self._links.pop(sandbox.id).close()


class ServerDesktop:
    """Fulfills `StagedDesktop` by a lease of `pool`."""

    def __init__(self, pool: ServerPool, lease: Sandbox) -> None:
        self._pool, self.sandbox = pool, lease
        self._size = lease.size
        self._base: Frame | None = None
        self._closed = False

    @property
    def label(self) -> str:
        return f"{self._pool.bridge.link.address}{self._pool.bridge.path_of(self.sandbox)}"

    @property
    def _transport(self) -> BridgeTransport:
        """The way to it while it is open."""
        if self._closed:
            raise InfrastructureError("the desktop is closed")
        return self._pool.bridge

    async def _send(self, method: str, path: str, **arguments: Any) -> httpx2.Response:
        return await self._transport.send(method, "/desktop" + path, self.sandbox, **arguments)

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
        frame = await self._frame("POST", "/reset", acts=True, may_take_s=60, json={"template": asdict(template)})
        self._size = frame.size
        return frame

    async def perform(self, ops: list[Op], *, action_id: str) -> Frame:
        """See `Desktop.perform`; points are made pixels of the screen here, so one that is off it is refused at once."""
        body = {"ops": [op_to_json(op, *self._size) for op in ops], "action_id": action_id}
        longest_s = sum(_longest_s(op) for op in ops)
        return await self._frame("POST", "/perform", acts=True, may_take_s=longest_s, json=body)

    async def observe(self) -> Frame:
        return await self._frame("GET", "/frame")

    async def run(
        self, argv: list[str], *, timeout_s: float = 30.0, env: dict[str, str] | None = None, cwd: str | None = None
    ) -> CommandResult:
        return await self._transport.exec(self.sandbox, argv, timeout_s=timeout_s, env=env, cwd=cwd)

    async def launch(self, argv: list[str], *, env: dict[str, str] | None = None, cwd: str | None = None) -> int:
        body = {"argv": argv, "env": env, "cwd": cwd}
        return int(object_of(await self._send("POST", "/launch", acts=True, json=body))["pid"])

    async def pull(self, path: str) -> bytes:
        return await self._transport.read(self.sandbox, path)

    async def push(self, path: str, data: bytes) -> None:
        await self._transport.write(self.sandbox, path, data)

    async def listdir(self, path: str) -> list[str]:
        return object_of(await self._send("GET", "/folder", params={"path": path}))["names"]

    async def accessibility_tree(self) -> str | None:
        return object_of(await self._send("GET", "/accessibility", may_take_s=30))["tree"]

    async def windows(self) -> list[Window]:
        return [Window(**window) for window in object_of(await self._send("GET", "/windows"))["windows"]]

    async def wait_window(self, match: str, *, timeout_s: float = 20.0, count: int = 1) -> list[Window]:
        body = {"match": match, "timeout_s": timeout_s, "count": count}
        said = object_of(await self._send("POST", "/windows/wait", may_take_s=timeout_s, json=body))
        return [Window(**window) for window in said["windows"]]

    async def place_window(
        self, window: Window, x: int, y: int, width: int | None = None, height: int | None = None
    ) -> Window:
        body = {"window": asdict(window), "x": x, "y": y, "width": width, "height": height}
        return Window(**object_of(await self._send("POST", "/windows/place", acts=True, json=body))["window"])

    async def activate_window(self, window: Window) -> None:
        await self._send("POST", "/windows/activate", acts=True, json={"window": asdict(window)})

    async def close_window(self, window: Window) -> None:
        await self._send("POST", "/windows/close", acts=True, json={"window": asdict(window)})

    async def clipboard(self, selection: str = "CLIPBOARD") -> str | None:
        return object_of(await self._send("GET", "/clipboard", params={"selection": selection}))["text"]

    async def events(self, after: int = 0) -> AsyncIterator[tuple[int, str, dict[str, Any]]]:
        """What happens to the lease from now to its end, or all since the event of number `after`: (number, event, data).

        A connection that breaks is made again where it was. Raises `InfrastructureError` when that does not help.
        """
        failures = 0
        link, path = self._transport.link_to(self.sandbox), f"{self._transport.path_of(self.sandbox)}/events"
        times = link.timeouts
        while True:
            headers = link.headers | {"last-event-id": str(after)}
            timeout = httpx2.Timeout(None, connect=times.connect_s, read=times.read_s + 10)
            try:
                async with link.http.stream("GET", path, headers=headers, timeout=timeout) as reply:
                    if reply.status_code != 200:
                        await reply.aread()
                        raise frame_codec.error_from_reply(object_of(reply), reply.status_code, f"GET {path}")
                    failures = 0
                    async for told in httpx2.EventSource(reply):
                        after, data = int(told.id), json.loads(told.data)
                        yield after, told.event, data
                        if told.event == "over":
                            return
            except httpx2.TransportError as error:
                failures += 1
                if failures == times.attempts:
                    raise InfrastructureError(f"GET {path}: {type(error).__name__} {error}") from error
            await asyncio.sleep(min(times.longest_pause_s, times.pause_s * 2**failures))

    async def close(self) -> None:
        """Give the lease back; a bridge that cannot be reached ends it when it has been idle. Idempotent."""
        self._closed = True
        await self._pool.delete(self.sandbox)


class ServerPool(RemotePool):
    """Leases of the bridge at `address`. Raises `ConfigError` for an address that is none.

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
        link = RetryingClient(
            check_base_url(address, "the bridge's address"), key, timeouts=timeouts, lot=lot, transport=transport
        )

        def link_with(key: str) -> RetryingClient:
            return RetryingClient(
                link.address, key, timeouts=timeouts, lot=link.lot, gate=link.gate, transport=transport
            )

        self.bridge = BridgeTransport(link, link_with)
        self._wait_s = wait_s
        super().__init__(self.bridge, link.gate, link.lot, template=template, timeouts=timeouts)

    async def _taken(self, template: DesktopSpec) -> ServerDesktop:
        body = {"template": asdict(template), "wait_s": self._wait_s}
        lease = await self.bridge.acquire(body, secrets.token_hex(16), may_take_s=self._wait_s + 60)
        self._created.add(lease.id)
        return ServerDesktop(self, lease)


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
