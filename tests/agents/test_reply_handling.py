"""Handling of replies in every action format: errors, truncation and terminal actions."""

import json

import fake_desktop
import httpx2
import openai
import pytest

from deskhand.actions import formats
from deskhand.actions.formats.arg_types import number
from deskhand.actions.formats.base import ScreenView
from deskhand.actions.ops import Answer, Click, Done, Fail, Point, Type, screen_px
from deskhand.agents.desktop_agent import AgentConfig, DesktopAgent
from deskhand.desktop.base import DesktopSpec

everyone = pytest.mark.parametrize("name", formats.available_formats())
VIEW = ScreenView.of_screen(fake_desktop.WIDTH, fake_desktop.HEIGHT)
CLICK = Click(Point(12, 38, screen_px(fake_desktop.WIDTH, fake_desktop.HEIGHT)))
"""On the blue square."""


async def solve(replies, config, **more):
    """Return (transcript, messages before each reply, desktop); a reply is a text or (text, finish_reason)."""
    told, replies = [], list(replies)

    def endpoint(request):
        told.append(json.loads(request.content)["messages"][-1]["content"][-1]["text"])
        reply = replies.pop(0)
        text, finish = reply if isinstance(reply, tuple) else (reply, "stop")
        choices = [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish}]
        body = {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": choices}
        return httpx2.Response(200, content=json.dumps(body), headers={"content-type": "application/json"})

    desktop, task = fake_desktop.PaintedDesktop(), fake_desktop.square_task(1)
    await desktop.reset(DesktopSpec("plain", task.width, task.height))
    await task.setup(desktop)
    http = httpx2.AsyncClient(transport=httpx2.MockTransport(endpoint))
    client = openai.AsyncOpenAI(base_url="http://model/v1", api_key="k", http_client=http, max_retries=0)
    return await DesktopAgent(config, **more).solve(desktop, "Click it", client), told, desktop


def end_of(dialect, kind):
    """A reply that ends the work so, or None where the dialect has no such word."""
    ends = {Done: Done(), Fail: Fail(), Answer: Answer("42")}
    return None if dialect.supported_ops[kind].kind == "absent" else dialect.emit([ends[kind]], VIEW)


@everyone
async def test_a_reply_that_is_not_understood_is_told_performs_nothing_and_the_episode_goes_on(name):
    dialect = formats.get(name)
    replies = ["I wonder.", dialect.emit([CLICK], VIEW), end_of(dialect, Done)]
    transcript, told, desktop = await solve(replies, AgentConfig(action_format=name))
    assert [step.reply_error for step in transcript.steps] == ["format", "", ""]
    assert (transcript.stop_reason, transcript.num_format_errors, desktop.actions) == ("done", 1, 1)
    assert desktop.clicked == ["blue"]
    assert told == ["Click it", f"Click it\nerror: {transcript.steps[0].error}", "Click it"]


@everyone
async def test_a_point_off_the_screen_is_told_and_never_moved_onto_it(name):
    dialect = formats.get(name)
    text = dialect.emit([CLICK], VIEW)
    place = dialect.parse(text, VIEW)[-1].point
    beyond = place.space.width + {"pixels": 0, "relative": 0.01 if place.space.width == 1 else 1}[place.space.kind]
    said = text.replace(number(place.x), number(beyond), 1)
    assert said != text
    transcript, told, desktop = await solve([said, end_of(dialect, Done)], AgentConfig(action_format=name))
    assert [step.reply_error for step in transcript.steps] == ["format", ""], said
    assert "off the screen" in told[1] or "is outside" in told[1]
    assert (desktop.clicked, desktop.actions) == ([], 0)


@everyone
async def test_a_cut_reply_is_not_performed_even_if_it_could_be_read(name):
    dialect = formats.get(name)
    whole = dialect.emit([CLICK], VIEW)
    config = AgentConfig(action_format=name, max_consecutive_errors=2, max_new_tokens=7)
    transcript, told, desktop = await solve([(whole, "length"), (whole[:-9], "length")], config)
    assert [step.reply_error for step in transcript.steps] == ["truncated", "truncated"]
    assert (transcript.stop_reason, transcript.num_format_errors, desktop.actions) == ("truncated", 0, 0)
    assert "cut at 7 tokens" in told[1]


@everyone
async def test_ends_keep_their_meaning(name):
    dialect = formats.get(name)
    for kind, stopped in ((Done, "done"), (Fail, "fail"), (Answer, "answer")):
        reply = end_of(dialect, kind)
        if reply is not None:
            transcript, _, desktop = await solve([reply], AgentConfig(action_format=name))
            assert (transcript.stop_reason, desktop.actions) == (stopped, 0)
            assert transcript.answer == ("42" if kind is Answer else None)


@everyone
async def test_mistakes_in_a_row_are_bounded(name):
    transcript, told, _ = await solve(["I wonder."] * 9, AgentConfig(action_format=name, max_consecutive_errors=4))
    assert (transcript.stop_reason, len(told)) == ("too_many_errors", 4)


@pytest.mark.parametrize("name", ["qwen25_vl", "uitars_1_5", "opencua_qwen25"])
async def test_pixels_of_the_resized_image_are_those_that_this_model_sees(name):
    """A checkpoint's own bounds on the image's area count, not those that its family has published."""
    dialect, size = formats.get(name), (128, 84)
    said = dialect.emit(
        [CLICK, Type("a")],
        ScreenView(fake_desktop.WIDTH, fake_desktop.HEIGHT, fake_desktop.WIDTH, fake_desktop.HEIGHT, size),
    )
    assert said != dialect.emit([CLICK, Type("a")], VIEW)
    end = end_of(dialect, Done)
    _, _, desktop = await solve(
        [said, end], AgentConfig(action_format=name), model_image_size=lambda width, height: size
    )
    assert desktop.clicked == ["blue"]


async def test_half_of_a_surrogate_pair_is_neither_typed_nor_the_end_of_the_episode():
    replies = ["\ud83d I wonder", '{"op":"type","text":"\ud83d\ude42 \\ud83d"}', '{"op":"done"}']
    transcript, _, desktop = await solve(replies, AgentConfig())
    assert [step.reply_error for step in transcript.steps] == ["format", "format", ""]
    assert [step.text[:1] for step in transcript.steps] == ["\ufffd", "{", "{"]
    assert "\U0001f642" in transcript.steps[1].text
    assert (transcript.stop_reason, desktop.typed) == ("done", "")
