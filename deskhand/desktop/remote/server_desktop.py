"""Desktops of a desktop server (`deskhand serve desktops`) over its native API.

Opened by `desktop.factory` for the server backend. `ServerPool` leases desktops and renews the leases;
`ServerDesktop` implements `StageableDesktop`.

Invariant: an action is performed once, however often its request is sent; if the outcome is unknown,
`DeliveryUnknown` is raised.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, TypeVar

import httpx2

from deskhand.actions.ops import Op
from deskhand.actions.serialization import op_to_json
from deskhand.config.schema import RemoteTimeouts
from deskhand.desktop import frame_codec
from deskhand.desktop.base import CommandResult, DesktopSpec, Frame, Window
from deskhand.desktop.op_budgets import op_budget_s
from deskhand.desktop.remote.quota import QuotaManager
from deskhand.desktop.remote.remote_pool import RemotePool
from deskhand.desktop.remote.replies import CommandReply, ForeignReply, JsonReply, describe
from deskhand.desktop.remote.retrying_client import RetryingClient, check_base_url
from deskhand.desktop.remote.transport import HttpTransport, Sandbox
from deskhand.errors import FrameError, InfrastructureError

Result = TypeVar("Result")
__all__ = ["RemoteTimeouts", "ServerDesktop", "ServerPool"]


class _Pid(JsonReply):
    pid: int


class _Names(JsonReply):
    names: list[str]


class _Tree(JsonReply):
    tree: str | None


class _Text(JsonReply):
    text: str | None


class _Window(JsonReply):
    window: Window


class _Windows(JsonReply):
    windows: list[Window]


class ServerTransport(HttpTransport):
    """The native API. `make_client` returns a client that sends a given key.

    Each lease has its own client: an HTTP client scans all of its connections on every request.
    """

    root, command_path, file_path, id_header = "/leases", "/desktop/run", "/desktop/file", frame_codec.REQUEST_HEADER

    def __init__(self, client: RetryingClient, make_client: Callable[[str], RetryingClient]) -> None:
        super().__init__(client)
        self._make_client = make_client
        self._clients: dict[str, RetryingClient] = {}

    def client_for(self, sandbox: Sandbox) -> RetryingClient:
        if sandbox.id not in self._clients:
            client = self._clients[sandbox.id] = self._make_client(sandbox.key)
            client.headers[frame_codec.EPOCH_HEADER] = str(sandbox.epoch)
        return self._clients[sandbox.id]

    def open_below(self, sandbox: Sandbox, name: str) -> RetryingClient:
        """Return a new connection to a server of a leased machine, with the lease's key and epoch."""
        client = self._make_client(sandbox.key)
        client.headers[frame_codec.EPOCH_HEADER] = str(sandbox.epoch)
        client.base_url = f"{client.base_url}{self.path_of(sandbox)}/{name}"
        return client

    async def delete(self, sandbox: Sandbox) -> None:
        try:
            await super().delete(sandbox)
        finally:
            await self._clients.pop(sandbox.id).close()


