"""What a bridge remembers of its answers."""

from __future__ import annotations

import json

from starlette.responses import Response

from deskhand.bridge import replies
from deskhand.bridge.replies import Replies


async def test_a_request_is_carried_out_once_also_when_its_long_answer_was_forgotten(monkeypatch):
    monkeypatch.setattr(replies, "MOST_BYTES", 2500)
    kept, acted = Replies(), []

    async def ask(name: str) -> Response:
        async def act() -> Response:
            acted.append(name)
            return Response(name.encode() * 1000)

        return await kept.once(name, act)

    for name in ("a", "b", "c"):
        assert (await ask(name)).body == name.encode() * 1000
    assert (await ask("c")).body == b"c" * 1000
    assert (await ask("b")).body == b"b" * 1000
    forgotten = await ask("a")
    assert (forgotten.status_code, json.loads(forgotten.body)["error"]) == (500, "unknown")
    assert acted == ["a", "b", "c"]


async def test_an_answer_that_is_too_long_alone_is_still_given_and_a_refusal_is_not_remembered(monkeypatch):
    monkeypatch.setattr(replies, "MOST_BYTES", 10)
    kept, answers = Replies(), [Response(status_code=503), Response(b"x" * 100)]

    async def act() -> Response:
        return answers.pop(0)

    assert (await kept.once("a", act)).status_code == 503
    assert (await kept.once("a", act)).body == b"x" * 100
    assert (await kept.once("a", act)).body == b"x" * 100
