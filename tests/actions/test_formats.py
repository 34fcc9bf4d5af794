"""Every registered format: round trips without silent changes, and only ops or a `ParseError` for any reply.

`DESKHAND_TEST_CASES=10000` runs more examples of every property.
"""

import os
import random
import re
import time

import action_cases as cases
import pytest
from hypothesis import HealthCheck, given, settings

from deskhand.actions import formats
from deskhand.actions.formats.call_format import CallActionFormat
from deskhand.actions.formats.limits import MAX_REPLY
from deskhand.actions.ops import TERMINAL_OPS, Click, Done, Key, Point, Scroll, Type, Wait
from deskhand.errors import AgentError, ConfigError, ParseError

CASES = int(os.environ.get("DESKHAND_TEST_CASES", "60"))
everyone = pytest.mark.parametrize("name", formats.available_formats())
CALL_FORMATS = [name for name in formats.available_formats() if isinstance(formats.get(name), CallActionFormat)]
call_formats = pytest.mark.parametrize("name", CALL_FORMATS)
SPACES = " " * 190_000
quick = settings(max_examples=CASES, deadline=None, suppress_health_check=list(HealthCheck), database=None)


@everyone
@pytest.mark.parametrize("strategy", [cases.one_op, cases.some_ops], ids=["one", "several"])
def test_ops_round_trip(name, strategy):
    action_format = formats.get(name)

    @quick
    @given(cases.in_any_view(strategy, action_format))
    def check(case):
        cases.round_trip(action_format, *case)

    check()


@everyone
@pytest.mark.parametrize("view", cases.VIEWS, ids=str)
def test_every_op_is_supported_as_declared(name, view):
    action_format = formats.get(name)
    assert set(action_format.supported_ops) == set(cases.KINDS)
    for kind, support in action_format.supported_ops.items():
        op = cases.sample_op(kind, view)
        if support.kind == "absent":
            with pytest.raises(AgentError):
                action_format.emit([op], view)
        else:
            assert support.kind in ("lossless", "lossy")
            assert support.how or support.kind == "lossless"
            assert cases.round_trip(action_format, view, [op]) is not None, f"{kind.__name__} is rejected"


@everyone
def test_most_generated_ops_are_expressible(name):
    """Ensures that the round trips above test something; derandomized, because the share of random examples varies."""
    action_format, view = formats.get(name), cases.VIEWS[1]
    emitted: list[bool] = []

    @settings(quick, max_examples=200, derandomize=True)
    @given(cases.one_op(action_format, view))
    def count(op):
        emitted.append(cases.round_trip(action_format, view, [op]) is not None)

    count()
    assert sum(emitted) > 0.4 * len(emitted)


@everyone
def test_a_corrupted_reply_is_ops_or_a_parse_error(name):
    action_format, chance = formats.get(name), random.Random(name)
    texts = [
        action_format.emit([op], view)
        for view in cases.VIEWS[:2]
        for op in map(cases.sample_op, cases.supported(action_format), [view] * 99)
    ]
    for text in texts:
        cases.parse_or_error(action_format, text, cases.VIEWS[0])  # import what parsing needs before the audit
    outcomes = set()
    for number in range(CASES * 10):
        view = cases.VIEWS[number % len(cases.VIEWS)]
        text = cases.corrupted(chance.choice(texts), texts, chance)
        with cases.audited() as executed:
            found = cases.parse_or_error(action_format, text, view)
        assert not executed, text
        assert isinstance(found, Exception) or found
        outcomes.add(isinstance(found, Exception))
    assert outcomes == {True, False}


@everyone
def test_nothing_may_follow_a_terminal_op(name):
    action_format, view = formats.get(name), cases.VIEWS[0]
    supported = cases.supported(action_format)
    for kind in {*supported} & {*TERMINAL_OPS}:
        with pytest.raises(AgentError):
            action_format.emit([cases.sample_op(kind, view), cases.sample_op(supported[0], view)], view)


