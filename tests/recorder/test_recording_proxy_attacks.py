"""Interrupted and invalid upstream replies and torn files: nothing partial is taken as complete."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, get_args

import pytest
from recording import ADMIN, ScriptedEngine, bearer, image_part
from serving import on_a_port
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from deskhand.recipes import record
from deskhand.recorder.exchanges import Api, assemble_stream
from deskhand.recorder.images import ImageCache
from deskhand.recorder.recorder import Recorder
from deskhand.recorder.recording_proxy import ExchangeLog, RecordingProxy, create_proxy_app
from deskhand.recorder.renderer import ChatRenderer
from deskhand.recorder.server import create_app, in_process_client
from deskhand.recorder.session_store import SessionStore

BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": [image_part(1)]}], "n": 2, "max_tokens": 20},
    ),
    "responses": ("/v1/responses", {"input": "go", "max_output_tokens": 20}),
    "messages": ("/v1/messages", {"model": "m", "messages": [{"role": "user", "content": "go"}], "max_tokens": 20}),
}


@pytest.mark.parametrize("api", get_args(Api))
async def test_a_stream_cut_at_any_byte_is_never_read_as_a_complete_reply(
    api: Api, renderer: ChatRenderer, images: ImageCache
) -> None:
    engine = ScriptedEngine(
        lambda prompt, sampling: [*renderer.encode_text("Click the button named Save."), renderer.stop_ids[0]]
    )
    recorder = Recorder(renderer, engine, images)
    path, body = BODIES[api]
    async with in_process_client(create_app(recorder, ADMIN)) as http:
        headers = bearer(recorder.open_session("s"))
        stream = (await http.post(path, json={**body, "stream": True}, headers=headers)).content
    whole = assemble_stream(api, stream)
    taken = []
    for end in range(len(stream)):
        try:
            taken.append((end, assemble_stream(api, stream[:end])))
        except ValueError:
            continue
    assert all(found == whole for _, found in taken)
    assert all(len(stream) - end <= len("\n\n") for end, _ in taken), (
        "only the empty line after the last event may be missing"
    )


NONSENSE: list[Any] = [
    b"data: {}\n\n",
    b'data: {"choices": [{"index": 0, "delta": []}]}\n\ndata: [DONE]\n\n',
    b'data: {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 1000000000}]}, "finish_reason": "stop"}]}\n\n',
    b'data: {"choices": null}\n\ndata: [DONE]\n\n',
    b'data: {"choices": [{"index": "x"}, {"index": 0}]}\n\ndata: [DONE]\n\n',
    b"data: " + b"[" * 50_000 + b"\n\n",
    b"\xff\xfe\x00",
    {"choices": [{"message": {"role": "assistant", "content": "x"}, "logprobs": 5}], "prompt_token_ids": [1]},
    {"choices": [{"message": {"role": "assistant", "content": "x"}, "token_ids": ["a"],
                  "logprobs": {"content": [{"logprob": 0}]}}],
     "prompt_token_ids": ["b"]},
    {"choices": [5]},
    {"choices": {}},
    [],
    None,
]  # fmt: skip


async def test_invalid_replies_from_upstream_are_forwarded_and_excluded_from_the_data(tmp_path: Path) -> None:
    sent = iter(NONSENSE)

    async def nonsense(request: Request) -> Response:
        what = next(sent)
        if isinstance(what, bytes):
            return Response(what, media_type="text/event-stream")
        return Response(json.dumps(what), media_type="application/json")

    async with on_a_port(Starlette(routes=[Route("/v1/chat/completions", nonsense, methods=["POST"])])) as address:
        relay = RecordingProxy(address, SessionStore(tmp_path))
        async with in_process_client(create_proxy_app(relay, ADMIN)) as http:
            own = bearer(relay.sessions.open("s"))
            body = {"messages": [{"role": "user", "content": "go"}]}
            for what in NONSENSE:
                answer = await http.post("/v1/chat/completions", json=body, headers=own)
                assert answer.status_code == 200
                assert answer.content == (what if isinstance(what, bytes) else json.dumps(what).encode())
        await relay.close()
    assert relay.recorded == len(NONSENSE)
    written = record.write_datasets(tmp_path, "tiny")
    assert written.calls == 0
    assert written.exchanges + sum(written.skipped.values()) >= len(NONSENSE)
    assert written.exchanges == 1, "that without numbers among its token ids is a reply all the same"


@pytest.mark.parametrize("secret", ["sk-upstream-0123456789", 'sk/up"stream\\0123'])
async def test_an_error_that_quotes_the_upstream_key_is_forwarded_without_it(tmp_path: Path, secret: str) -> None:
    async def refuse(request: Request) -> Response:
        quoted = request.headers["authorization"]
        body = json.dumps({"error": {"message": f"incorrect key: {quoted}", "code": "invalid_api_key"}})
        return Response(body.replace("/", "\\/"), status_code=401, media_type="application/json")

    async with on_a_port(Starlette(routes=[Route("/v1/chat/completions", refuse, methods=["POST"])])) as address:
        relay = RecordingProxy(address, SessionStore(tmp_path), upstream_key=secret)
        async with in_process_client(create_proxy_app(relay, ADMIN)) as http:
            own = bearer(relay.sessions.open("s"))
            answer = await http.post("/v1/chat/completions", json={"messages": []}, headers=own)
        await relay.close()
    assert answer.status_code == 401
    assert answer.json()["error"] == {"message": "incorrect key: Bearer ***", "code": "invalid_api_key"}


async def test_an_upstream_that_dies_in_mid_stream_is_an_outage(tmp_path: Path) -> None:
    async def dying() -> AsyncIterator[bytes]:
        yield b'data: {"choices": [{"index": 0, "delta": {"content": "hal"}}]}\n\n'
        raise RuntimeError("the upstream dies")

    async def chat(request: Request) -> Response:
        return StreamingResponse(dying(), media_type="text/event-stream")

    async with on_a_port(Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])])) as address:
        relay = RecordingProxy(address, SessionStore(tmp_path))
        async with in_process_client(create_proxy_app(relay, ADMIN)) as http:
            own = bearer(relay.sessions.open("s"))
            body = {"messages": [{"role": "user", "content": "go"}], "stream": True}
            answer = await http.post("/v1/chat/completions", json=body, headers=own)
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "infrastructure")
        await relay.close()
    assert relay.recorded == 0


def test_a_torn_journal_is_continued(tmp_path: Path) -> None:
    """A relay that was killed and started again on the same folder and session loses the torn line alone."""
    log = ExchangeLog(SessionStore(tmp_path))
    for number in range(3):
        log.append("s", {"reward": {"reward": float(number), "call_id": None}})
    path = tmp_path / "sessions" / "s" / "exchanges.jsonl"
    raw = path.read_bytes()
    for cut in range(len(raw) + 1):
        path.write_bytes(raw[:cut])
        ExchangeLog(SessionStore(tmp_path)).append("s", {"reward": {"reward": 9.0, "call_id": None}})
        whole = max(0, raw[:cut].count(b"\n") - 1)
        found = [line["reward"]["reward"] for line in log.read("s")]
        assert found == [*map(float, range(whole)), 9.0]
        assert log.sessions() == ["s"]
