"""The agent against a painted desktop and an endpoint that speaks OpenAI's wire format."""

import asyncio
import base64
import hashlib
import io
import json

import fake_desktop
import httpx2
import numpy as np
import openai
import pytest
from PIL import Image

from deskhand.actions import formats
from deskhand.actions.formats.base import ScreenView
from deskhand.actions.ops import Click, Done, KeyDown
from deskhand.agents.desktop_agent import AgentConfig, DesktopAgent, noise_frame
from deskhand.desktop.base import DesktopSpec
from deskhand.errors import AgentError, InfrastructureError

BLUE, RED = '{"op":"click","x":187,"y":800}', '{"op":"click","x":687,"y":800}'


class Endpoint:
    """Plays replies: a text, (text, finish_reason), or an (HTTP status, error code)."""

    def __init__(self, replies: list) -> None:
        self.replies, self.asked = list(replies), []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.asked.append(json.loads(request.content))
        reply = self.replies.pop(0)
        if isinstance(reply, tuple) and isinstance(reply[0], int):
            return httpx2.Response(
                reply[0], json={"error": {"message": "no", "type": "t", "param": None, "code": reply[1]}}
            )
        text, finish = reply if isinstance(reply, tuple) else (reply, "stop")
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": finish}
        body = {
            "id": f"call-{len(self.asked)}",
            "object": "chat.completion",
            "created": 0,
            "model": "m",
            "choices": [choice],
        }
        return httpx2.Response(200, json=body)

    def client(self) -> openai.AsyncOpenAI:
        http = httpx2.AsyncClient(transport=httpx2.MockTransport(self))
        return openai.AsyncOpenAI(base_url="http://model/v1", api_key="k", http_client=http, max_retries=0)


async def solve(
    replies: list, desktop: fake_desktop.PaintedDesktop | None = None, config: AgentConfig | None = None, **more
):
    endpoint = Endpoint(replies)
    desktop = desktop or fake_desktop.PaintedDesktop()
    task = fake_desktop.square_task(1)
    await desktop.reset(DesktopSpec("plain", task.width, task.height))
    await task.setup(desktop)
    transcript = await DesktopAgent(config).solve(desktop, task.instruction, endpoint.client(), **more)
    return transcript, endpoint, desktop


async def test_it_looks_asks_does_and_ends_at_done():
    kept: dict[str, bytes] = {}
    seen: list[int] = []

    async def keep_frame(frame):
        kept[frame.sha256] = frame.png()

    async def after_step(step, frame):
        seen.append(step.index)

    transcript, endpoint, desktop = await solve([BLUE, '{"op":"done"}'], keep_frame=keep_frame, after_step=after_step)
    assert transcript.stop_reason == "done"
    assert [type(step.ops[0]) for step in transcript.steps] == [Click, Done]
    assert [step.call_id for step in transcript.steps] == ["call-1", "call-2"]
    assert desktop.clicked == ["blue"]
    assert seen == [0, 1]
    shown = [part["image_url"]["url"] for message in endpoint.asked[1]["messages"] if message["role"] == "user"
             for part in message["content"] if part["type"] == "image_url"]  # fmt: skip
    for step, url in zip(transcript.steps, shown, strict=True):
        png = base64.b64decode(url.partition(",")[2])
        assert kept[step.frame_sha256] == png
        assert (
            hashlib.sha256(np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).tobytes()).hexdigest()
            == step.frame_sha256
        )
    assert shown[0] != shown[1]
    assert transcript.last_frame_sha256 in kept


def pixels_shown(endpoint: Endpoint) -> list[np.ndarray]:
    urls = [part["image_url"]["url"] for message in endpoint.asked[-1]["messages"] if message["role"] == "user"
            for part in message["content"] if part["type"] == "image_url"]  # fmt: skip
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))).convert("RGB")) for url in urls]


