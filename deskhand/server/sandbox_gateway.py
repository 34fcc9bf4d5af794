"""A sandbox gateway in front of bridges. Invariant: a sandbox that is not renewed within its time is ended, and no request without
the gateway's token, or that sandbox's own key, reaches one.

It speaks `deskhand/desktop/remote/sandbox_api.openapi.yaml`. A sandbox is a lease of a bridge; the guest's port 5000 is the bridge's
OSWorld dialect of that lease. A token has its quota, and where no bridge has a desktop free the answer is 429 with `Retry-After`.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx2
import structlog
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from deskhand.desktop import frame_codec
from deskhand.desktop.remote.sandbox_api import OSWORLD_PORT, REQUEST_ID
from deskhand.errors import ConfigError
from deskhand.server.api_keys import digest, key_from_headers, key_matches, new_key
from deskhand.server.http_errors import HttpError
from deskhand.server.idempotency import ReplyCache
from deskhand.server.json_body import number, object_of
from deskhand.server.request_limits import RequestLimits, SizeLimitedBody

log = structlog.get_logger()
RETRY_S = 5
LONGEST_TTL_S = 24 * 3600.0
SWEEP_S = 1.0
_PASSED_ON = ("content-type", "retry-after")
_FULL = (429, 503)
_GONE = (401, 410)
"""What a bridge answers to the key of a lease that has ended; after a new start it does not know the key."""


@dataclass(frozen=True)
class UpstreamServer:
    """A bridge and its owner's key."""

    address: str
    key: str | None


@dataclass(eq=False)
class _Sandbox:
    id: str
    token: bytes
    """The digest of the token that created it."""
    kept: bytes
    """The digest of its own key."""
    http: httpx2.AsyncClient
    lease: dict[str, Any]
    ttl_s: float
    heard_at: float
    in_use: int = 0
    """Requests that are being passed on."""

    @property
    def root(self) -> str:
        return f"/leases/{self.lease['lease']}"

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.lease['key']}"}


@dataclass(eq=False)
class _Bridge:
    http: httpx2.AsyncClient
    headers: dict[str, str]
    held: int = 0
    silent_until: float = 0.0