class ServerDesktop:
    """Implements `StageableDesktop` through a lease of `pool`."""

    def __init__(self, pool: ServerPool, lease: Sandbox) -> None:
        self._pool, self.sandbox = pool, lease
        self._size = lease.size
        self._base: Frame | None = None
        self._closed = False

    @property
    def label(self) -> str:
        return f"{self._pool.transport.client.base_url}{self._pool.transport.path_of(self.sandbox)}"

    @property
    def _transport(self) -> ServerTransport:
        if self._closed:
            raise InfrastructureError("the desktop is closed")
        return self._pool.transport

    async def _send(self, method: str, path: str, **arguments: Any) -> Any:
        return await self._transport.send(method, "/desktop" + path, self.sandbox, **arguments)

    async def _send_for(self, kind: type[Result], method: str, path: str, **arguments: Any) -> Result:
        return await self._transport.send_for(kind, method, "/desktop" + path, self.sandbox, **arguments)

    async def _frame(self, method: str, path: str, **arguments: Any) -> Frame:
        base, copies = self._base, list[asyncio.Future[Any]]()
        if base is not None and base.content_hash:
            arguments["headers"] = {frame_codec.BASE_HEADER: base.content_hash}
            loop = asyncio.get_running_loop()
            copies.append(loop.run_in_executor(None, base.bgrx.copy))  # while the server works

        def parse(reply: httpx2.Response) -> Frame:
            """A frame that was damaged on its way is requested again, which performs nothing a second time."""
            # Do not wait for a busy thread.
            copy = copies.pop().result() if copies and copies[0].done() else None
            try:
                return frame_codec.decode_frame(reply.headers.get(frame_codec.FRAME_HEADER), reply.content, base, copy)
            except FrameError as error:
                raise ForeignReply(f"{describe(reply)}: {error}") from None

        try:
            frame: Frame = await self._send(method, path, parse=parse, **arguments)
        finally:
            for copying in copies:
                copying.cancel()
        self._base = frame
        return frame

    async def reset(self, spec: DesktopSpec) -> Frame:
        frame = await self._frame("POST", "/reset", acts=True, may_take_s=60, json={"spec": asdict(spec)})
        self._size = frame.size
        return frame

    async def perform(self, ops: list[Op], *, action_id: str) -> Frame:
        """See `Desktop.perform`. Points become pixels here, so one outside the screen fails without a request."""
        body = {"ops": [op_to_json(op, *self._size) for op in ops], "action_id": action_id}
        max_duration_s = sum(op_budget_s(op, *self._size) for op in ops)
        return await self._frame("POST", "/perform", acts=True, may_take_s=max_duration_s, json=body)

    async def observe(self) -> Frame:
        return await self._frame("GET", "/frame")

    async def run(
        self, argv: list[str], *, timeout_s: float = 30.0, env: dict[str, str] | None = None, cwd: str | None = None
    ) -> CommandResult:
        return await self._transport.exec(self.sandbox, argv, timeout_s=timeout_s, env=env, cwd=cwd)

    async def launch(self, argv: list[str], *, env: dict[str, str] | None = None, cwd: str | None = None) -> int:
        body = {"argv": argv, "env": env, "cwd": cwd}
        return (await self._send_for(_Pid, "POST", "/launch", acts=True, json=body)).pid

    async def shell(self, command: str, *, timeout_s: float = 30.0) -> CommandResult:
        body = {"command": command, "timeout_s": timeout_s}
        arguments = {"acts": True, "may_take_s": timeout_s, "json": body}
        done = await self._send_for(CommandReply, "POST", "/shell", **arguments)
        return CommandResult(done.returncode, done.stdout, done.stderr)

    async def launch_shell(self, command: str) -> None:
        await self._send("POST", "/shell/launch", acts=True, json={"command": command})

    async def open_file(self, path: str) -> None:
        await self._send("POST", "/open", acts=True, may_take_s=120.0, json={"path": path})

    def open_evaluator(self, port: int | None = None) -> RetryingClient:
        """See `HasTaskEvaluator`: the server forwards requests of this lease alone."""
        return self._transport.open_below(self.sandbox, "evaluator")

    def open_machine(self) -> RetryingClient | None:
        """Return a new connection to the in-VM server of a leased machine; None for a local desktop."""
        return None if self.sandbox.backend == "local" else self._transport.open_below(self.sandbox, "osworld")

    async def pull(self, path: str) -> bytes:
        return await self._transport.read(self.sandbox, path)

    async def push(self, path: str, data: bytes) -> None:
        await self._transport.write(self.sandbox, path, data)

    async def listdir(self, path: str) -> list[str]:
        return (await self._send_for(_Names, "GET", "/folder", params={"path": path})).names

    async def accessibility_tree(self) -> str | None:
        return (await self._send_for(_Tree, "GET", "/accessibility", may_take_s=30)).tree

    async def windows(self) -> list[Window]:
        return (await self._send_for(_Windows, "GET", "/windows")).windows

    async def wait_window(self, match: str, *, timeout_s: float = 20.0, count: int = 1) -> list[Window]:
        body = {"match": match, "timeout_s": timeout_s, "count": count}
        reply = await self._send_for(_Windows, "POST", "/windows/wait", may_take_s=timeout_s, json=body)
        return reply.windows

    async def place_window(
        self, window: Window, x: int, y: int, width: int | None = None, height: int | None = None
    ) -> Window:
        body = {"window": asdict(window), "x": x, "y": y, "width": width, "height": height}
        return (await self._send_for(_Window, "POST", "/windows/place", acts=True, json=body)).window

    async def activate_window(self, window: Window) -> None:
        await self._send("POST", "/windows/activate", acts=True, json={"window": asdict(window)})

    async def close_window(self, window: Window) -> None:
        await self._send("POST", "/windows/close", acts=True, json={"window": asdict(window)})

    async def clipboard(self, selection: str = "CLIPBOARD") -> str | None:
        return (await self._send_for(_Text, "GET", "/clipboard", params={"selection": selection})).text

    async def close(self) -> None:
        """Release the lease; it expires if the server cannot be reached. Idempotent."""
        self._closed = True
        await self._pool.delete(self.sandbox)


class ServerPool(RemotePool):
    """Leases desktops from the server at `base_url`. Raises `ConfigError` for an invalid URL.

    Args:
        wait_s: How long the server waits for a free desktop per request.
        transport: HTTP transport for tests.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        *,
        spec: DesktopSpec | None = None,
        timeouts: RemoteTimeouts | None = None,
        wait_s: float = 60.0,
        quota: QuotaManager | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        settings: dict[str, Any] = {"timeouts": timeouts, "transport": transport}
        client = RetryingClient(check_base_url(base_url, "desktop server"), api_key, quota=quota, **settings)

        def client_with_key(key: str) -> RetryingClient:
            return RetryingClient(client.base_url, key, quota=client.quota, gate=client.gate, **settings)

        self.transport = ServerTransport(client, client_with_key)
        self._wait_s = wait_s
        super().__init__(self.transport, client.gate, client.quota, spec=spec, timeouts=timeouts)

    async def _acquire(self, spec: DesktopSpec) -> ServerDesktop:
        body = {"spec": asdict(spec), "wait_s": self._wait_s}
        lease = await self.transport.acquire(body, secrets.token_hex(16), may_take_s=self._wait_s + 60)
        self._created.add(lease.id)
        return ServerDesktop(self, lease)