async def test_a_blind_agent_is_shown_noise_that_tells_nothing_of_the_screen():
    kept: dict[str, bytes] = {}

    async def keep_frame(frame):
        kept[frame.sha256] = frame.png()

    replies = [BLUE, '{"op":"done"}']
    transcript, endpoint, desktop = await solve(replies, config=AgentConfig(noise_images=True), keep_frame=keep_frame)
    first, second = pixels_shown(endpoint)
    assert desktop.clicked == ["blue"], "the desktop itself is untouched"
    assert first.shape == (fake_desktop.HEIGHT, fake_desktop.WIDTH, 3)
    assert abs(first.mean() - 127.5) < 5
    assert not np.array_equal(first, second)
    assert [step.frame_sha256 for step in transcript.steps] == [
        hashlib.sha256(p.tobytes()).hexdigest() for p in (first, second)
    ]
    assert {step.frame_sha256 for step in transcript.steps} <= kept.keys()
    before = await fake_desktop.PaintedDesktop().reset(DesktopSpec("plain", 64, 48))
    assert (
        noise_frame(before, "seed").sha256
        == noise_frame(await desktop.observe(), "seed").sha256
        != noise_frame(before, "other").sha256
    )


async def test_what_is_not_understood_is_told_and_performs_nothing():
    transcript, endpoint, desktop = await solve(["click it", BLUE, '{"op":"done"}'])
    assert transcript.stop_reason == "done"
    assert transcript.num_errors == 1
    assert transcript.steps[0].ops == ()
    assert endpoint.asked[1]["messages"][-1]["content"][1]["text"].startswith("Click the ")
    assert "\nerror: not JSON" in endpoint.asked[1]["messages"][-1]["content"][1]["text"]
    assert "error" not in endpoint.asked[2]["messages"][-1]["content"][1]["text"]
    assert desktop.actions == 1


async def test_what_was_wrong_is_not_told_when_it_should_not_be():
    transcript, endpoint, _ = await solve(["click it", BLUE, '{"op":"done"}'], config=AgentConfig(error_feedback=False))
    assert transcript.num_errors == 1
    assert "not JSON" in str(transcript.steps[0].error)
    assert all("error" not in json.dumps(asked) for asked in endpoint.asked)


async def test_a_mistake_is_of_a_kind_and_only_whole_replies_count_as_bad_format():
    class Narrow(fake_desktop.PaintedDesktop):
        async def perform(self, ops, *, action_id):
            if isinstance(ops[0], KeyDown):
                raise AgentError("unknown key 'foo'")
            return await super().perform(ops, action_id=action_id)

    replies = ["click it", BLUE, ('{"op":"cl', "length"), '{"op":"key_down","key":"foo"}', '{"op":"done"}']
    transcript, endpoint, _ = await solve(replies, Narrow())
    assert [step.reply_error for step in transcript.steps] == ["format", "", "truncated", "action", ""]
    assert (transcript.num_errors, transcript.num_format_errors, transcript.stop_reason) == (3, 1, "done")
    assert "error: unknown key 'foo'" in endpoint.asked[4]["messages"][-1]["content"][1]["text"]


async def test_it_speaks_any_dialect_and_shows_the_model_the_screen_that_it_has():
    dialect = formats.get("anthropic_20250124")
    replies = ['I click. {"action": "left_click", "coordinate": [12, 38]}', '{"type": "text", "text": "It is blue"}']
    transcript, endpoint, desktop = await solve(
        replies, config=AgentConfig(action_format=dialect.name, prompt_style="full")
    )
    assert desktop.clicked == ["blue"]
    assert (transcript.stop_reason, transcript.answer) == ("answer", "It is blue")
    prompt = endpoint.asked[0]["messages"][0]
    assert prompt == {
        "role": "system",
        "content": dialect.prompt(ScreenView.of_screen(fake_desktop.WIDTH, fake_desktop.HEIGHT)),
    }
    assert f"{fake_desktop.WIDTH}x{fake_desktop.HEIGHT}" in prompt["content"]


async def test_ends_keep_their_meaning():
    for reply, stopped, answer in (
        ('{"op":"done"}', "done", None),
        ('{"op":"fail","reason":"no"}', "fail", None),
        ('{"op":"answer","text":"42"}', "answer", "42"),
    ):
        transcript, _, desktop = await solve([reply])
        assert (transcript.stop_reason, transcript.answer, desktop.actions) == (stopped, answer, 0)


