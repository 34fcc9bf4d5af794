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
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx2
import structlog
from pydantic import Field
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from deskhand.desktop import frame_codec
from deskhand.desktop.remote.http_connection import open_http
from deskhand.desktop.remote.replies import ForeignReply, SandboxReply, error_object, is_json_object, json_reply
from deskhand.desktop.remote.sandbox_api import OSWORLD_PORT, REQUEST_ID
from deskhand.desktop.remote.waa_server import EVALUATOR_PORT
from deskhand.errors import ConfigError
from deskhand.server.api_keys import digest, key_from_headers, key_matches, new_key
from deskhand.server.http_errors import HttpError, reply_errors, unauthorized
from deskhand.server.idempotency import ReplyCache
from deskhand.server.json_body import JsonBody
from deskhand.server.request_limits import RequestLimits, SizeLimitedBody

log = structlog.get_logger()
RETRY_S = 5
MAX_TTL_S = 24 * 3600.0
EXPIRY_CHECK_S = 1.0
_PORTS = {OSWORLD_PORT: "osworld", EVALUATOR_PORT: "evaluator"}
"""Where a desktop server has what a sandbox shows at a port."""
_FORWARDED_HEADERS = ("content-type", "retry-after")
_QUOTA_STATUS = (429, 503)
_LEASE_LOST_STATUS = (401, 410)
"""Replies of a desktop server to the key of a released lease; a restarted server does not know the key."""


class _CreateBody(JsonBody):
    image: str | None = None
    width: int | None = Field(None, ge=16, le=8192)
    height: int | None = Field(None, ge=16, le=8192)
    ttl_s: float = Field(120.0, ge=1, le=MAX_TTL_S)


class _RenewBody(JsonBody):
    ttl_s: float | None = Field(None, ge=1, le=MAX_TTL_S)


@dataclass(eq=False)
class UpstreamServer:
    """A desktop server and its admin key."""

    base_url: str
    admin_key: str | None = field(repr=False)
    num_sandboxes: int = field(default=0, init=False)
    unreachable_until: float = field(default=0.0, init=False)
    http: httpx2.AsyncClient = field(init=False, repr=False)

    def connect(self, transport: httpx2.AsyncBaseTransport | None) -> None:
        headers = {"authorization": f"Bearer {self.admin_key}"} if self.admin_key else {}
        timeout = httpx2.Timeout(330.0, connect=5.0)
        self.http = open_http(self.base_url, transport, headers=headers, timeout=timeout)


@dataclass(eq=False)
class _Sandbox:
    id: str
    token_digest: bytes
    """Digest of the token that created it."""
    key_digest: bytes
    """Digest of its own key."""
    upstream: UpstreamServer
    lease: SandboxReply = field(repr=False)
    ttl_s: float
    last_used: float
    num_requests: int = 0
    """Requests in progress."""

    async def send(
        self, method: str, path: str, *, headers: dict[str, str] | None = None, query: str = "", content: bytes = b""
    ) -> httpx2.Response:
        """Return the desktop server's reply to a request about the lease."""
        try:
            url = httpx2.URL(f"/leases/{self.lease.id}{path}", query=query.encode())
        except httpx2.InvalidURL:
            raise HttpError(400, "the path contains characters that are invalid in a URL") from None
        if self.lease.key is not None:
            headers = (headers or {}) | {"authorization": f"Bearer {self.lease.key}"}
        return await self.upstream.http.request(method, url, content=content, headers=headers)


