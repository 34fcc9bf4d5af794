"""Sandbox gateway: serves `desktop/remote/sandbox_api.openapi.yaml` in front of desktop servers.

Started by `deskhand serve sandboxes`. A sandbox is a lease of a desktop server; port 5000 of its guest is the lease's
OSWorld API. Each token has a quota. If no server has a free desktop, the reply is 429 with `Retry-After`.

Invariant: a sandbox that is not renewed within its TTL is deleted, and only the creating token or the sandbox's own
key reaches it.
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
MAX_TTL_S = 24 * 3600.0
EXPIRY_CHECK_S = 1.0
_FORWARDED_HEADERS = ("content-type", "retry-after")
_QUOTA_STATUS = (429, 503)
_LEASE_LOST_STATUS = (401, 410)
"""Replies of a desktop server to the key of a released lease; a restarted server does not know the key."""


@dataclass(frozen=True)
class UpstreamServer:
    """A desktop server and its admin key."""

    base_url: str
    admin_key: str | None


@dataclass(eq=False)
class _Sandbox:
    id: str
    token_digest: bytes
    """Digest of the token that created it."""
    key_digest: bytes
    """Digest of its own key."""
    http: httpx2.AsyncClient
    lease: dict[str, Any]
    ttl_s: float
    last_used: float
    num_requests: int = 0
    """Requests in progress."""

    @property
    def root(self) -> str:
        return f"/leases/{self.lease['lease']}"

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.lease['key']}"}


@dataclass(eq=False)
class _Upstream:
    http: httpx2.AsyncClient
    headers: dict[str, str]
    num_sandboxes: int = 0
    unreachable_until: float = 0.0


@dataclass(eq=False)
class SandboxGatewayServer:
    """The gateway. `tokens` maps tokens to their maximum number of sandboxes (None: unlimited)."""

    upstreams: list[UpstreamServer]
    tokens: Mapping[str, int | None]
    clock: Callable[[], float] = time.monotonic
    limits: RequestLimits = field(default_factory=RequestLimits)
    transport: httpx2.AsyncBaseTransport | None = None

    def __post_init__(self) -> None:
        if not self.upstreams or not self.tokens:
            raise ConfigError("the sandbox gateway needs at least one desktop server and one token")
        self._quotas = {digest(token): quota for token, quota in self.tokens.items()}
        timeout = httpx2.Timeout(330.0, connect=5.0)
        self._upstreams = [
            _Upstream(
                httpx2.AsyncClient(base_url=each.base_url, timeout=timeout, transport=self.transport),
                {"authorization": f"Bearer {each.admin_key}"} if each.admin_key else {},
            )
            for each in self.upstreams
        ]
        self._sandboxes: dict[str, _Sandbox] = {}
        self._num_pending: dict[bytes, int] = {}
        self._replies = ReplyCache()
        self._expiry_task: asyncio.Task[None] | None = None

    def app(self) -> ASGIApp:
        sandbox = "/v1/sandboxes/{sandbox}"
        methods = ["GET", "POST", "PUT", "DELETE", "HEAD"]
        routes = [
            Route("/v1/health", self._handle_errors(self._health), methods=["GET"]),
            Route("/v1/sandboxes", self._handle_errors(self._create), methods=["POST"]),
            Route("/v1/sandboxes", self._handle_errors(self._list), methods=["GET"]),
            Route(sandbox, self._handle_errors(self._get), methods=["GET"]),
            Route(sandbox, self._handle_errors(self._delete), methods=["DELETE"]),
            Route(f"{sandbox}/renew", self._handle_errors(self._renew), methods=["POST"]),
            Route(f"{sandbox}/exec", self._handle_errors(self._exec), methods=["POST"]),
            Route(f"{sandbox}/files", self._handle_errors(self._files), methods=["GET", "PUT"]),
            Route(f"{sandbox}/ports/{{port:int}}/{{path:path}}", self._handle_errors(self._port), methods=methods),
        ]
        return SizeLimitedBody(Starlette(routes=routes), self.limits)

    def _handle_errors(
        self, handler: Callable[[Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            try:
                return await handler(request)
            except HttpError as error:
                return error.response()
            except ClientDisconnect:
                return Response(status_code=499)
            except httpx2.TransportError as error:
                log.warning("sandboxes.upstream_unreachable", error=type(error).__name__)
                was_sent = not isinstance(error, (httpx2.ConnectError, httpx2.ConnectTimeout))
                return JSONResponse(
                    {"error": "the desktop server does not respond"}, status_code=502 if was_sent else 503
                )
            except Exception:
                log.exception("sandboxes.request_failed", path=request.url.path)
                return JSONResponse({"error": "internal gateway error; see the gateway log"}, status_code=500)

        return handle

    def _token(self, request: Request) -> bytes:
        key = key_from_headers(request.headers)
        found = [expected for expected in self._quotas if key_matches(key, expected)]
        if not key or not found:
            raise _unauthorized()
        return found[0]

    def _find(self, request: Request) -> _Sandbox:
        """Return the sandbox of a request that has its key, or the token that created it."""
        key = key_from_headers(request.headers)
        sandbox = self._sandboxes.get(request.path_params["sandbox"])
        if sandbox is None:
            self._token(request)
            raise HttpError(410, "unknown or deleted sandbox; create a new one")
        is_creator, is_holder = key_matches(key, sandbox.token_digest), key_matches(key, sandbox.key_digest)
        if not key or not (is_creator or is_holder):
            raise _unauthorized()
        sandbox.last_used = self.clock()
        return sandbox

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok", "service": "deskhand gateway"})

    async def _create(self, request: Request) -> Response:
        token = self._token(request)
        body = object_of(await request.body(), {"image", "width", "height", "ttl_s"})
        ttl_s = number(body.get("ttl_s", 120.0), "ttl_s", 1.0, MAX_TTL_S)
        size = {
            name: int(number(body[name], name, 16, 8192)) for name in ("width", "height") if body.get(name) is not None
        }
        if self._expiry_task is None:
            self._expiry_task = asyncio.create_task(self._expire_periodically())

        async def create() -> Response:
            quota = self._quotas[token]
            used = sum(each.token_digest == token for each in self._sandboxes.values()) + self._num_pending.get(
                token, 0
            )
            if quota is not None and used >= quota:
                return _quota_reply(f"this token has {used} of at most {quota} sandboxes")
            self._num_pending[token] = self._num_pending.get(token, 0) + 1
            try:
                found = await self._acquire(size)
            finally:
                self._num_pending[token] -= 1
            if found is None:
                return _quota_reply("no free desktop")
            upstream, lease = found
            key = new_key()
            sandbox = _Sandbox(secrets.token_hex(8), token, digest(key), upstream.http, lease, ttl_s, self.clock())
            self._sandboxes[sandbox.id] = sandbox
            upstream.num_sandboxes += 1
            log.info("sandboxes.created", sandbox=sandbox.id, ttl_s=ttl_s)
            return JSONResponse(_sandbox_to_json(sandbox) | {"key": key}, status_code=201)

        request_id = request.headers.get(REQUEST_ID)
        return await self._replies.run_once(f"{token.hex()} {request_id}" if request_id else None, create)

    async def _acquire(self, size: dict[str, int]) -> tuple[_Upstream, dict[str, Any]] | None:
        """Return a lease of the least used server that has a free desktop; None if there is none.

        Raises `HttpError` (500) if every server fails with another status: waiting would not help.
        """
        errors: list[int] = []
        for upstream in sorted(self._upstreams, key=lambda each: each.num_sandboxes):
            if upstream.unreachable_until > self.clock():
                continue
            try:
                reply = await upstream.http.post(
                    "/leases", json={"template": size, "wait_s": 0.5}, headers=upstream.headers
                )
            except httpx2.TransportError as error:
                log.warning("sandboxes.upstream_unreachable", error=type(error).__name__)
                upstream.unreachable_until = self.clock() + RETRY_S
                continue
            if reply.status_code == 201:
                return upstream, reply.json()
            if reply.status_code == 400:
                raise HttpError(400, str(reply.json().get("error", "")))
            log.info("sandboxes.upstream_rejected", server=str(upstream.http.base_url), status=reply.status_code)
            if reply.status_code not in _QUOTA_STATUS:
                errors.append(reply.status_code)
        if len(errors) == len(self._upstreams):
            raise HttpError(
                500,
                f"all desktop servers rejected the gateway's API key ({errors[-1]}); check the key and the gateway log",
            )
        return None

    async def _list(self, request: Request) -> Response:
        token = self._token(request)
        return JSONResponse(
            {"sandboxes": [_sandbox_to_json(each) for each in self._sandboxes.values() if each.token_digest == token]}
        )

    async def _get(self, request: Request) -> Response:
        return JSONResponse(_sandbox_to_json(self._find(request)))

    async def _renew(self, request: Request) -> Response:
        sandbox = self._find(request)
        body = object_of(await request.body(), {"ttl_s"})
        sandbox.ttl_s = number(body.get("ttl_s", sandbox.ttl_s), "ttl_s", 1.0, MAX_TTL_S)
        reply = await sandbox.http.post(f"{sandbox.root}/renew", headers=sandbox.headers)
        await self._check_lease(sandbox, reply)
        if reply.status_code != 200:
            raise HttpError(503, f"the desktop server replied {reply.status_code}; retry")
        return JSONResponse(_sandbox_to_json(sandbox))

    async def _check_lease(self, sandbox: _Sandbox, reply: httpx2.Response) -> None:
        """Raise `HttpError` (410) if the desktop server has released the lease."""
        if reply.status_code in _LEASE_LOST_STATUS:
            await self._delete_sandbox(sandbox, "lease lost")
            raise HttpError(410, "the desktop server has released this sandbox; create a new one")

    async def _delete(self, request: Request) -> Response:
        sandbox = self._find(request)
        await self._delete_sandbox(sandbox, "requested")
        return JSONResponse(_sandbox_to_json(sandbox) | {"state": "deleted"})

    async def _exec(self, request: Request) -> Response:
        headers = {frame_codec.REQUEST_HEADER: request.headers[REQUEST_ID]} if REQUEST_ID in request.headers else {}
        return await self._forward(self._find(request), request, "/desktop/run", headers)

    async def _files(self, request: Request) -> Response:
        return await self._forward(self._find(request), request, "/desktop/file", {})

    async def _port(self, request: Request) -> Response:
        sandbox = self._find(request)
        if request.path_params["port"] != OSWORLD_PORT:
            raise HttpError(404, f"only guest port {OSWORLD_PORT} is served")
        path = request.path_params["path"]
        if any(part in (".", "..") for part in path.split("/")):
            raise HttpError(400, "the path must not contain . or .. segments")
        return await self._forward(sandbox, request, f"/osworld/{path}", {})

    async def _forward(self, sandbox: _Sandbox, request: Request, path: str, headers: dict[str, str]) -> Response:
        content_type = {"content-type": request.headers["content-type"]} if "content-type" in request.headers else {}
        try:
            url = httpx2.URL(sandbox.root + path, query=request.url.query.encode())
        except httpx2.InvalidURL:
            raise HttpError(400, "the path contains characters that are invalid in a URL") from None
        body = await request.body()
        sandbox.num_requests += 1
        try:
            reply = await sandbox.http.request(
                request.method, url, content=body, headers=content_type | headers | sandbox.headers
            )
        finally:
            sandbox.num_requests -= 1
            sandbox.last_used = self.clock()
        await self._check_lease(sandbox, reply)
        reply_headers = {name: reply.headers[name] for name in _FORWARDED_HEADERS if name in reply.headers}
        return Response(reply.content, status_code=reply.status_code, headers=reply_headers)

    async def _delete_sandbox(self, sandbox: _Sandbox, reason: str) -> None:
        if self._sandboxes.pop(sandbox.id, None) is None:
            return
        for upstream in self._upstreams:
            upstream.num_sandboxes -= upstream.http is sandbox.http
        log.info("sandboxes.deleted", sandbox=sandbox.id, reason=reason)
        with contextlib.suppress(httpx2.TransportError):  # an unreachable server expires the lease itself
            await sandbox.http.delete(sandbox.root, headers=sandbox.headers)

    async def expire(self) -> None:
        """Delete sandboxes that were not used within their TTL; a request in progress counts as use."""
        for sandbox in list(self._sandboxes.values()):
            if not sandbox.num_requests and self.clock() - sandbox.last_used > sandbox.ttl_s:
                await self._delete_sandbox(sandbox, "not renewed")

    async def _expire_periodically(self) -> None:
        while True:
            await asyncio.sleep(EXPIRY_CHECK_S)
            try:
                await self.expire()
            except Exception:  # one sandbox that cannot be deleted must not block the others
                log.exception("sandboxes.expiry_failed")

    async def close(self) -> None:
        """Delete every sandbox. Idempotent."""
        if self._expiry_task is not None:
            self._expiry_task.cancel()
            self._expiry_task = None
        for sandbox in list(self._sandboxes.values()):
            await self._delete_sandbox(sandbox, "the gateway is shutting down")
        for upstream in self._upstreams:
            await upstream.http.aclose()


def _sandbox_to_json(sandbox: _Sandbox) -> dict[str, Any]:
    size = {"width": sandbox.lease["width"], "height": sandbox.lease["height"]}
    return {"id": sandbox.id, "state": "ready", "ttl_s": sandbox.ttl_s, "ports": [OSWORLD_PORT], **size}


def _unauthorized() -> HttpError:
    message = "missing or invalid token; send Authorization: Bearer <token>"
    return HttpError(401, message, {"www-authenticate": "Bearer"})


def _quota_reply(message: str) -> Response:
    return JSONResponse({"error": message}, status_code=429, headers={"retry-after": str(RETRY_S)})
