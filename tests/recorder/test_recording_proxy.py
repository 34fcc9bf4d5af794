"""The recording proxy between an unmodified agent and engine stores the exchanges as training data.

The engine is Deskhand's own endpoint on a port, so its records are the expected ones.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import pytest
from recording import ADMIN, ScriptedEngine, bearer, data_uri, image_part, openai_client, png
from serving import on_a_port
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from deskhand.errors import ConfigError
from deskhand.models.load import load_processors
from deskhand.recipes import record
from deskhand.recorder.images import ImageCache
from deskhand.recorder.recorder import Recorder
from deskhand.recorder.recording_proxy import IMAGE, RecordingProxy, StoredImages, create_proxy_app, without_images
from deskhand.recorder.renderer import ChatRenderer
from deskhand.recorder.server import create_app, in_process_client
from deskhand.recorder.session_store import SessionStore

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tiny() -> tuple[ChatRenderer, Any]:
    tokenizer, processor = load_processors("tiny")
    return ChatRenderer(tokenizer), processor


@asynccontextmanager
async def relayed(
    tiny: tuple[ChatRenderer, Any], folder: Path, **options: Any
) -> AsyncIterator[tuple[Recorder, RecordingProxy, Any, str]]:
    """(the upstream's recorder, the relay, an HTTP client of the relay, a key of its session "s")."""
    recorder = Recorder(tiny[0], ScriptedEngine(), ImageCache(tiny[1]))
    upstream_key = recorder.open_session("up")
    async with on_a_port(create_app(recorder, ADMIN)) as address:
        relay = RecordingProxy(f"{address}/v1", SessionStore(folder), upstream_key=upstream_key, **options)
        try:
            async with in_process_client(create_proxy_app(relay, ADMIN)) as http:
                yield recorder, relay, http, relay.sessions.open("s")
        finally:
            await relay.close()


@pytest.mark.parametrize("stream", [False, True])
async def test_the_proxys_call_graph_is_that_of_the_upstream(
    tiny: tuple[ChatRenderer, Any], tmp_path: Path, stream: bool
) -> None:
    async with relayed(tiny, tmp_path, ask_token_ids=True) as (recorder, _, http, key):
        client = openai_client(http, key)
        talk: list[Any] = []
        for turn in range(5):
            talk.append({"role": "user", "content": [image_part(turn), {"type": "text", "text": f"go {turn}"}]})
            reply = await client.chat.completions.create(model="m", messages=talk, max_tokens=9, stream=stream)
            if stream:
                text = "".join([part.choices[0].delta.content or "" async for part in reply])
            else:
                text = reply.choices[0].message.content
            talk.append({"role": "assistant", "content": text})
        admin = bearer(ADMIN)
        await http.post("/sessions/s/rewards", json={"reward": 0.5, "call_id": "s.5"}, headers=bearer(key))
        ended = await http.post("/sessions/s/end", headers=admin)
        assert ended.json()["exchanges"] == [f"s.{number}" for number in range(1, 6)]
        upstream = recorder.close_session("up")
    written = record.write_datasets(tmp_path, "tiny")
    assert (written.exchanges, written.calls, written.skipped) == (5, 5, {})
    graph, rewards = SessionStore(tmp_path).read("s")
    assert [(one.prompt_ids, one.spans, one.completion.token_ids) for one in graph.calls] == [
        (one.prompt_ids, one.spans, one.completion.token_ids) for one in upstream.calls
    ]
    assert [one.completion.logprobs for one in graph.calls] == [one.completion.logprobs for one in upstream.calls]
    assert len(graph.sequences()) == len(upstream.sequences()) == 1
    assert rewards.by_call == {"s.5": 0.5}
    (row,) = [json.loads(line) for line in (tmp_path / "sft.jsonl").read_text().splitlines()]
    assert row["targets"] == [1, 3, 5, 7, 9]
    assert [row["messages"][at]["content"] for at in row["targets"]] == [call.text for call in upstream.calls]
    assert row["images"] == [span.sha256 for span in graph.calls[-1].spans]
    assert (row["session_reward"], row["rewards"]) == (0.5, {"s.5": 0.5})
    assert all(SessionStore(tmp_path).image(sha256) == png(number) for number, sha256 in enumerate(row["images"]))


@pytest.mark.parametrize("stream", [False, True])
async def test_conversations_of_the_other_apis_are_recorded_too(
    tiny: tuple[ChatRenderer, Any], tmp_path: Path, stream: bool
) -> None:
    async with relayed(tiny, tmp_path) as (recorder, _, http, key):
        oai = openai_client(http, key)
        ant = anthropic.AsyncAnthropic(base_url="http://recorder", api_key=key, http_client=http, max_retries=0)
        content: Any = [{"type": "input_image", "image_url": data_uri(1)}, {"type": "input_text", "text": "go"}]
        answer = await oai.responses.create(model="m", input=[{"role": "user", "content": content}], stream=stream)
        if stream:
            async for _ in answer:
                pass
        talk: Any = [{"role": "user", "content": "go"}]
        for _ in range(2):
            said = await ant.messages.create(model="m", max_tokens=8, messages=talk, system="Be brief", stream=stream)
            if stream:
                text = "".join([event.delta.text async for event in said if event.type == "content_block_delta"])
            else:
                text = said.content[0].text
            talk += [{"role": "assistant", "content": text}, {"role": "user", "content": "on"}]
        upstream = recorder.close_session("up")
    written = record.write_datasets(tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "sft.jsonl").read_text().splitlines()]
    assert (written.exchanges, written.calls, len(rows)) == (3, 0, 2)
    assert [row["targets"] for row in rows] == [[1], [2, 4]]
    assert [row["messages"][at]["content"] for row in rows for at in row["targets"]] == [
        call.text for call in upstream.calls
    ]
    assert rows[1]["messages"][0] == {"role": "system", "content": "Be brief"}


