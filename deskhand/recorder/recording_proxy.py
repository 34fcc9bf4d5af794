"""Recording proxy in front of any model server. Used by `recipes.record`; start with `create_proxy_app`.

```
<folder>/images/<2 hex>/<sha256>            as in `recorder.session_store`
<folder>/sessions/<name>/exchanges.jsonl    a header, then one line per exchange or reward; images are named by hash
```

All paths are forwarded; requests to chat completions, messages and responses are recorded. Agents authenticate with a
session key of the proxy; the upstream's key never leaves it. With `ask_token_ids`, chat requests also request token ids
and log-probs (vLLM's `return_token_ids`), the only change to a body.

Invariant: requests and replies are forwarded unchanged, and a reply only after both are on disk. Streamed replies are
therefore sent when complete.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from deskhand.errors import ConfigError, InfrastructureError, RecordError
from deskhand.recorder import append_log
from deskhand.recorder.exchanges import api_of, assemble_stream
from deskhand.recorder.http_common import (
    RequestAuth,
    anthropic_error,
    error_handling_route,
    openai_error,
    parse,
    parse_object,
    read_body,
    session_routes,
)
from deskhand.recorder.image_decoding import decode_rgb, pixels_sha256, read_data_uri
from deskhand.recorder.images import IMAGE, REMEMBERED
from deskhand.recorder.messages import ImagePart
from deskhand.recorder.request_errors import InvalidRequestError
from deskhand.recorder.session_store import SessionStore
from deskhand.recorder.sessions import Session, SessionAccess, SessionRegistry

FORMAT = 2
_DATA_URI = re.compile(r"data:image/[a-z]+;base64,", re.IGNORECASE)
_MAX_PIXELS = 4096 * 4096
_FORWARDED = ("content-type", "accept", "anthropic-version", "anthropic-beta", "user-agent", "openai-beta")
_RETURNED = ("content-type", "request-id", "x-request-id", "retry-after", "x-should-retry")
_LOCAL = ("localhost", "127.0.0.1", "::1")


class StoredImages:
    """Stores the images of requests as received, named by their pixels."""

    def __init__(self, folder: SessionStore) -> None:
        self._folder = folder
        self._names: dict[bytes, str] = {}

    def add_data_uri(self, url: str, *, param: str = "image_url.url") -> ImagePart:
        """Store an image and return its name. Raises `InvalidRequestError` if it cannot be read."""
        if url.startswith(IMAGE):
            return ImagePart(url.removeprefix(IMAGE))
        digest = hashlib.sha256(url.encode("utf-8", "surrogatepass")).digest()
        if digest not in self._names:
            encoded = read_data_uri(url, param)
            name = pixels_sha256(decode_rgb(encoded, max_pixels=_MAX_PIXELS, param=param))
            self._folder.save_image(name, encoded)
            if len(self._names) >= REMEMBERED:
                self._names.clear()
            self._names[digest] = name
        return ImagePart(self._names[digest])


class ExchangeLog:
    """Exchange files of the sessions in a store. `append` flushes to disk as the store does; call it off the event
    loop."""

    def __init__(self, folder: SessionStore) -> None:
        self._folder = folder
        self._lock = threading.Lock()

    def append(self, session_id: str, line: Mapping[str, Any]) -> None:
        """Append a line to a session."""
        with self._lock:
            path = self._path(session_id)
            path.parent.mkdir(exist_ok=True)
            durable = self._folder.durable
            file = append_log.open_again(path)
            try:
                if os.fstat(file).st_size == 0:
                    append_log.append(file, _line({"format": FORMAT, "session_id": session_id}), durable=durable)
                    if durable:
                        append_log.sync_folder(path.parent)
                append_log.append(file, _line(line), durable=durable)
            finally:
                os.close(file)

    def read(self, session_id: str) -> Iterator[dict[str, Any]]:
        """Yield the complete lines of a session after its header. Raises `RecordError` for another format."""
        path = self._path(session_id)
        if path.exists():
            head, *lines = path.read_bytes().split(b"\n")[:-1] or [b""]
            found = json.loads(head).get("format") if head else FORMAT
            if found != FORMAT:
                raise RecordError(
                    "format", f"{path}: exchange format {found}, this version reads format {FORMAT}; record again"
                )
            yield from map(json.loads, lines)

    def sessions(self) -> list[str]:
        """Return the ids of the sessions that have exchanges."""
        found = []
        for path in sorted((self._folder.folder / "sessions").glob("*/exchanges.jsonl")):
            with path.open("rb") as file:
                head = file.readline()
            if head.endswith(b"\n"):
                found.append(json.loads(head)["session_id"])
        return found

    def _path(self, session_id: str) -> Path:
        return self._folder.session_folder(session_id) / "exchanges.jsonl"


def check_upstream(url: str) -> str:
    """Return the host of an upstream URL. Raises `ConfigError` if it is invalid or has credentials or parameters."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # invalid brackets or port
        parts, port = urlsplit(""), None
    extra = parts.query or parts.fragment or parts.username or parts.password
    if parts.scheme in ("http", "https") and parts.hostname and port != 0 and not extra:
        return parts.hostname
    raise ConfigError("upstream: expected a URL such as http://127.0.0.1:8000/v1 without credentials or parameters")


