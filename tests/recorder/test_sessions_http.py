"""Keys, sub-agents, rewards and expiry over HTTP: who may do and read what."""

from __future__ import annotations

from typing import Any

import pytest
from recording import ADMIN, ScriptedEngine, bearer

from deskhand.recorder.graph import CallGraph
from deskhand.recorder.images import ImageCache
from deskhand.recorder.recorder import Recorder
from deskhand.recorder.renderer import ChatRenderer
from deskhand.recorder.request_errors import InvalidRequestError
from deskhand.recorder.server import create_app, in_process_client
from deskhand.recorder.sessions import SessionRegistry
from deskhand.types import Completion, Prompt, Sampling

ASK = {"messages": [{"role": "user", "content": "go"}], "max_tokens": 6}


async def test_every_route_distinguishes_wrong_missing_and_foreign_keys_and_leaks_nothing(recorder: Recorder) -> None:
    mine, theirs = recorder.open_session("mine"), recorder.open_session("theirs")
    async with in_process_client(create_app(recorder, ADMIN)) as http:
        secret = (await http.post("/v1/chat/completions", json=ASK, headers=bearer(mine))).json()["choices"][0][
            "message"
        ]["content"]
        routes = [
            ("GET", "/sessions", None, 403),
            ("POST", "/sessions", {"session_id": "new"}, 403),
            ("GET", "/sessions/mine", None, 403),
            ("GET", "/sessions/nobody", None, 403),
            ("POST", "/sessions/mine/keys", {"agent": "a"}, 403),
            ("POST", "/sessions/mine/rewards", {"reward": 1}, 403),
            ("POST", "/sessions/mine/end", {}, 403),
        ]
        for method, path, body, foreign in routes:
            for headers, status in (
                ({}, 401),
                (bearer("sk-wrong"), 401),
                ({"x-api-key": "\x7f"}, 401),
                (bearer(theirs), foreign),
            ):
                answer = await http.request(method, path, json=body, headers=headers)
                assert answer.status_code == status, (method, path, headers)
                assert secret not in answer.text
                assert mine not in answer.text
        for path in ("/v1/chat/completions", "/v1/messages", "/v1/responses"):
            for headers in ({}, bearer("sk-wrong"), bearer(ADMIN)):
                assert (await http.post(path, json=ASK, headers=headers)).status_code == 401
        shown = (await http.get("/sessions/mine", headers=bearer(mine))).json()
        assert [call["id"] for call in shown["calls"]] == ["mine.1"]
        listed = (await http.get("/sessions", headers=bearer(ADMIN))).json()["sessions"]
        assert [one["session_id"] for one in listed] == ["mine", "theirs"]
    assert recorder.close_session("mine").calls[0].text == secret


async def test_sub_agents_share_a_session_and_their_calls_name_them(recorder: Recorder) -> None:
    key = recorder.open_session("s")
    async with in_process_client(create_app(recorder, ADMIN)) as http:
        answer = await http.post("/sessions/s/keys", json={"agent": "searcher"}, headers=bearer(key))
        helper = answer.json()["api_key"]
        assert (await http.post("/sessions/s/keys", json={"agent": "x\n"}, headers=bearer(key))).status_code == 400
        for who in (key, helper, key):
            await http.post("/v1/chat/completions", json=ASK, headers=bearer(who))
        given = await http.post("/sessions/s/rewards", json={"reward": 2.0, "call_id": "s.2"}, headers=bearer(helper))
        assert given.json()["call_id"] == "s.2"
        await http.post("/sessions/s/rewards", json={"reward": 1.0}, headers=bearer(key))
        mixed = await http.post("/sessions/s/rewards", json={"reward": 1.0, "whole": True}, headers=bearer(key))
        assert (mixed.status_code, mixed.json()["error"]["code"]) == (409, "rewards_mixed")
        unknown = await http.post("/sessions/s/rewards", json={"reward": 1.0, "call_id": "t.1"}, headers=bearer(key))
        assert unknown.status_code == 404
        options = {"turn_discount": 0.5, "by_agent": True}
        ended = (await http.post("/sessions/s/end", json=options, headers=bearer(ADMIN))).json()
        assert (await http.post("/v1/chat/completions", json=ASK, headers=bearer(helper))).status_code == 401
    assert ended["returns"] == {"s.1": 0.5, "s.2": 2.0, "s.3": 1.0}
    assert [call.agent for call in CallGraph.from_dict(ended["graph"]).calls] == ["", "searcher", ""]


async def test_an_idle_session_expires_and_its_calls_are_kept_until_it_is_ended(
    renderer: ChatRenderer, images: ImageCache
) -> None:
    now = [0.0]
    engine = ScriptedEngine()
    recorder = Recorder(renderer, engine, images)
    recorder.sessions = SessionRegistry(idle_s=60.0, clock=lambda: now[0])

    class Slow(ScriptedEngine):
        async def generate(self, prompt: Prompt, sampling: Sampling) -> Completion:
            now[0] += 1000.0
            recorder.sessions.expire_idle()
            return await super().generate(prompt, sampling)

    async with in_process_client(create_app(recorder, ADMIN)) as http:
        key, busy = recorder.open_session("s"), recorder.open_session("busy")
        for _ in range(3):
            now[0] += 59.0
            await http.get("/sessions/busy", headers=bearer(busy))
            assert (await http.post("/v1/chat/completions", json=ASK, headers=bearer(key))).status_code == 200
        now[0] += 61.0
        assert (await http.post("/v1/chat/completions", json=ASK, headers=bearer(key))).status_code == 401
        shown = (await http.get("/sessions/s", headers=bearer(ADMIN))).json()
        assert (shown["state"], len(shown["calls"])) == ("expired", 3)
        assert (await http.post("/sessions/s/rewards", json={"reward": 1}, headers=bearer(ADMIN))).status_code == 409
        assert len(recorder.close_session("s").calls) == 3
        recorder.engine = Slow()
        key = recorder.open_session("slow")
        answer = await http.post("/v1/chat/completions", json=ASK, headers=bearer(key))
        assert answer.status_code == 200, "a session whose request is being answered does not expire"
    assert recorder.sessions.expired == 2


async def test_a_reward_that_cannot_be_journaled_is_an_outage(renderer: ChatRenderer, images: ImageCache) -> None:
    def full(session_id: str, what: Any) -> None:
        raise OSError("no space left")

    recorder = Recorder(renderer, ScriptedEngine(), images, on_reward=full)
    key = recorder.open_session("s")
    async with in_process_client(create_app(recorder, ADMIN)) as http:
        await http.post("/v1/chat/completions", json=ASK, headers=bearer(key))
        assert (await http.post("/sessions/s/rewards", json={"reward": 1}, headers=bearer(key))).status_code == 503
    assert recorder.close_with_rewards("s")[1].by_call == {}


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 201])
def test_names_are_short_and_printable(recorder: Recorder, name: str) -> None:
    with pytest.raises(InvalidRequestError):
        recorder.open_session(name)
