"""Text dialects: what is emitted is parsed back exactly, every call that a prompt offers is parsed, and no reply is anything but
ops or a `ParseError`.

`DESKHAND_TEST_CASES=10000` asks more of the round trips.
"""

import dataclasses
import os
import random
import re
import time

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from deskhand.actions.formats import openadapt_text, opencua, pyautogui, uitars, waa_navi
from deskhand.actions.formats.base import ScreenView
from deskhand.actions.formats.limits import MAX_REPLY
from deskhand.actions.keys import NAMES
from deskhand.actions.ops import (
    TERMINAL_OPS,
    Answer,
    Click,
    Done,
    Drag,
    Fail,
    Key,
    KeyDown,
    KeyUp,
    MouseDown,
    MouseUp,
    Move,
    Point,
    Scroll,
    Type,
    Wait,
)
from deskhand.errors import AgentError, ParseError

EVERYONE = (
    pyautogui.FORMAT,
    openadapt_text.FORMAT,
    uitars.V1_0,
    uitars.V1_5,
    uitars.POINT,
    opencua.RELATIVE,
    opencua.QWEN25,
    waa_navi.FORMAT,
)
CASES = int(os.environ.get("DESKHAND_TEST_CASES", "100"))
VIEWS = (ScreenView.of_screen(1920, 1080), ScreenView.of_screen(640, 480), ScreenView(1280, 720, 1288, 728))
everyone = pytest.mark.parametrize("dialect", EVERYONE, ids=lambda action_format: action_format.name)
TRAPS = (
    "```", "</think>", "<think>", "Action: ", "')", "')\n", '")', "'''", '"""', "\\", "\\n", "#", ";", "DONE", "\nDONE\n", "wait()",
    "<|box_start|>(1,2)<|box_end|>", "{x}", "%s", "\r\n", "\u2028", "\x85", "\x00", "\x7f", "é", "日本", "🙂", "\u0301",
    "## Code:\n", "import os", "=SUM(A1:A3)", " ", "\t",
)  # fmt: skip

SPACES = " " * 190_000

texts = st.one_of(
    st.lists(st.sampled_from(TRAPS), max_size=5).map("".join),
    st.text(st.characters(exclude_categories=("Cs",)), max_size=20),
)
keys = st.one_of(
    st.sampled_from(sorted(set(NAMES) - {"numenter"})), st.sampled_from([chr(code) for code in range(0x21, 0x7F)])
)
chords = st.lists(keys, min_size=1, max_size=4).map(tuple)
modifiers = st.just(()) | st.lists(keys, min_size=1, max_size=2).map(tuple)
buttons = st.sampled_from(["left", "right", "middle"])
notches = st.integers(-100, 100)


def points(action_format, view):
    """Points in the dialect's own space, edges and fractions among them."""
    space = action_format.space(view)
    pixels = space.kind == "pixels"

    def along(extent):
        last = extent - 1 if pixels else extent
        return st.one_of(
            st.integers(0, int(last)), st.sampled_from([0, last]), st.floats(0, last, allow_subnormal=False)
        )

    return st.builds(Point, along(space.width), along(space.height), st.just(space))


def seconds(action_format):
    return st.just(5.0) if action_format.name.startswith("uitars") else st.floats(0, 15) | st.integers(0, 15)


def ops_that_are_carried(action_format, view):
    """Ops that the dialect carries without loss, one strategy a kind."""
    at = points(action_format, view)
    pair = st.tuples(at, at)
    found = [
        st.builds(Move, at),
        st.builds(Type, texts),
        st.builds(Key, chords),
        st.builds(Wait, seconds(action_format)),
    ]
    if action_format.name.startswith(("pyautogui", "opencua")):
        maybe = st.none() | at
        paths = pair | st.lists(at, min_size=3, max_size=5).map(tuple)
        found += [
            st.builds(Click, maybe, buttons, st.integers(1, 5), modifiers),
            st.builds(MouseDown, maybe, buttons),
            st.builds(MouseUp, maybe, buttons),
            st.builds(Drag, paths, buttons, modifiers),
            st.builds(Scroll, st.just(0), notches, maybe, modifiers),
            st.builds(Scroll, notches, st.just(0), maybe, modifiers),
            st.builds(KeyDown, keys),
            st.builds(KeyUp, keys),
        ]
        return st.one_of(found)
    places = st.none() | at if action_format.name == "waa_navi" else at
    amount = {"waa_navi": 3, "openadapt_text": 3}.get(action_format.name, 5)
    sideways = st.just(0) if action_format.name == "waa_navi" else st.sampled_from([-amount, amount])
    found += [
        st.builds(Click, places, st.just("left"), st.integers(1, 2)),
        st.builds(Click, places, st.just("right")),
        st.builds(Drag, pair),
        st.builds(Scroll, st.just(0), st.sampled_from([-amount, amount]), st.none() | at),
        st.builds(Scroll, sideways, st.just(0), st.none() | at).filter(lambda op: op.dx),
    ]
    if action_format.name == "waa_navi":
        found.pop()
    if action_format.name.startswith("uitars"):
        found += [st.builds(KeyDown, keys), st.builds(KeyUp, keys)]
    return st.one_of(found)