class RecordingProxy:
    """Forwards requests to `upstream` (a URL that may end in `/v1`) with `upstream_key`, and records them. Proxy
    settings of the environment are ignored for an upstream on this machine. `close` closes the connections."""

    def __init__(
        self,
        upstream: str,
        folder: SessionStore,
        *,
        upstream_key: str = "",
        ask_token_ids: bool = False,
        timeout_s: float = 600.0,
    ) -> None:
        host = check_upstream(upstream)
        self.upstream = upstream.rstrip("/").removesuffix("/v1")
        self.sessions, self.log, self.images = SessionRegistry(), ExchangeLog(folder), StoredImages(folder)
        self.recorded = 0
        """Number of exchanges on disk."""
        self._key, self._ask_token_ids = upstream_key, ask_token_ids
        self._client = httpx2.AsyncClient(timeout=timeout_s, trust_env=host not in _LOCAL)

    async def forward(
        self, access: SessionAccess, method: str, path: str, headers: Mapping[str, str], raw: bytes
    ) -> Response:
        """Send a request upstream, record it if it belongs to a known API, and return the reply. Raises
        `InvalidRequestError` if the body is not a JSON object, `InfrastructureError` if upstream or disk failed."""
        api = api_of(path) if method == "POST" else None
        request = await asyncio.to_thread(parse_object, raw) if api else None
        if api == "chat" and self._ask_token_ids and request is not None:
            request |= {"return_token_ids": True, "logprobs": True}
            raw = json.dumps(request, ensure_ascii=False).encode()
        access.session.check_open()
        started_at, started = time.time(), time.monotonic()
        access.session.in_flight += 1
        try:
            reply = await self._client.request(
                method, self.upstream + path, headers=self._headers(headers, api), content=raw
            )
        except httpx2.HTTPError as error:
            raise InfrastructureError(f"upstream {self.upstream}: {type(error).__name__}: {error}") from error
        finally:
            access.session.in_flight -= 1
        if api and reply.is_success and request is not None:
            access.session.requests += 1
            name = f"{access.session.id}.{access.session.requests}"
            entry = {
                "id": name,
                "api": api,
                "agent": access.agent,
                "started_at": started_at,
                "duration_s": round(time.monotonic() - started, 3),
                "request": request,
            }
            await self._record(access.session, entry, reply)
        returned = {name: value for name, value in reply.headers.items() if name in _RETURNED}
        return Response(self._without_key(reply), status_code=reply.status_code, headers=returned)

    def _without_key(self, reply: httpx2.Response) -> bytes:
        """Return the body; providers may quote the key in their errors, as it is or escaped for JSON."""
        if not self._key or reply.is_success:
            return reply.content
        body = reply.content
        escaped = json.dumps(self._key)[1:-1]
        for quoted in (self._key, escaped, escaped.replace("/", "\\/")):
            body = body.replace(quoted.encode(), b"***")
        return body

    async def _record(self, session: Session, entry: dict[str, Any], reply: httpx2.Response) -> None:
        def write() -> None:
            streamed = reply.headers.get("content-type", "").startswith("text/event-stream")
            try:
                entry["reply"] = assemble_stream(entry["api"], reply.content) if streamed else parse(reply.content)
            except Exception as error:  # an upstream may send anything; unreadable replies are stored raw
                entry["error"] = f"{type(error).__name__}: {str(error)[:300]}"
                entry["raw"] = reply.content.decode("utf-8", "replace")
            entry["request"] = without_images(entry["request"], self.images)
            self.log.append(session.id, {"exchange": entry})

        async with session.lock:
            session.check_open()
            try:
                await asyncio.to_thread(write)
            except OSError as error:
                raise InfrastructureError(f"session {session.id}: cannot be stored ({error})") from error
        session.calls.append(entry["id"])
        self.recorded += 1

    async def reward(self, session: Session, reward: float, call_id: str | None, *, whole: bool) -> str | None:
        """Like `Recorder.reward`, for exchanges."""
        async with session.lock:
            if whole:
                session.rewards.set_episode(reward)
            else:
                call_id = session.rewards.set_call(session.calls, reward, call_id)
            await asyncio.to_thread(self.log.append, session.id, {"reward": {"reward": reward, "call_id": call_id}})
        return call_id

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    def _headers(self, received: Mapping[str, str], api: str | None) -> dict[str, str]:
        headers = {name: received[name] for name in _FORWARDED if name in received}
        if self._key:
            headers["authorization"] = f"Bearer {self._key}"
            if api == "messages":
                headers["x-api-key"] = self._key
        return headers


