"""The recorder over HTTP; one session per episode, identified by its API key. Start with `create_app`.

Used by the endpoint runner and by `recipes`; keys never appear in URLs or logs.

| route                            | key            | body                                                       |
|----------------------------------|----------------|------------------------------------------------------------|
| `POST /v1/chat/completions`      | session        | OpenAI chat completions (`apis.chat`)                      |
| `POST /v1/responses`             | session        | OpenAI responses (`apis.responses`)                        |
| `POST /v1/messages`              | session        | Anthropic messages (`apis.anthropic_messages`)             |
| `GET /v1/models`                 | either         |                                                            |
| `POST /sessions`                 | admin          | `{"session_id"?}` -> `{"session_id", "api_key"}`           |
| `GET /sessions`                  | admin          | -> summaries of the open sessions                          |
| `GET /sessions/{id}`             | admin, session | -> summary                                                 |
| `POST /sessions/{id}/keys`       | admin, session | `{"agent"}` -> `{"session_id", "agent", "api_key"}`        |
| `POST /sessions/{id}/rewards`    | admin, session | `{"reward", "call_id"? or "whole"?: true}`                 |
| `POST /sessions/{id}/end`        | admin          | `{"turn_discount"?, "by_agent"?}` -> graph and rewards     |
| `GET /health`                    | none           |                                                            |

The routes of the three APIs and of models exist without `/v1` too, because some clients put it into the base URL.
"""

from __future__ import annotations

import json
from importlib import import_module
from types import ModuleType
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from deskhand.errors import ConfigError, InfrastructureError
from deskhand.recorder.apis import anthropic_messages, chat, responses, validation
from deskhand.recorder.apis.validation import ApiContext
from deskhand.recorder.http_common import (
    ErrorBody,
    Handler,
    RequestAuth,
    anthropic_error,
    error_handling_route,
    openai_error,
    parse_object,
    read_body,
    read_small_json,
    session_routes,
)
from deskhand.recorder.images import ImageCache, NamedImages
from deskhand.recorder.recorder import Recorder
from deskhand.recorder.request_errors import InvalidRequestError
from deskhand.recorder.session_store import SessionStore
from deskhand.recorder.sessions import Session


