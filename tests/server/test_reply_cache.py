"""Replies by request id: repeated requests are performed once."""

from __future__ import annotations

import asyncio
import json

from starlette.responses import Response

from deskhand.server import idempotency
from deskhand.server.idempotency import ReplyCache


async def test_a_request_is_performed_once_even_if_its_reply_was_evicted(monkeypatch):
    monkeypatch.setattr(idempotency, "MAX_BYTES", 2500)
    cache, acted = ReplyCache(), []

    async def ask(name: str) -> Response:
        async def act() -> Response:
            acted.append(name)
            return Response(name.encode() * 1000)

        return await cache.run_once(name, act)

    for name in ("a", "b", "c"):
        assert (await ask(name)).body == name.encode() * 1000
    assert (await ask("c")).body == b"c" * 1000
    assert (await ask("b")).body == b"b" * 1000
    forgotten = await ask("a")
    assert (forgotten.status_code, json.loads(forgotten.body)["error"]) == (500, "unknown")
    assert acted == ["a", "b", "c"]


async def test_an_oversized_reply_is_stored_and_a_quota_reply_is_not(monkeypatch):
    monkeypatch.setattr(idempotency, "MAX_BYTES", 10)
    cache, answers = ReplyCache(), [Response(status_code=503), Response(b"x" * 100)]

    async def act() -> Response:
        return answers.pop(0)

    assert (await cache.run_once("a", act)).status_code == 503
    assert (await cache.run_once("a", act)).body == b"x" * 100
    assert (await cache.run_once("a", act)).body == b"x" * 100


async def test_a_request_in_progress_is_never_started_again():
    cache, going, acted = ReplyCache(), asyncio.Event(), []

    async def act(name: str) -> Response:
        acted.append(name)
        await going.wait()
        return Response(name.encode())

    asked = [
        asyncio.create_task(cache.run_once(f"{number}", lambda number=number: act(f"{number}")))
        for number in range(200)
    ]
    await asyncio.sleep(0)
    again = asyncio.create_task(cache.run_once("0", lambda: act("again")))
    await asyncio.sleep(0)
    going.set()
    expected = [*(f"{n}".encode() for n in range(200)), b"0"]
    assert [reply.body for reply in await asyncio.gather(*asked, again)] == expected
    assert len(acted) == 200


async def test_an_evicted_reply_keeps_its_request_id():
    cache, acted = ReplyCache(), []

    async def act() -> Response:
        acted.append(1)
        return Response(b"done")

    for number in range(idempotency.MAX_REPLIES + 10):
        await cache.run_once(f"{number}", act)
    assert (await cache.run_once("9", act)).status_code == 500
    assert (await cache.run_once("10", act)).body == b"done"
    assert len(acted) == idempotency.MAX_REPLIES + 10