def endings(action_format):
    found = [st.just([]), st.just([Done()])]
    if action_format.name.startswith("opencua"):
        found += [st.builds(Fail, texts).map(lambda op: [op])]
    if not action_format.name.startswith(("pyautogui", "waa")):
        found += [st.builds(Answer, texts).map(lambda op: [op])]
    if action_format.name.startswith(("pyautogui", "waa", "uitars")):
        found += [st.just([Fail()])]
    return st.one_of(found)


def replies(action_format, view):
    several = st.tuples(st.lists(ops_that_are_carried(action_format, view), max_size=4), endings(action_format)).map(
        lambda pair: pair[0] + pair[1]
    )
    if action_format.name != "waa_navi":
        return several.filter(bool)
    return several.filter(bool).map(apart).filter(lambda ops: len(ops) == 1 or not isinstance(ops[-1], TERMINAL_OPS))


def apart(ops):
    """A move and what follows at the pointer are one op in WAA Navi; put something between them."""
    made = []
    for op in ops:
        if made and isinstance(made[-1], Move) and isinstance(op, (Click, Scroll)) and op.point is None:
            made.append(Key(("a",)))
        made.append(op)
    return made


@everyone
def test_what_is_emitted_is_parsed_back(action_format):
    cases = st.one_of([st.tuples(st.just(view), replies(action_format, view)) for view in VIEWS])

    @settings(max_examples=CASES, deadline=None, database=None)
    @given(cases)
    def check(case):
        round_trip(action_format, *case)

    check()


def round_trip(action_format, view, ops):
    assume(sum(op.seconds for op in ops if isinstance(op, Wait)) <= 60)
    text = action_format.emit(ops, view)
    assert action_format.parse(text, view) == ops
    assert action_format.parse(f"<think>\nI could also write:\n{text}\n</think>\n{text}", view) == ops


@everyone
def test_every_kind_of_op_is_carried_absent_or_lossy(action_format):
    view = VIEWS[0]
    at = Point(960, 540, view.screen)
    assert {support.kind for support in action_format.supported_ops.values()} <= {"lossless", "lossy", "absent"}
    for kind, support in action_format.supported_ops.items():
        fields = {item.name for item in dataclasses.fields(kind)}
        given = {
            "point": at,
            "path": (at, at),
            "keys": ("a",),
            "key": "a",
            "text": "a",
            "top_left": at,
            "bottom_right": at,
            "dy": 1,
        }
        op = kind(**{name: value for name, value in given.items() if name in fields})
        if support.kind == "absent":
            with pytest.raises(AgentError):
                action_format.emit([op], view)
        else:
            (read,) = action_format.parse(action_format.emit([op], view), view)
            assert type(read) is kind
            assert support.how or support.kind == "lossless"


@everyone
def test_the_last_pixel_is_reached_and_what_is_beyond_is_refused(action_format):
    for view in VIEWS:
        space = action_format.space(view)
        edge = (space.width - 1, space.height - 1) if space.kind == "pixels" else (space.width, space.height)
        (op,) = action_format.parse(action_format.emit([Click(Point(*edge, space))], view), view)
        assert op == Click(Point(*edge, space))
        beyond = space.width + (0 if space.kind == "pixels" else 1)
        text = action_format.emit([Click(Point(0, 0, space))], view)
        changed = re.sub(r"(x=|\(|<point>)0\b", rf"\g<1>{beyond:g}", text, count=1)
        assert changed != text
        with pytest.raises(ParseError, match="off the screen"):
            action_format.parse(changed, view)
        for wrong in (Point(beyond, 0, space), Point(-1, 0, space), Point(float("nan"), 0, space)):
            with pytest.raises(AgentError):
                action_format.emit([Click(wrong)], view)


@everyone
def test_a_point_of_the_screen_is_said_in_the_dialect_s_own_space(action_format):
    view = VIEWS[0]
    (op,) = action_format.parse(action_format.emit([Click(Point(1919, 0, view.screen))], view), view)
    assert op.point.space == action_format.space(view)


