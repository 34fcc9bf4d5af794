"""A relay in front of any engine. Invariant: what an agent sends reaches the upstream as it was sent, but for the key; what comes
back reaches the agent as it came, but only when both are on disk.

```
<folder>/images/<2 hex>/<sha256>            as of `files`
<folder>/sessions/<name>/exchanges.jsonl    a head, then one line per exchange or reward; images are named by their hashes
```

Any path is passed on; requests to chat completions, messages and responses are recorded. A streamed reply is passed on when it has
ended, so that it is on disk first. The agent's key is one of the relay's own; the upstream's never leaves the relay. With
`ask_token_ids` chat requests ask for token ids and log-probs besides (vLLM's `return_token_ids`): that is the only change made.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import secrets
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

from deskhand.errors import ConfigError, InfrastructureError
from deskhand.recorder import append_log
from deskhand.recorder.apis import validation
from deskhand.recorder.exchanges import api_of, assembled
from deskhand.recorder.http_common import (
    RequestAuth,
    anthropic_error,
    error_handling_route,
    openai_error,
    parse,
    read_body,
    read_small_json,
)
from deskhand.recorder.images import REMEMBERED, decode_rgb, pixels_sha256, read_data_uri
from deskhand.recorder.messages import ImagePart
from deskhand.recorder.request_errors import InvalidRequestError
from deskhand.recorder.session_store import SessionStore
from deskhand.recorder.sessions import Session, SessionAccess, SessionRegistry

FORMAT = 1
IMAGE = "deskhand-image:"
"""What stands in a recorded request for a data URI, before the image's name."""
_DATA_URI = re.compile(r"data:image/[a-z]+;base64,", re.IGNORECASE)
_MAX_PIXELS = 4096 * 4096
_PASSED_ON = ("content-type", "accept", "anthropic-version", "anthropic-beta", "user-agent", "openai-beta")
_RETURNED = ("content-type", "request-id", "x-request-id", "retry-after", "x-should-retry")
_LOCAL = ("localhost", "127.0.0.1", "::1")


class StoredImages:
    """Images of requests, kept in a record folder as they were received and named by their pixels."""

    def __init__(self, folder: SessionStore) -> None:
        self._folder = folder
        self._names: dict[bytes, str] = {}

    def add_data_uri(self, url: str, *, param: str = "image_url.url") -> ImagePart:
        """The image's name. Raises `RequestRefused` when it cannot be read."""
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
    """The journals of sessions under a record folder. `append` returns when the line is on disk; call it off the event loop."""

    def __init__(self, folder: SessionStore) -> None:
        self._folder = folder
        self._lock = threading.Lock()

    def append(self, session_id: str, line: Mapping[str, Any]) -> None:
        """Append a line to a session's journal."""
        with self._lock:
            path = self._path(session_id)
            path.parent.mkdir(exist_ok=True)
            file = append_log.open_again(path)
            try:
                if os.fstat(file).st_size == 0:
                    append_log.append(file, _line({"format": FORMAT, "session_id": session_id}), durable=True)
                    append_log.sync_folder(path.parent)
                append_log.append(file, _line(line), durable=True)
            finally:
                os.close(file)

    def read(self, session_id: str) -> Iterator[dict[str, Any]]:
        """The whole lines of a session's journal after its head; a torn last line is left out."""
        path = self._path(session_id)
        if path.exists():
            for line in path.read_bytes().split(b"\n")[1:-1]:
                yield json.loads(line)

    def sessions(self) -> list[str]:
        """Ids of the sessions that have a journal with a whole head."""
        found = []
        for path in sorted((self._folder.folder / "sessions").glob("*/exchanges.jsonl")):
            with path.open("rb") as file:
                head = file.readline()
            if head.endswith(b"\n"):
                found.append(json.loads(head)["session_id"])
        return found

    def _path(self, session_id: str) -> Path:
        return self._folder.session_folder(session_id) / "exchanges.jsonl"


def check_upstream(address: str) -> str:
    """The host of an upstream's address. Raises `ConfigError` for what is no address, or holds more than one."""
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:  # brackets or a port that are none
        parts, port = urlsplit(""), None
    more = parts.query or parts.fragment or parts.username or parts.password
    if parts.scheme in ("http", "https") and parts.hostname and port != 0 and not more:
        return parts.hostname
    raise ConfigError("the upstream's address: write it as http://127.0.0.1:8000/v1, without keys or parameters")