async def test_mistakes_in_a_row_end_the_episode_and_a_good_step_forgives_them():
    transcript, _, _ = await solve(
        ["x", "x", BLUE, "x", "x", "x", "never asked"], config=AgentConfig(max_consecutive_errors=3), max_steps=20
    )
    assert transcript.stop_reason == "too_many_errors"
    assert len(transcript.steps) == 6


async def test_a_cut_reply_is_never_performed_and_is_reported_as_truncated():
    cut = (BLUE, "length")
    transcript, _, desktop = await solve([cut, cut, cut])
    assert transcript.stop_reason == "truncated"
    assert desktop.actions == 0
    assert "cut at 64 tokens" in str(transcript.steps[0].error)


async def test_running_out_of_steps_and_overflow_are_the_agents_own_end():
    transcript, _, _ = await solve([BLUE, RED], max_steps=2)
    assert transcript.stop_reason == "max_steps"
    transcript, _, _ = await solve([BLUE, (400, "context_length_exceeded")])
    assert transcript.stop_reason == "overflow"
    assert len(transcript.steps) == 1


@pytest.mark.parametrize("reply", [(500, None), (503, None), (401, "invalid_api_key"), (429, None), (400, "other")])
async def test_an_endpoint_that_fails_is_an_outage_and_is_asked_once(reply):
    endpoint = Endpoint([reply, BLUE])
    desktop = fake_desktop.PaintedDesktop()
    await desktop.reset(DesktopSpec("plain", 64, 48))
    with pytest.raises(InfrastructureError, match="http://model/v1"):
        await DesktopAgent().solve(desktop, "x", endpoint.client())
    assert len(endpoint.asked) == 1


async def test_an_endpoint_that_never_answers_is_an_outage():
    async def silence(request):
        await asyncio.sleep(60)

    http = httpx2.AsyncClient(transport=httpx2.MockTransport(silence))
    client = openai.AsyncOpenAI(base_url="http://model/v1", api_key="k", http_client=http, max_retries=0)
    desktop = fake_desktop.PaintedDesktop()
    await desktop.reset(DesktopSpec("plain", 64, 48))
    with pytest.raises(InfrastructureError, match=r"did not answer within 0\.05 s"):
        await DesktopAgent(reply_timeout_s=0.05).solve(desktop, "x", client)


async def test_a_desktop_that_fails_is_an_outage():
    with pytest.raises(InfrastructureError, match="told to fail"):
        await solve([BLUE], fake_desktop.PaintedDesktop(fail_at=1))


async def test_the_window_bounds_what_is_shown():
    transcript, endpoint, _ = await solve([BLUE] * 12, max_steps=12)
    shown = [sum(message["role"] == "user" for message in asked["messages"]) for asked in endpoint.asked]
    assert shown == [1, 2, 3, 4, 5, 6, 7, 8, 4, 5, 6, 7]
    assert len(transcript.steps) == 12


def images_shown(asked: dict) -> int:
    return sum(
        part["type"] == "image_url" for one in asked["messages"] if one["role"] == "user" for part in one["content"]
    )


async def test_where_it_may_it_drops_turns_until_the_conversation_fits_and_goes_on_from_there():
    too_long = (400, "context_length_exceeded")
    replies = [RED, "nonsense", RED, too_long, too_long, '{"op":"wait","seconds":0}', '{"op":"done"}']
    config = AgentConfig(prompt_style="full", dropped_turns="steps", on_overflow="drop", max_consecutive_errors=9)
    transcript, endpoint, _ = await solve(replies, config=config)
    assert transcript.stop_reason == "done"
    assert [images_shown(asked) for asked in endpoint.asked] == [1, 2, 3, 4, 2, 1, 2]
    told = endpoint.asked[5]["messages"][1]["content"][-1]["text"]
    assert f"1. {RED}\n2. nonsense (not performed: " in told
    assert f"3. {RED}" in told
    assert endpoint.asked[6]["messages"][1] == endpoint.asked[5]["messages"][1], (
        "the next call extends the one that fitted"
    )
    ended, endpoint, _ = await solve([RED, too_long], config=AgentConfig(on_overflow="end"))
    assert (ended.stop_reason, len(endpoint.asked)) == ("overflow", 2)
    ended, endpoint, _ = await solve([too_long], config=config)
    assert (ended.stop_reason, len(endpoint.asked)) == ("overflow", 1)