@everyone
@pytest.mark.parametrize(
    "ops",
    [
        [],
        [Done(), Done()],
        [Done(), Type("a")],
        [Type("\ud800")],
        [Type("a" * 20_001)],
        [Key(())],
        [Key(("nosuchkey",))],
        [Wait(31)],
        [Wait(float("inf"))],
        [Wait(25), Wait(25), Wait(25)],
        [Type("a")] * 65,
        [Scroll(dy=101)],
        [Click(None, "back")],
        [Click(None, count=0)],
    ],
    ids=lambda ops: repr(ops)[:40],
)
def test_what_goes_too_far_is_not_said(action_format, ops):
    with pytest.raises(AgentError) as caught:
        action_format.emit(ops, VIEWS[0])
    assert not isinstance(caught.value, ParseError)


@everyone
@pytest.mark.parametrize(
    "text",
    [
        "", " \n", "null", "[]", "{}", "I do not know what to do.", "```", "``````", "```python", "```python\n```", "<think>",
        "<think>hm</think>", "Action:", "Action: ", "Thought: yes", "\x00", "\ud800", "(" * 150_000, "a" * 199_999, "'" * 199_999,
        "`" * 199_999, "Action:" * 20_000, "\n" * 199_999, "<think>" * 20_000, "</think>" * 20_000, "```python\n" * 15_000,
        "x" * 10**6, "pyautogui.click(" * 60_000, f"```{SPACES}x```", f"## code{SPACES}x", "```\r" + "\r\n" * 90_000 + "x```",
        "Action: type(content='" + "' " * 90_000, f"Action: type(content=''{SPACES}", f"Action: click({SPACES}",
        f"action:{SPACES}x", f"{SPACES}pyautogui", f"done{SPACES}x", "```\r#\r" + "1+" * 90_000 + "1```",
        "Action: wait(" + "a" * 190_000, "Action: " + "wait()\n" * 20_000, "```\n" + "if 1:\n" * 2_000 + "```",
        "#" * 190_000 + "\ncode",
    ],
    ids=lambda text: f"{text[:12]!r}-{len(text)}",
)  # fmt: skip
def test_what_says_no_action_is_a_parse_error(action_format, text):
    begin = time.process_time()
    with pytest.raises(ParseError) as caught:
        action_format.parse(text, VIEWS[0])
    assert time.process_time() - begin < 3
    assert 0 <= caught.value.span[0] <= caught.value.span[1] <= len(text)


@everyone
def test_a_reply_of_a_million_characters_is_not_looked_at(action_format):
    text = action_format.emit([Type("a")], VIEWS[0])
    assert action_format.parse("<think>" + "w " * 50_000 + "</think>\n" + text, VIEWS[0]) == [Type("a")]
    with pytest.raises(ParseError, match=f"the most is {MAX_REPLY}"):
        action_format.parse("<think>" + "w " * 500_000 + "</think>\n" + text, VIEWS[0])


PIECES = (
    *TRAPS, "x=", "1e999", "99999999999999999999", "-1", "nan", "()", "(", ")", ",", "'", '"', "\\'", "[", "]", "None", "True",
    "**", "lambda:", "__import__('os')", "f'{1}'", "\n\n", "    ", "with pyautogui.hold('a'):\n    ", "\ud800", "time.sleep(1)",
    "Thought: ", "```python\n",
)  # fmt: skip


@everyone
def test_a_spoiled_reply_is_ops_or_a_parse_error(action_format):
    chance, view = random.Random(action_format.name), VIEWS[1]
    at, to = Point(9, 9, view.screen), Point(200, 100, view.screen)
    said = [
        Click(at),
        Click(at, "right"),
        Drag((at, to)),
        Type('it\'s "so"\n'),
        Key(("ctrl", "s")),
        Wait(1),
        Scroll(dy=3, point=at),
        Done(),
    ]
    good = [action_format.emit([op], view) for op in said] + [action_format.emit(said[:-1], view)]
    outcomes = set()
    for _ in range(400):
        text = chance.choice(good)
        for _ in range(chance.randint(1, 3)):
            start = chance.randrange(len(text) + 1)
            end = min(len(text), start + chance.choice((0, 0, 1, 3, 10)))
            text = text[:start] + chance.choice((*PIECES, "", "", chr(chance.randrange(32, 0x3000)))) + text[end:]
        found = read_or_refused(action_format, text, view)
        assert found
        outcomes.add(isinstance(found, ParseError))
        if isinstance(found, ParseError):
            assert 0 <= found.span[0] <= found.span[1] <= len(text)
            assert "\n" not in found.reason
    assert outcomes == {True, False}


def read_or_refused(action_format, text, view):
    try:
        return action_format.parse(text, view)
    except ParseError as error:
        return error