class RecordingProxy:
    """Passes requests on to `upstream` (an address that may end in `/v1`) with `upstream_key`, and records them.

    Proxy settings of the environment are not used for an upstream on this machine. `close` ends the connections.
    """

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
        """Exchanges on disk."""
        self._key, self._ask_token_ids = upstream_key, ask_token_ids
        self._client = httpx2.AsyncClient(timeout=timeout_s, trust_env=host not in _LOCAL)

    async def forward(
        self, access: SessionAccess, method: str, path: str, headers: Mapping[str, str], raw: bytes
    ) -> Response:
        """Send a request upstream, record it where it is of one of the APIs, and return the reply.

        Raises `RequestRefused` (the body is no JSON) and `InfrastructureError` (the upstream or the disk failed).
        """
        api = api_of(path) if method == "POST" else None
        request = await asyncio.to_thread(parse, raw) if api else None
        if api and not isinstance(request, dict):
            raise InvalidRequestError("the body must be a JSON object")
        if api == "chat" and self._ask_token_ids and request is not None:
            request |= {"return_token_ids": True, "logprobs": True}
            raw = json.dumps(request, ensure_ascii=False).encode()
        access.session.refuse_closed()
        started = time.time()
        access.session.in_flight += 1
        try:
            reply = await self._client.request(
                method, self.upstream + path, headers=self._headers(headers, api), content=raw
            )
        except httpx2.HTTPError as error:
            raise InfrastructureError(
                f"the upstream {self.upstream} failed: {type(error).__name__}: {error}"
            ) from error
        finally:
            access.session.in_flight -= 1
        if api and reply.is_success and request is not None:
            access.session.requests += 1
            name = f"{access.session.id}.{access.session.requests}"
            about = {
                "id": name,
                "api": api,
                "agent": access.agent,
                "at": started,
                "seconds": round(time.time() - started, 3),
            }
            await self._record(access.session, {**about, "request": request}, reply)
        kept = {name: value for name, value in reply.headers.items() if name in _RETURNED}
        return Response(reply.content, status_code=reply.status_code, headers=kept)

    async def _record(self, session: Session, entry: dict[str, Any], reply: httpx2.Response) -> None:
        def write() -> None:
            streamed = reply.headers.get("content-type", "").startswith("text/event-stream")
            try:
                entry["reply"] = assembled(entry["api"], reply.content) if streamed else parse(reply.content)
            except Exception as error:  # an upstream may send anything; whatever it was is kept as it came
                entry["unread"] = f"{type(error).__name__}: {str(error)[:300]}"
                entry["raw"] = reply.content.decode("utf-8", "replace")
            entry["request"] = without_images(entry["request"], self.images)
            self.log.append(session.id, {"exchange": entry})

        async with session.lock:
            session.refuse_closed()
            try:
                await asyncio.to_thread(write)
            except OSError as error:
                raise InfrastructureError(f"the exchange cannot be stored: {error}") from error
        session.calls.append(entry["id"])
        self.recorded += 1

    async def reward(self, session: Session, reward: float, call_id: str | None, *, whole: bool) -> str | None:
        """As of `Recorder.reward`, for exchanges."""
        async with session.lock:
            if whole:
                session.rewards.give_episode(reward)
            else:
                call_id = session.rewards.give(session.calls, reward, call_id)
            await asyncio.to_thread(self.log.append, session.id, {"note": {"reward": reward, "call_id": call_id}})
        return call_id

    async def close(self) -> None:
        """End the connections."""
        await self._client.aclose()

    def _headers(self, given: Mapping[str, str], api: str | None) -> dict[str, str]:
        headers = {name: given[name] for name in _PASSED_ON if name in given}
        if self._key:
            headers["authorization"] = f"Bearer {self._key}"
            if api == "messages":
                headers["x-api-key"] = self._key
        return headers


def without_images(value: Any, images: StoredImages) -> Any:
    """JSON with each image that can be read kept and named; what cannot be read stays as it is."""
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
        named = without_images(f"data:{value.get('media_type')};base64,{value['data']}", images)
        if named.startswith(IMAGE):
            return {"type": "url", "url": named}
    return {name: without_images(one, images) for name, one in value.items()}


def create_proxy_app(relay: RecordingProxy, admin_key: str, *, max_body_bytes: int = 256 << 20) -> Starlette:
    """The application: the recorder's routes for sessions (`proxy`), and every other path passed on for a session's key."""
    keys = RequestAuth(relay.sessions, admin_key)

    async def start(request: Request) -> Response:
        keys.require_admin(request)
        body = await read_small_json(request, "session_id")
        session_id = validation.read_field(body, "session_id", str, f"session-{secrets.token_hex(8)}")
        return JSONResponse({"session_id": session_id, "api_key": relay.sessions.open(session_id)})

    async def reward(request: Request) -> Response:
        session = keys.session(request)
        value, call_id, whole = validation.reward_of(await read_small_json(request, "reward", "call_id", "whole"))
        rewarded = await relay.reward(session, value, call_id, whole=whole)
        return JSONResponse({"session_id": session.id, "call_id": rewarded, "reward": value})

    async def end(request: Request) -> Response:
        keys.require_admin(request)
        async with relay.sessions.get(
            request.path_params["session_id"]
        ).lock:  # an exchange that is being written is in it
            session = relay.sessions.close(request.path_params["session_id"])
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

    one = "/sessions/{session_id:path}"
    return Starlette(
        routes=[
            Route("/health", health),
            Route("/sessions", error_handling_route(start), methods=["POST"]),
            Route(f"{one}/rewards", error_handling_route(reward), methods=["POST"]),
            Route(f"{one}/end", error_handling_route(end), methods=["POST"]),
            Route("/{path:path}", any_path, methods=["GET", "POST"]),
        ]
    )


def _line(data: Mapping[str, Any]) -> bytes:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass") + b"\n"