@dataclass(eq=False)
class SandboxGatewayServer:
    """The gateway. `tokens` maps tokens to their maximum number of sandboxes (None: unlimited)."""

    upstreams: list[UpstreamServer]
    tokens: Mapping[str, int | None] = field(repr=False)
    clock: Callable[[], float] = time.monotonic
    limits: RequestLimits = field(default_factory=RequestLimits)
    transport: httpx2.AsyncBaseTransport | None = None

    def __post_init__(self) -> None:
        if not self.upstreams or not self.tokens:
            raise ConfigError("the sandbox gateway needs at least one desktop server and one token")
        self._quotas = {digest(token): quota for token, quota in self.tokens.items()}
        for upstream in self.upstreams:
            upstream.connect(self.transport)
        self._sandboxes: dict[str, _Sandbox] = {}
        self._num_pending: Counter[bytes] = Counter()
        self._replies = ReplyCache()
        self._expiry_task: asyncio.Task[None] | None = None

    def app(self) -> ASGIApp:
        sandboxes, sandbox = "/v1/sandboxes", "/v1/sandboxes/{sandbox}"
        table = (
            ("/v1/health", self._health, ["GET"]),
            (sandboxes, self._create, ["POST"]),
            (sandboxes, self._list, ["GET"]),
            (sandbox, self._get, ["GET"]),
            (sandbox, self._delete, ["DELETE"]),
            (f"{sandbox}/renew", self._renew, ["POST"]),
            (f"{sandbox}/exec", self._exec, ["POST"]),
            (f"{sandbox}/files", self._files, ["GET", "PUT"]),
            (f"{sandbox}/ports/{{port:int}}/{{path:path}}", self._port, ["GET", "POST", "PUT", "DELETE", "HEAD"]),
        )
        routes = [Route(path, reply_errors(handler, _outage_reply), methods=names) for path, handler, names in table]
        return SizeLimitedBody(Starlette(routes=routes), self.limits)

    def _token(self, request: Request) -> bytes:
        key = key_from_headers(request.headers)
        found = [expected for expected in self._quotas if key_matches(key, expected)]
        if not key or not found:
            raise unauthorized("token")
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
            raise unauthorized("token")
        sandbox.last_used = self.clock()
        return sandbox

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok", "service": "deskhand gateway"})

    async def _create(self, request: Request) -> Response:
        token = self._token(request)
        body = _CreateBody.parse(await request.body())
        ttl_s, size = body.ttl_s, body.model_dump(include={"width", "height"}, exclude_none=True)
        if self._expiry_task is None:
            self._expiry_task = asyncio.create_task(self._expire_periodically())

        async def create() -> Response:
            quota = self._quotas[token]
            used = sum(each.token_digest == token for each in self._sandboxes.values()) + self._num_pending[token]
            if quota is not None and used >= quota:
                return _quota_reply(f"this token has {used} of at most {quota} sandboxes")
            self._num_pending[token] += 1
            try:
                found = await self._acquire(size)
            finally:
                self._num_pending[token] -= 1
            if found is None:
                return _quota_reply("no free desktop")
            upstream, lease = found
            key = new_key()
            sandbox = _Sandbox(secrets.token_hex(8), token, digest(key), upstream, lease, ttl_s, self.clock())
            self._sandboxes[sandbox.id] = sandbox
            upstream.num_sandboxes += 1
            log.info("sandboxes.created", sandbox=sandbox.id, ttl_s=ttl_s)
            return JSONResponse(_sandbox_to_json(sandbox) | {"key": key}, status_code=201)

        request_id = request.headers.get(REQUEST_ID)
        return await self._replies.run_once(f"{token.hex()} {request_id}" if request_id else None, create)

    async def _acquire(self, size: dict[str, int]) -> tuple[UpstreamServer, SandboxReply] | None:
        """Return a lease of the least used server that has a free desktop; None if there is none.

        Raises `HttpError` (500) if every server fails with another status: waiting would not help.
        """
        errors: list[int] = []
        for upstream in sorted(self.upstreams, key=lambda each: each.num_sandboxes):
            if upstream.unreachable_until > self.clock():
                continue
            try:
                reply = await upstream.http.post("/leases", json={"spec": size, "wait_s": 0.5})
                if reply.status_code == 201:
                    return upstream, json_reply(reply, SandboxReply)
                body = error_object(reply)
            except (httpx2.TransportError, ForeignReply) as error:  # a proxy's page means that the server is away
                log.warning("sandboxes.upstream_unreachable", error=f"{type(error).__name__} {error}"[:200])
                upstream.unreachable_until = self.clock() + RETRY_S
                continue
            if reply.status_code == 400:
                raise HttpError(400, body["error"])
            log.info("sandboxes.upstream_rejected", server=upstream.base_url, status=reply.status_code)
            if reply.status_code not in _QUOTA_STATUS:
                errors.append(reply.status_code)
        if len(errors) == len(self.upstreams):
            message = f"all desktop servers rejected the gateway's API key ({errors[-1]}); check the key and the log"
            raise HttpError(500, message)
        return None

    async def _list(self, request: Request) -> Response:
        token = self._token(request)
        found = [_sandbox_to_json(each) for each in self._sandboxes.values() if each.token_digest == token]
        return JSONResponse({"sandboxes": found})

    async def _get(self, request: Request) -> Response:
        return JSONResponse(_sandbox_to_json(self._find(request)))

    async def _renew(self, request: Request) -> Response:
        sandbox = self._find(request)
        sandbox.ttl_s = _RenewBody.parse(await request.body()).ttl_s or sandbox.ttl_s
        reply = await sandbox.send("POST", "/renew")
        await self._check_lease(sandbox, reply)
        if reply.status_code != 200 or not is_json_object(reply):
            raise HttpError(503, f"the desktop server replied {reply.status_code}; retry")
        return JSONResponse(_sandbox_to_json(sandbox))

    async def _check_lease(self, sandbox: _Sandbox, reply: httpx2.Response) -> None:
        """Raise `HttpError` (410) if the desktop server has released the lease. A proxy's page does not say so."""
        if reply.status_code in _LEASE_LOST_STATUS and is_json_object(reply):
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
        if (below := _PORTS.get(request.path_params["port"])) is None:
            raise HttpError(404, f"only guest ports {' and '.join(map(str, _PORTS))} are served")
        path = request.path_params["path"]
        if any(part in (".", "..") for part in path.split("/")):
            raise HttpError(400, "the path must not contain . or .. segments")
        return await self._forward(sandbox, request, f"/{below}/{path}", {})

    async def _forward(self, sandbox: _Sandbox, request: Request, path: str, headers: dict[str, str]) -> Response:
        if "content-type" in request.headers:
            headers = headers | {"content-type": request.headers["content-type"]}
        content = await request.body()
        sandbox.num_requests += 1
        try:
            reply = await sandbox.send(request.method, path, headers=headers, query=request.url.query, content=content)
        finally:
            sandbox.num_requests -= 1
            sandbox.last_used = self.clock()
        await self._check_lease(sandbox, reply)
        reply_headers = {name: reply.headers[name] for name in _FORWARDED_HEADERS if name in reply.headers}
        return Response(reply.content, status_code=reply.status_code, headers=reply_headers)

    async def _delete_sandbox(self, sandbox: _Sandbox, reason: str) -> None:
        if self._sandboxes.pop(sandbox.id, None) is None:
            return
        sandbox.upstream.num_sandboxes -= 1
        log.info("sandboxes.deleted", sandbox=sandbox.id, reason=reason)
        with contextlib.suppress(httpx2.TransportError):  # an unreachable server expires the lease itself
            await sandbox.send("DELETE", "")

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
        for upstream in self.upstreams:
            await upstream.http.aclose()


def _sandbox_to_json(sandbox: _Sandbox) -> dict[str, Any]:
    size = {"width": sandbox.lease.width, "height": sandbox.lease.height}
    return {"id": sandbox.id, "state": "ready", "ttl_s": sandbox.ttl_s, "ports": [OSWORLD_PORT], **size}


def _outage_reply(error: Exception) -> Response | None:
    if not isinstance(error, httpx2.TransportError):
        return None
    log.warning("sandboxes.upstream_unreachable", error=type(error).__name__)
    was_sent = not isinstance(error, (httpx2.ConnectError, httpx2.ConnectTimeout))
    return JSONResponse({"error": "the desktop server does not respond"}, status_code=502 if was_sent else 503)


def _quota_reply(message: str) -> Response:
    return JSONResponse({"error": message}, status_code=429, headers={"retry-after": str(RETRY_S)})