def without_images(value: Any, images: StoredImages) -> Any:
    """Return JSON with each readable image stored and replaced by its name."""
    if isinstance(value, str) and _DATA_URI.match(value):
        try:
            return IMAGE + images.add_data_uri(value).sha256
        except InvalidRequestError:
            return value
    if isinstance(value, list):
        return [without_images(one, images) for one in value]
    if not isinstance(value, dict):
        return value
    if value.get("type") == "base64" and isinstance(value.get("data"), str):
        url = without_images(f"data:{value.get('media_type')};base64,{value['data']}", images)
        if url.startswith(IMAGE):
            return {"type": "url", "url": url}
    return {name: without_images(one, images) for name, one in value.items()}


def create_proxy_app(relay: RecordingProxy, admin_key: str, *, max_body_bytes: int = 256 << 20) -> Starlette:
    """Build the application: the session routes of `recorder.server`; other paths are forwarded for a session key."""
    keys = RequestAuth(relay.sessions, admin_key)

    async def end(request: Request) -> Response:
        keys.require_admin(request)
        session_id = request.path_params["session_id"]
        async with relay.sessions.get(session_id).lock:  # wait for exchanges that are being written
            session = relay.sessions.close(session_id)
        return JSONResponse(
            {"session_id": session.id, "exchanges": session.calls, "rewards": session.rewards.to_dict()}
        )

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok", "recorded": relay.recorded})

    async def other(request: Request) -> Response:
        access = keys.access(request)
        raw = await read_body(request, max_body_bytes)
        path = request.url.path
        path = path if path.startswith("/v1/") else f"/v1{path}"
        return await relay.forward(access, request.method, path, request.headers, raw)

    async def any_path(request: Request) -> Response:
        body = anthropic_error if api_of(request.url.path) == "messages" else openai_error
        return await error_handling_route(other, body)(request)

    return Starlette(
        routes=[
            Route("/health", health),
            *session_routes(keys, relay.sessions.open, relay.reward),
            Route("/sessions/{session_id:path}/end", error_handling_route(end), methods=["POST"]),
            Route("/{path:path}", any_path, methods=["GET", "POST"]),
        ]
    )


def _line(data: Mapping[str, Any]) -> bytes:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass") + b"\n"