@everyone
@pytest.mark.parametrize(
    "text",
    [
        "", " \n", "null", "[]", "{}", "I do not know what to do.", "```", "``````", "```python", "```python\n```",
        "<think>", "<think>hm</think>", "Action:", "Action: ", "Thought: yes", "\x00", "\ud800", "(" * 150_000,
        "a" * 199_999, "'" * 199_999, "`" * 199_999, "Action:" * 20_000, "\n" * 199_999, "<think>" * 20_000,
        "</think>" * 20_000, "```python\n" * 15_000,
        "x" * 10**6, "pyautogui.click(" * 60_000, f"```{SPACES}x```", f"## code{SPACES}x",
        "```\r" + "\r\n" * 90_000 + "x```", "Action: type(content='" + "' " * 90_000,
        f"Action: type(content=''{SPACES}", f"Action: click({SPACES}",
        f"action:{SPACES}x", f"{SPACES}pyautogui", f"done{SPACES}x", "```\r#\r" + "1+" * 90_000 + "1```",
        "Action: wait(" + "a" * 190_000, "Action: " + "wait()\n" * 20_000, "```\n" + "if 1:\n" * 2_000 + "```",
        "#" * 190_000 + "\ncode",
    ],
    ids=lambda text: f"{text[:12]!r}-{len(text)}",
)  # fmt: skip
def test_replies_without_an_action_are_parse_errors_within_time(name, text):
    action_format = formats.get(name)
    begin = time.process_time()
    with pytest.raises(ParseError) as caught:
        action_format.parse(text, cases.VIEWS[0])
    assert time.process_time() - begin < 3
    assert 0 <= caught.value.span[0] <= caught.value.span[1] <= len(text)


@call_formats
@pytest.mark.parametrize(
    "ops",
    [
        [], [Done(), Done()], [Done(), Type("a")], [Type("\ud800")], [Type("a" * 20_001)], [Key(())],
        [Key(("nosuchkey",))], [Wait(31)], [Wait(float("inf"))], [Wait(25), Wait(25), Wait(25)], [Type("a")] * 65,
        [Scroll(dy=101)], [Click(None, "back")], [Click(None, count=0)],
    ],
    ids=lambda ops: repr(ops)[:40],
)  # fmt: skip
def test_ops_beyond_the_limits_are_rejected(name, ops):
    action_format = formats.get(name)
    with pytest.raises(AgentError) as caught:
        action_format.emit(ops, cases.VIEWS[0])
    assert not isinstance(caught.value, ParseError)


@everyone
@pytest.mark.parametrize("view", cases.VIEWS, ids=str)
def test_points_off_the_screen_are_not_emitted(name, view):
    action_format = formats.get(name)
    for kind in cases.supported(action_format):
        op = cases.sample_op(kind, view)
        for shift in (view.screen_width, -view.screen_width):
            moved = cases.shifted(op, shift)
            if moved != op:
                with pytest.raises(AgentError):
                    action_format.emit([moved], view)


@everyone
def test_the_corners_of_the_screen_round_trip(name):
    action_format = formats.get(name)
    for view in cases.VIEWS:
        for x in (0, view.screen_width - 1):
            for y in (0, view.screen_height - 1):
                cases.clicks_at(action_format, view, x, y)


@call_formats
def test_the_edge_of_the_space_is_accepted_and_beyond_is_rejected(name):
    action_format = formats.get(name)
    for view in cases.VIEWS:
        space = action_format.space(view)
        edge = (space.width - 1, space.height - 1) if space.kind == "pixels" else (space.width, space.height)
        (op,) = action_format.parse(action_format.emit([Click(Point(*edge, space))], view), view)
        assert op == Click(Point(*edge, space))
        beyond = space.width + (0 if space.kind == "pixels" else 1)
        text = action_format.emit([Click(Point(0, 0, space))], view)
        changed = re.sub(r"(x=|\(|\[|<point>)0\b", rf"\g<1>{beyond:g}", text, count=1)
        assert changed != text
        with pytest.raises(ParseError, match="off the screen"):
            action_format.parse(changed, view)
        for wrong in (Point(beyond, 0, space), Point(-1, 0, space), Point(float("nan"), 0, space)):
            with pytest.raises(AgentError):
                action_format.emit([Click(wrong)], view)


@call_formats
def test_screen_points_are_converted_to_the_space_of_the_format(name):
    action_format = formats.get(name)
    view = cases.VIEWS[1]
    (op,) = action_format.parse(action_format.emit([Click(Point(1919, 0, view.screen))], view), view)
    assert op.point.space == action_format.space(view)


@call_formats
def test_reasoning_is_skipped_and_an_oversized_reply_is_rejected(name):
    action_format = formats.get(name)
    text = action_format.emit([Type("a")], cases.VIEWS[0])
    assert action_format.parse("<think>" + "w " * 50_000 + "</think>\n" + text, cases.VIEWS[0]) == [Type("a")]
    with pytest.raises(ParseError, match=f"the most is {MAX_REPLY}"):
        action_format.parse("<think>" + "w " * 500_000 + "</think>\n" + text, cases.VIEWS[0])


def test_an_unknown_format_gets_suggestions():
    with pytest.raises(ConfigError, match="'qwen25_vl'"):
        formats.get("qwen2_vl")
    with pytest.raises(ConfigError, match="known: deskhand_json"):
        formats.get("zzz")


@everyone
def test_formats_are_registered_by_name(name):
    assert formats.get(name).name == name
    assert formats.get(name).prompt(cases.VIEWS[0]).strip()
