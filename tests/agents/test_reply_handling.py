"""Handling of replies in every action format: errors, truncation and terminal actions."""

import fake_desktop
import pytest

from deskhand.actions import formats
from deskhand.actions.formats.arg_types import number
from deskhand.actions.formats.base import ScreenView
from deskhand.actions.ops import Answer, Click, Done, Fail, Point, Type, screen_px
from deskhand.agents.desktop_agent import AgentConfig

everyone = pytest.mark.parametrize("name", formats.available_formats())
VIEW = ScreenView.of_screen(fake_desktop.WIDTH, fake_desktop.HEIGHT)
CLICK = Click(Point(12, 38, screen_px(fake_desktop.WIDTH, fake_desktop.HEIGHT)))
"""On the blue square."""


def end_of(action_format, kind):
    """A reply that ends the work so, or None where the action_format has no such word."""
    ends = {Done: Done(), Fail: Fail(), Answer: Answer("42")}
    return None if action_format.supported_ops[kind].kind == "absent" else action_format.emit([ends[kind]], VIEW)


@everyone
async def test_a_reply_that_cannot_be_parsed_is_reported_and_performs_nothing(name, solve):
    action_format = formats.get(name)
    replies = ["I wonder.", action_format.emit([CLICK], VIEW), end_of(action_format, Done)]
    transcript, endpoint, desktop = await solve(replies, AgentConfig(action_format=name))
    assert [step.reply_error for step in transcript.steps] == ["format", "", ""]
    assert (transcript.stop_reason, transcript.num_format_errors, desktop.actions) == ("done", 1, 1)
    assert desktop.clicked == ["blue"]
    first, *later = endpoint.last_texts()
    assert later == [f"{first}\nerror: {transcript.steps[0].error}", first]


@everyone
async def test_a_point_off_the_screen_is_reported_and_never_moved_onto_it(name, solve):
    action_format = formats.get(name)
    text = action_format.emit([CLICK], VIEW)
    place = action_format.parse(text, VIEW)[-1].point
    beyond = place.space.width + {"pixels": 0, "relative": 0.01 if place.space.width == 1 else 1}[place.space.kind]
    said = text.replace(number(place.x), number(beyond), 1)
    assert said != text
    transcript, endpoint, desktop = await solve([said, end_of(action_format, Done)], AgentConfig(action_format=name))
    assert [step.reply_error for step in transcript.steps] == ["format", ""], said
    assert "off the screen" in endpoint.last_texts()[1] or "is outside" in endpoint.last_texts()[1]
    assert (desktop.clicked, desktop.actions) == ([], 0)


@everyone
async def test_a_cut_reply_is_not_performed_even_if_it_could_be_read(name, solve):
    action_format = formats.get(name)
    whole = action_format.emit([CLICK], VIEW)
    config = AgentConfig(action_format=name, max_consecutive_errors=2, max_new_tokens=7)
    transcript, endpoint, desktop = await solve([(whole, "length"), (whole[:-9], "length")], config)
    assert [step.reply_error for step in transcript.steps] == ["truncated", "truncated"]
    assert (transcript.stop_reason, transcript.num_format_errors, desktop.actions) == ("truncated", 0, 0)
    assert "cut at 7 tokens" in endpoint.last_texts()[1]


@everyone
async def test_ends_keep_their_meaning(name, solve):
    action_format = formats.get(name)
    for kind, stopped in ((Done, "done"), (Fail, "fail"), (Answer, "answer")):
        reply = end_of(action_format, kind)
        if reply is not None:
            transcript, _, desktop = await solve([reply], AgentConfig(action_format=name))
            assert (transcript.stop_reason, desktop.actions) == (stopped, 0)
            assert transcript.answer == ("42" if kind is Answer else None)


@everyone
async def test_mistakes_in_a_row_are_bounded(name, solve):
    transcript, endpoint, _ = await solve(["I wonder."] * 9, AgentConfig(action_format=name, max_consecutive_errors=4))
    assert (transcript.stop_reason, len(endpoint.asked)) == ("too_many_errors", 4)


@pytest.mark.parametrize("name", ["qwen25_vl", "uitars_1_5", "opencua_qwen25"])
async def test_pixels_of_the_resized_image_are_those_that_this_model_sees(name, solve):
    """A checkpoint's own bounds on the image's area count, not those that its family has published."""
    action_format, size = formats.get(name), (128, 84)
    said = action_format.emit(
        [CLICK, Type("a")],
        ScreenView(fake_desktop.WIDTH, fake_desktop.HEIGHT, fake_desktop.WIDTH, fake_desktop.HEIGHT, size),
    )
    assert said != action_format.emit([CLICK, Type("a")], VIEW)
    end = end_of(action_format, Done)
    _, _, desktop = await solve(
        [said, end], AgentConfig(action_format=name), model_image_size=lambda width, height: size
    )
    assert desktop.clicked == ["blue"]


async def test_half_of_a_surrogate_pair_is_neither_typed_nor_the_end_of_the_episode(solve):
    replies = ["\ud83d I wonder", '{"op":"type","text":"\ud83d\ude42 \\ud83d"}', '{"op":"done"}']
    transcript, _, desktop = await solve(replies, AgentConfig())
    assert [step.reply_error for step in transcript.steps] == ["format", "format", ""]
    assert [step.text[:1] for step in transcript.steps] == ["\ufffd", "{", "{"]
    assert "\U0001f642" in transcript.steps[1].text
    assert (transcript.stop_reason, desktop.typed) == ("done", "")
