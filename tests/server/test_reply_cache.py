"""What a bridge remembers of its answers."""

from __future__ import annotations

import asyncio
import json

from starlette.responses import Response

from deskhand.server import idempotency
from deskhand.server.idempotency import ReplyCache


async def test_a_request_is_carried_out_once_also_when_its_long_answer_was_forgotten(monkeypatch):
    monkeypatch.setattr(idempotency, "MAX_BYTES", 2500)
    kept, acted = ReplyCache(), []

    async def ask(name: str) -> Response:
        async def act() -> Response:
            acted.append(name)
            return Response(name.encode() * 1000)

        return await kept.run_once(name, act)

    for name in ("a", "b", "c"):
        assert (await ask(name)).body == name.encode() * 1000
    assert (await ask("c")).body == b"c" * 1000
    assert (await ask("b")).body == b"b" * 1000
    forgotten = await ask("a")
    assert (forgotten.status_code, json.loads(forgotten.body)["error"]) == (500, "unknown")
    assert acted == ["a", "b", "c"]


async def test_an_answer_that_is_too_long_alone_is_still_given_and_a_refusal_is_not_remembered(monkeypatch):
    monkeypatch.setattr(idempotency, "MAX_BYTES", 10)
    kept, answers = ReplyCache(), [Response(status_code=503), Response(b"x" * 100)]

    async def act() -> Response:
        return answers.pop(0)

    assert (await kept.run_once("a", act)).status_code == 503
    assert (await kept.run_once("a", act)).body == b"x" * 100
    assert (await kept.run_once("a", act)).body == b"x" * 100


async def test_a_request_that_is_still_carried_out_is_never_begun_again_however_many_others_come():
    kept, going, acted = ReplyCache(), asyncio.Event(), []

    async def act(name: str) -> Response:
        acted.append(name)
        await going.wait()
        return Response(name.encode())

    asked = [
        asyncio.create_task(kept.run_once(f"{number}", lambda number=number: act(f"{number}"))) for number in range(200)
    ]
    await asyncio.sleep(0)
    again = asyncio.create_task(kept.run_once("0", lambda: act("again")))
    await asyncio.sleep(0)
    going.set()
    assert [reply.body for reply in await asyncio.gather(*asked, again)] == [
        *(f"{n}".encode() for n in range(200)),
        b"0",
    ]
    assert len(acted) == 200


async def test_an_answer_that_many_others_came_after_is_forgotten_and_its_request_is_not():
    kept, acted = ReplyCache(), []

    async def act() -> Response:
        acted.append(1)
        return Response(b"done")

    for number in range(idempotency.MAX_REPLIES + 10):
        await kept.run_once(f"{number}", act)
    assert (await kept.run_once("9", act)).status_code == 500
    assert (await kept.run_once("10", act)).body == b"done"
    assert len(acted) == idempotency.MAX_REPLIES + 10