def create_app(  # noqa: C901
    recorder: Recorder,
    admin_key: str,
    *,
    model: str = "deskhand",
    default_max_tokens: int = 512,
    max_body_bytes: int = 256 << 20,
    folder: SessionStore | None = None,
    accepts_names: bool = False,
) -> Starlette:
    """Build the application. `recorder.images` must be an `ImageCache`; closed sessions go to `folder`, if set.

    With `accepts_names` messages may name images of the recorder, whichever session sent them; only for clients of this
    process (`in_process_client`). Raises `ConfigError` for an admin key shorter than 16 characters.
    """
    if not isinstance(recorder.images, ImageCache):
        raise ConfigError("recorder.images: must be an ImageCache")
    images = NamedImages(recorder.images) if accepts_names else recorder.images
    keys = RequestAuth(recorder.sessions, admin_key)

    def model_route(api: ModuleType, body_of_error: ErrorBody = openai_error) -> Handler:
        async def serve(request: Request) -> Response:
            access = keys.access(request)
            raw = await read_body(request, max_body_bytes)
            stored, features = access.session.conversations, recorder.engine.features
            context = ApiContext(recorder.renderer, images, model, default_max_tokens, features, stored)
            body = await recorder.in_thread(lambda: api.read_request(parse_object(raw), context))
            reply = await recorder.complete(access, body.request)
            if await request.is_disconnected():
                recorder.mark_undelivered(access.session, reply)
            if api is responses and body.store:
                stored[reply.id] = (*body.conversation, reply.parsed[0].as_message())
            if body.stream:
                return StreamingResponse(api.stream_events(reply, body, context), media_type="text/event-stream")
            return JSONResponse(api.reply_body(reply, body, context))

        return error_handling_route(serve, body_of_error)

    async def models(request: Request) -> Response:
        if not keys.is_admin(request):
            keys.access(request)
        return JSONResponse(
            {"object": "list", "data": [{"id": model, "object": "model", "created": 0, "owned_by": "deskhand"}]}
        )

    async def list_sessions(request: Request) -> Response:
        keys.require_admin(request)
        return JSONResponse({"sessions": [summary(session) for session in recorder.sessions]})

    async def show(request: Request) -> Response:
        return JSONResponse(summary(keys.session(request)))

    async def new_key(request: Request) -> Response:
        session = keys.session(request)
        agent = validation.read_field(await read_small_json(request, "agent"), "agent", str, "")
        if not agent:
            raise InvalidRequestError("agent must name the sub-agent of the key", param="agent")
        return JSONResponse(
            {"session_id": session.id, "agent": agent, "api_key": recorder.sessions.new_key(session, agent)}
        )

    async def end(request: Request) -> Response:
        keys.require_admin(request)
        body = await read_small_json(request, "turn_discount", "by_agent")
        discount = validation.in_range(validation.read_field(body, "turn_discount", float, 0.0), 0, 1, "turn_discount")
        by_agent = validation.read_field(body, "by_agent", bool, False)
        session_id = request.path_params["session_id"]
        async with recorder.sessions.get(session_id).lock:  # wait for calls that are being recorded
            graph, rewards = recorder.close_with_rewards(session_id)

        def write() -> str:
            if folder is not None:
                try:
                    folder.finish(session_id, graph, rewards)
                except OSError as error:
                    raise InfrastructureError(
                        f"session {session_id}: cannot be stored ({error}); its calls.jsonl is kept"
                    ) from error
            returns = rewards.returns(graph, discount, by_agent=by_agent)
            return json.dumps(
                {"session_id": session_id, "graph": graph.to_dict(), "rewards": rewards.to_dict(), "returns": returns}
            )

        return Response(await recorder.in_thread(write), media_type="application/json")

    async def health(request: Request) -> Response:
        return JSONResponse(
            {"status": "ok", "version": recorder.engine.version, "violations": dict(recorder.violations)}
        )

    one = "/sessions/{session_id:path}"
    routes = [
        Route("/health", health),
        *session_routes(keys, recorder.open_session, recorder.reward),
        Route("/sessions", error_handling_route(list_sessions), methods=["GET"]),
        Route(f"{one}/keys", error_handling_route(new_key), methods=["POST"]),
        Route(f"{one}/end", error_handling_route(end), methods=["POST"]),
        Route(one, error_handling_route(show), methods=["GET"]),
    ]
    for prefix in ("", "/v1"):
        routes += [
            Route(f"{prefix}/chat/completions", model_route(chat), methods=["POST"]),
            Route(f"{prefix}/responses", model_route(responses), methods=["POST"]),
            Route(f"{prefix}/messages", model_route(anthropic_messages, anthropic_error), methods=["POST"]),
            Route(f"{prefix}/models", error_handling_route(models)),
        ]
    return Starlette(routes=routes)


def summary(session: Session) -> dict[str, Any]:
    """Return counts and states of a session, without texts, images or keys."""
    calls = session.graph.calls
    return {
        "session_id": session.id,
        "state": "stopped" if session.stopped else "expired" if session.expired else "open",
        "stopped_by": session.stopped.cause if session.stopped else None,
        "calls": [{"id": call.id, "agent": call.agent, "tokens": len(call.completion.token_ids)} for call in calls],
        "in_flight": session.in_flight,
        "rewards": session.rewards.to_dict(),
    }


def in_process_client(app: Starlette, *, timeout_s: float = 600.0) -> Any:
    """Return a client that calls `app` without a socket: `AsyncOpenAI(base_url="http://recorder/v1", http_client=...)`.

    The client is of the library that the installed `openai` uses: httpx2 since version 3, httpx before (AReaL 1.0.4).
    """
    import openai

    library = import_module("httpx2" if int(openai.__version__.split(".")[0]) >= 3 else "httpx")
    return library.AsyncClient(transport=library.ASGITransport(app=app), base_url="http://recorder", timeout=timeout_s)