@dataclass(eq=False)
class SandboxGatewayServer:
    """`tokens` are the tokens with how many sandboxes each may have at a time (None: no quota). `clock` counts seconds."""

    upstreams: list[UpstreamServer]
    tokens: Mapping[str, int | None]
    clock: Callable[[], float] = time.monotonic
    bounds: RequestLimits = field(default_factory=RequestLimits)
    transport: httpx2.AsyncBaseTransport | None = None

    def __post_init__(self) -> None:
        if not self.upstreams or not self.tokens:
            raise ConfigError("a gateway needs a bridge and a token")
        self._quotas = {digest(token): most for token, most in self.tokens.items()}
        timeout = httpx2.Timeout(330.0, connect=5.0)
        self._bridges = [
            _Bridge(
                httpx2.AsyncClient(base_url=each.address, timeout=timeout, transport=self.transport),
                {"authorization": f"Bearer {each.key}"} if each.key else {},
            )
            for each in self.upstreams
        ]
        self._sandboxes: dict[str, _Sandbox] = {}
        self._pending: dict[bytes, int] = {}
        self._created = ReplyCache()
        self._sweeper: asyncio.Task[None] | None = None

    def app(self) -> ASGIApp:
        one = "/v1/sandboxes/{sandbox}"
        methods = ["GET", "POST", "PUT", "DELETE", "HEAD"]
        routes = [
            Route("/v1/health", self._answer(self._health), methods=["GET"]),
            Route("/v1/sandboxes", self._answer(self._create), methods=["POST"]),
            Route("/v1/sandboxes", self._answer(self._list), methods=["GET"]),
            Route(one, self._answer(self._look), methods=["GET"]),
            Route(one, self._answer(self._delete), methods=["DELETE"]),
            Route(f"{one}/renew", self._answer(self._renew), methods=["POST"]),
            Route(f"{one}/exec", self._answer(self._exec), methods=["POST"]),
            Route(f"{one}/files", self._answer(self._files), methods=["GET", "PUT"]),
            Route(f"{one}/ports/{{port:int}}/{{path:path}}", self._answer(self._port), methods=methods),
        ]
        return SizeLimitedBody(Starlette(routes=routes), self.bounds)

    def _answer(self, handler: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            try:
                return await handler(request)
            except HttpError as refusal:
                return refusal.response()
            except ClientDisconnect:
                return Response(status_code=499)
            except httpx2.TransportError as error:
                log.warning("gateway.bridge_away", error=type(error).__name__)
                sent = not isinstance(error, (httpx2.ConnectError, httpx2.ConnectTimeout))
                return JSONResponse({"error": "the bridge does not answer"}, status_code=502 if sent else 503)
            except Exception:
                log.exception("gateway.failed", path=request.url.path)
                return JSONResponse({"error": "the gateway failed; its log says why"}, status_code=500)

        return answer

    def _token(self, request: Request) -> bytes:
        key = key_from_headers(request.headers)
        found = [kept for kept in self._quotas if key_matches(key, kept)]
        if not key or not found:
            raise HttpError(
                401, "a valid token is needed: Authorization: Bearer <token>", {"www-authenticate": "Bearer"}
            )
        return found[0]

    def _find(self, request: Request) -> _Sandbox:
        """The sandbox of a request that shows the token which created it, or its own key."""
        key = key_from_headers(request.headers)
        sandbox = self._sandboxes.get(request.path_params["sandbox"])
        if sandbox is None:
            self._token(request)
            raise HttpError(410, "there is no such sandbox, or it has ended; create a new one")
        of_token, of_sandbox = key_matches(key, sandbox.token), key_matches(key, sandbox.kept)
        if not key or not (of_token or of_sandbox):
            raise HttpError(
                401, "a valid token is needed: Authorization: Bearer <token>", {"www-authenticate": "Bearer"}
            )
        sandbox.heard_at = self.clock()
        return sandbox

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok", "service": "deskhand gateway"})

    async def _create(self, request: Request) -> Response:
        token = self._token(request)
        body = object_of(await request.body(), {"image", "width", "height", "ttl_s"})
        ttl_s = number(body.get("ttl_s", 120.0), "ttl_s", 1.0, LONGEST_TTL_S)
        size = {
            name: int(number(body[name], name, 16, 8192)) for name in ("width", "height") if body.get(name) is not None
        }
        if self._sweeper is None:
            self._sweeper = asyncio.create_task(self._sweep())

        async def create() -> Response:
            most = self._quotas[token]
            held = sum(each.token == token for each in self._sandboxes.values()) + self._pending.get(token, 0)
            if most is not None and held >= most:
                return _full(f"this token has {held} sandboxes, and may have {most}")
            self._pending[token] = self._pending.get(token, 0) + 1
            try:
                found = await self._lease(size)
            finally:
                self._pending[token] -= 1
            if found is None:
                return _full("no bridge has a desktop free")
            bridge, lease = found
            key = new_key()
            sandbox = _Sandbox(secrets.token_hex(8), token, digest(key), bridge.http, lease, ttl_s, self.clock())
            self._sandboxes[sandbox.id] = sandbox
            bridge.held += 1
            log.info("gateway.created", sandbox=sandbox.id, ttl_s=ttl_s)
            return JSONResponse(_described(sandbox) | {"key": key}, status_code=201)

        name = request.headers.get(REQUEST_ID)
        return await self._created.run_once(f"{token.hex()} {name}" if name else None, create)

    async def _lease(self, size: dict[str, int]) -> tuple[_Bridge, dict[str, Any]] | None:
        """A lease of the bridge that has given the fewest, or of the next; None when none has a desktop now.

        Raises `Refused` (500) when every bridge answers something else: waiting would be in vain.
        """
        wrong: list[int] = []
        for bridge in sorted(self._bridges, key=lambda each: each.held):
            if bridge.silent_until > self.clock():
                continue
            try:
                reply = await bridge.http.post(
                    "/leases", json={"template": size, "wait_s": 0.5}, headers=bridge.headers
                )
            except httpx2.TransportError as error:
                log.warning("gateway.bridge_away", error=type(error).__name__)
                bridge.silent_until = self.clock() + RETRY_S
                continue
            if reply.status_code == 201:
                return bridge, reply.json()
            if reply.status_code == 400:
                raise HttpError(400, str(reply.json().get("error", "")))
            log.info("gateway.bridge_refused", bridge=str(bridge.http.base_url), status=reply.status_code)
            if reply.status_code not in _FULL:
                wrong.append(reply.status_code)
        if len(wrong) == len(self._bridges):
            raise HttpError(
                500, f"every bridge refuses the gateway ({wrong[-1]}); see that it has their key, and its log"
            )
        return None

    async def _list(self, request: Request) -> Response:
        token = self._token(request)
        return JSONResponse(
            {"sandboxes": [_described(each) for each in self._sandboxes.values() if each.token == token]}
        )

    async def _look(self, request: Request) -> Response:
        return JSONResponse(_described(self._find(request)))

    async def _renew(self, request: Request) -> Response:
        sandbox = self._find(request)
        body = object_of(await request.body(), {"ttl_s"})
        sandbox.ttl_s = number(body.get("ttl_s", sandbox.ttl_s), "ttl_s", 1.0, LONGEST_TTL_S)
        reply = await sandbox.http.post(f"{sandbox.root}/renew", headers=sandbox.headers)
        await self._check_there(sandbox, reply)
        if reply.status_code != 200:
            raise HttpError(503, f"its bridge answers {reply.status_code} now; ask again")
        return JSONResponse(_described(sandbox))

    async def _check_there(self, sandbox: _Sandbox, reply: httpx2.Response) -> None:
        """Raises `Refused` (410) when the bridge says that the lease is over."""
        if reply.status_code in _GONE:
            await self._end(sandbox, "its bridge has ended it")
            raise HttpError(410, "its bridge has ended this sandbox; create a new one")

    async def _delete(self, request: Request) -> Response:
        sandbox = self._find(request)
        await self._end(sandbox, "asked for")
        return JSONResponse(_described(sandbox) | {"state": "deleted"})

    async def _exec(self, request: Request) -> Response:
        name = {frame_codec.REQUEST_HEADER: request.headers[REQUEST_ID]} if REQUEST_ID in request.headers else {}
        return await self._pass_on(self._find(request), request, "/desktop/run", name)

    async def _files(self, request: Request) -> Response:
        return await self._pass_on(self._find(request), request, "/desktop/file", {})

    async def _port(self, request: Request) -> Response:
        sandbox = self._find(request)
        if request.path_params["port"] != OSWORLD_PORT:
            raise HttpError(404, f"of the guest's ports only {OSWORLD_PORT} is served here")
        path = request.path_params["path"]
        if any(part in (".", "..") for part in path.split("/")):
            raise HttpError(400, "the path must not lead upwards")
        return await self._pass_on(sandbox, request, f"/osworld/{path}", {})

    async def _pass_on(self, sandbox: _Sandbox, request: Request, path: str, headers: dict[str, str]) -> Response:
        kept = {"content-type": request.headers["content-type"]} if "content-type" in request.headers else {}
        try:
            url = httpx2.URL(sandbox.root + path, query=request.url.query.encode())
        except httpx2.InvalidURL:
            raise HttpError(400, "the path holds characters that no address has") from None
        body = await request.body()
        sandbox.in_use += 1
        try:
            reply = await sandbox.http.request(
                request.method, url, content=body, headers=kept | headers | sandbox.headers
            )
        finally:
            sandbox.in_use -= 1
            sandbox.heard_at = self.clock()
        await self._check_there(sandbox, reply)
        passed = {name: reply.headers[name] for name in _PASSED_ON if name in reply.headers}
        return Response(reply.content, status_code=reply.status_code, headers=passed)

    async def _end(self, sandbox: _Sandbox, reason: str) -> None:
        if self._sandboxes.pop(sandbox.id, None) is None:
            return
        for bridge in self._bridges:
            bridge.held -= bridge.http is sandbox.http
        log.info("gateway.deleted", sandbox=sandbox.id, reason=reason)
        with contextlib.suppress(httpx2.TransportError):  # a bridge that is away ends it by itself
            await sandbox.http.delete(sandbox.root, headers=sandbox.headers)

    async def reclaim(self) -> None:
        """End what was not heard of within its time; what is being asked something is heard of."""
        for sandbox in list(self._sandboxes.values()):
            if not sandbox.in_use and self.clock() - sandbox.heard_at > sandbox.ttl_s:
                await self._end(sandbox, "not renewed")

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            try:
                await self.reclaim()
            except Exception:  # one sandbox that cannot be ended must not keep the others
                log.exception("gateway.not_reclaimed")

    async def close(self) -> None:
        """End every sandbox. Idempotent."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for sandbox in list(self._sandboxes.values()):
            await self._end(sandbox, "the gateway closes")
        for bridge in self._bridges:
            await bridge.http.aclose()


def _described(sandbox: _Sandbox) -> dict[str, Any]:
    size = {"width": sandbox.lease["width"], "height": sandbox.lease["height"]}
    return {"id": sandbox.id, "state": "ready", "ttl_s": sandbox.ttl_s, "ports": [OSWORLD_PORT], **size}


def _full(message: str) -> Response:
    return JSONResponse({"error": message}, status_code=429, headers={"retry-after": str(RETRY_S)})