async def test_agents_use_proxy_keys_and_the_upstream_key_is_never_exposed(
    tiny: tuple[ChatRenderer, Any], tmp_path: Path
) -> None:
    async with relayed(tiny, tmp_path) as (_, relay, http, key):
        body = {"messages": [{"role": "user", "content": "go"}]}
        for wrong in ("", "sk-wrong", ADMIN):
            answer = await http.post("/v1/chat/completions", json=body, headers=bearer(wrong))
            assert answer.status_code == 401
        own = bearer(key)
        models = await http.get("/v1/models", headers=own)
        assert models.json()["data"][0]["id"] == "deskhand"
        refused = await http.post("/v1/chat/completions", json={**body, "top_k": 3}, headers=own)
        assert refused.json()["error"]["param"] == "top_k", "the upstream's own refusal comes through"
        assert relay.recorded == 0
        await http.post("/v1/chat/completions", json=body, headers=own)
        assert relay.recorded == 1
        upstream_key = relay._key
    assert not [path for path in files_under(tmp_path) if upstream_key.encode() in path.read_bytes()]


async def test_an_upstream_that_is_down_or_breaks_off_is_no_recorded_reply(tmp_path: Path) -> None:
    async def half_a_stream(request: Request) -> Response:
        return Response(
            'data: {"choices": [{"index": 0, "delta": {"content": "hal"}}]}\n\n', media_type="text/event-stream"
        )

    app = Starlette(routes=[Route("/v1/chat/completions", half_a_stream, methods=["POST"])])
    body = {"messages": [{"role": "user", "content": "go"}], "stream": True}
    async with on_a_port(app) as address:
        relay = RecordingProxy(address, SessionStore(tmp_path))
        async with in_process_client(create_proxy_app(relay, ADMIN)) as http:
            own = bearer(relay.sessions.open("s"))
            assert (await http.post("/v1/chat/completions", json=body, headers=own)).status_code == 200
    async with in_process_client(create_proxy_app(relay, ADMIN)) as http:
        down = await http.post("/v1/chat/completions", json=body, headers=own)
        assert (down.status_code, down.json()["error"]["code"]) == (503, "infrastructure")
        await relay.close()
    written = record.write_datasets(tmp_path)
    assert (written.exchanges, written.conversations) == (0, 0)
    assert "does not end with [DONE]" in next(iter(written.skipped))


async def test_images_are_taken_out_of_recorded_requests_whatever_their_form(tmp_path: Path) -> None:
    folder = SessionStore(tmp_path)
    source = {"type": "base64", "media_type": "image/png", "data": data_uri(1).partition(",")[2]}
    broken = "data:image/png;base64,AAAA"
    found = without_images({"a": [data_uri(1), {"source": source}], "b": broken, "c": 5}, StoredImages(folder))
    name = found["a"][0].removeprefix(IMAGE)
    assert found == {"a": [IMAGE + name, {"source": {"type": "url", "url": IMAGE + name}}], "b": broken, "c": 5}
    assert folder.image(name) == png(1)


def files_under(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


AGENT = """
import os, sys, httpx2
assert "UPSTREAM_API_KEY" not in os.environ
talk = []
with httpx2.Client(headers={"authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}) as http:
    for turn in range(3):
        talk.append({"role": "user", "content": "go"})
        url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
        answer = http.post(url, json={"messages": talk, "max_tokens": 9})
        talk.append(answer.raise_for_status().json()["choices"][0]["message"])
sys.exit(7)
"""


async def test_deskhand_record_runs_an_agent_and_writes_both_datasets(
    tiny: tuple[ChatRenderer, Any], tmp_path: Path
) -> None:
    recorder = Recorder(tiny[0], ScriptedEngine(), ImageCache(tiny[1]))
    key, out = recorder.open_session("up"), tmp_path / "out"
    async with on_a_port(create_app(recorder, ADMIN)) as address:
        words = ["record", "--upstream", f"{address}/v1", "--out", str(out), "--token-ids", "--checkpoint", "tiny"]
        process = await asyncio.create_subprocess_exec(
            *[sys.executable, "-m", "deskhand", *words, "--", sys.executable, "-c", AGENT],
            env={**os.environ, "UPSTREAM_API_KEY": key, "HTTP_PROXY": "http://127.0.0.1:9", "PYTHONPATH": str(ROOT)},
            stderr=asyncio.subprocess.PIPE,
            cwd=tmp_path,
        )
        _, said = await process.communicate()
    assert process.returncode == 7, said.decode()
    assert "3 replies of 1 sessions: 1 conversations in sft.jsonl, 3 calls with token ids" in said.decode()
    ((session_id, ended),) = list(SessionStore(out).sessions())
    assert ended
    graph, _ = SessionStore(out).read(session_id)
    assert [(call.prompt_ids, call.completion.token_ids, call.completion.logprobs) for call in graph.calls] == [
        (call.prompt_ids, call.completion.token_ids, call.completion.logprobs)
        for call in recorder.close_session("up").calls
    ]
    keys = out / "keys.json"
    assert keys.stat().st_mode & 0o077 == 0
    assert key not in keys.read_text()


@pytest.mark.parametrize("upstream", ["127.0.0.1:8000", "ftp://x", "http://user:secret@host/v1", "http://h/v1?key=x"])
def test_an_invalid_upstream_url_is_a_config_error(upstream: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected a URL"):
        RecordingProxy(upstream, SessionStore(tmp_path))
