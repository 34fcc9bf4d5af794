"""The agent loop: requests, recorded steps, errors, limits and outages."""

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


def images_shown(asked: dict) -> list[bytes]:
    """The images of one request."""
    parts = [part for message in asked["messages"] if message["role"] == "user" for part in message["content"]]
    urls = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
    return [base64.b64decode(url.partition(",")[2]) for url in urls]


def pixels_of(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))


async def test_it_looks_asks_does_and_ends_at_done(solve):
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
    shown = images_shown(endpoint.asked[1])
    for step, png in zip(transcript.steps, shown, strict=True):
        assert kept[step.frame_sha256] == png
        assert hashlib.sha256(pixels_of(png).tobytes()).hexdigest() == step.frame_sha256
    assert shown[0] != shown[1]
    assert transcript.last_frame_sha256 in kept


async def test_noise_images_do_not_depend_on_the_screen(solve):
    kept: dict[str, bytes] = {}

    async def keep_frame(frame):
        kept[frame.sha256] = frame.png()

    replies = [BLUE, '{"op":"done"}']
    transcript, endpoint, desktop = await solve(replies, config=AgentConfig(noise_images=True), keep_frame=keep_frame)
    first, second = map(pixels_of, images_shown(endpoint.asked[-1]))
    assert desktop.clicked == ["blue"], "the desktop itself is untouched"
    assert first.shape == (fake_desktop.HEIGHT, fake_desktop.WIDTH, 3)
    assert abs(first.mean() - 127.5) < 5
    assert not np.array_equal(first, second)
    assert [step.frame_sha256 for step in transcript.steps] == [
        hashlib.sha256(p.tobytes()).hexdigest() for p in (first, second)
    ]
    assert {step.frame_sha256 for step in transcript.steps} <= kept.keys()
    before = await fake_desktop.PaintedDesktop().reset(DesktopSpec("plain", 64, 48))
    noise = noise_frame(before, "seed").sha256
    assert noise == noise_frame(await desktop.observe(), "seed").sha256 != noise_frame(before, "other").sha256


async def test_errors_are_not_reported_without_error_feedback(solve):
    transcript, endpoint, _ = await solve(["click it", BLUE, '{"op":"done"}'], config=AgentConfig(error_feedback=False))
    assert transcript.num_errors == 1
    assert "not JSON" in str(transcript.steps[0].error)
    assert all("error" not in json.dumps(asked) for asked in endpoint.asked)


async def test_a_mistake_is_of_a_kind_and_only_whole_replies_count_as_bad_format(solve):
    class Narrow(fake_desktop.PaintedDesktop):
        async def perform(self, ops, *, action_id):
            if isinstance(ops[0], KeyDown):
                raise AgentError("unknown key 'foo'")
            return await super().perform(ops, action_id=action_id)

    replies = ["click it", BLUE, ('{"op":"cl', "length"), '{"op":"key_down","key":"foo"}', '{"op":"done"}']
    transcript, endpoint, _ = await solve(replies, desktop=Narrow())
    assert [step.reply_error for step in transcript.steps] == ["format", "", "truncated", "action", ""]
    assert (transcript.num_errors, transcript.num_format_errors, transcript.stop_reason) == (3, 1, "done")
    assert "error: unknown key 'foo'" in endpoint.asked[4]["messages"][-1]["content"][1]["text"]


async def test_any_action_format_works_and_its_prompt_is_the_system_message(solve):
    action_format = formats.get("anthropic_20250124")
    replies = ['I click. {"action": "left_click", "coordinate": [12, 38]}', '{"type": "text", "text": "It is blue"}']
    transcript, endpoint, desktop = await solve(
        replies, config=AgentConfig(action_format=action_format.name, prompt_style="full")
    )
    assert desktop.clicked == ["blue"]
    assert (transcript.stop_reason, transcript.answer) == ("answer", "It is blue")
    prompt = endpoint.asked[0]["messages"][0]
    assert prompt == {
        "role": "system",
        "content": action_format.prompt(ScreenView.of_screen(fake_desktop.WIDTH, fake_desktop.HEIGHT)),
    }
    assert f"{fake_desktop.WIDTH}x{fake_desktop.HEIGHT}" in prompt["content"]


async def test_mistakes_in_a_row_end_the_episode_and_a_good_step_forgives_them(solve):
    transcript, _, _ = await solve(
        ["x", "x", BLUE, "x", "x", "x", "never asked"], config=AgentConfig(max_consecutive_errors=3), max_steps=20
    )
    assert transcript.stop_reason == "too_many_errors"
    assert len(transcript.steps) == 6


async def test_running_out_of_steps_and_overflow_are_the_agents_own_end(solve):
    transcript, _, _ = await solve([BLUE, RED], max_steps=2)
    assert transcript.stop_reason == "max_steps"
    transcript, _, _ = await solve([BLUE, (400, "context_length_exceeded")])
    assert transcript.stop_reason == "overflow"
    assert len(transcript.steps) == 1


@pytest.mark.parametrize("reply", [(500, None), (503, None), (401, "invalid_api_key"), (429, None), (400, "other")])
async def test_an_endpoint_that_fails_is_an_outage_and_is_asked_once(reply, solve, make_endpoint):
    endpoint = make_endpoint([reply, BLUE])
    with pytest.raises(InfrastructureError, match="http://model/v1"):
        await solve(endpoint)
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


async def test_a_desktop_that_fails_is_an_outage(solve):
    with pytest.raises(InfrastructureError, match="told to fail"):
        await solve([BLUE], desktop=fake_desktop.PaintedDesktop(fail_at=1))


async def test_the_window_bounds_what_is_shown(solve):
    transcript, endpoint, _ = await solve([BLUE] * 12, max_steps=12)
    shown = [sum(message["role"] == "user" for message in asked["messages"]) for asked in endpoint.asked]
    assert shown == [1, 2, 3, 4, 5, 6, 7, 8, 4, 5, 6, 7]
    assert len(transcript.steps) == 12


async def test_where_it_may_it_drops_turns_until_the_conversation_fits_and_goes_on_from_there(solve):
    too_long = (400, "context_length_exceeded")
    replies = [RED, "nonsense", RED, too_long, too_long, '{"op":"wait","seconds":0}', '{"op":"done"}']
    config = AgentConfig(prompt_style="full", dropped_turns="steps", on_overflow="truncate", max_consecutive_errors=9)
    transcript, endpoint, _ = await solve(replies, config=config)
    assert transcript.stop_reason == "done"
    assert [len(images_shown(asked)) for asked in endpoint.asked] == [1, 2, 3, 4, 2, 1, 2]
    told = endpoint.asked[5]["messages"][1]["content"][-1]["text"]
    assert f"1. {RED}\n2. nonsense (not performed: " in told
    assert f"3. {RED}" in told
    assert endpoint.asked[6]["messages"][1] == endpoint.asked[5]["messages"][1], (
        "the next call extends the one that fitted"
    )
    ended, endpoint, _ = await solve([RED, too_long], config=AgentConfig(on_overflow="stop"))
    assert (ended.stop_reason, len(endpoint.asked)) == ("overflow", 2)
    ended, endpoint, _ = await solve([too_long], config=config)
    assert (ended.stop_reason, len(endpoint.asked)) == ("overflow", 1)
