"""UI-TARS and OpenAdapt's DSL: texts with unescaped quotes, places in every published form, and one "Action:" a
reply."""

import pytest

from deskhand.actions.formats import openadapt_text
from deskhand.actions.formats.base import ScreenView
from deskhand.actions.formats.uitars import POINT, V1_0, V1_5
from deskhand.actions.ops import (
    REL_1,
    REL_1000,
    Answer,
    Click,
    Done,
    Drag,
    Fail,
    Key,
    KeyDown,
    Move,
    Point,
    Scroll,
    Type,
    Wait,
)
from deskhand.errors import AgentError, ParseError

VIEW = ScreenView.of_screen(1920, 1080)


def read(action, action_format=V1_0):
    return action_format.parse(f"Thought: so\nAction: {action}", VIEW)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("hello", "hello"), ("It's", "It's"), ("'quoted'", "'quoted'"), (r"It\'s \"so\"", 'It\'s "so"'),
        (r"a\nb\tc\\d", "a\nb\tc\\d"), ("a\nb", "a\nb"), ("f('x', y='z')", "f('x', y='z')"),
        ("Action: wait()", "Action: wait()"), ("a)", "a)"), ("'", "'"), (r"\x60\u00e9\U0001F642\101", "`é🙂A"),
        (r"C:\dir\Users", r"C:\dir\Users"), (r"\U99999999", r"\U99999999"), ("", ""),
    ],
)  # fmt: skip
def test_a_text_is_read_whole(content, text):
    assert read(f"type(content='{content}')") == [Type(text)]


@pytest.mark.parametrize(
    "place",
    [
        "<|box_start|>(30,40)<|box_end|>", "(30,40)", " (30, 40) ", "[30,40]", "[20, 30, 40, 50]", "(20,30,40,50)",
        "<bbox>30 40</bbox>", "<bbox>20 30 40 50</bbox>", "<point>30 40</point>", "(30.0,40)",
    ],
)  # fmt: skip
@pytest.mark.parametrize("action_format", [V1_0, V1_5, POINT], ids=lambda action_format: action_format.name)
def test_a_place_is_read_in_every_form(action_format, place):
    for name in ("start_box", "point"):
        assert read(f"click({name}='{place}')", action_format) == [Click(Point(30, 40, action_format.space(VIEW)))]


@pytest.mark.parametrize(
    "place", ["", "30,40", "(30)", "(a,b)", "(1,2,3)", "(1,2)(3,4)", "<point>30,40</point>", "(1e400,2)", "(--1,2)"]
)
def test_what_is_no_place_is_refused(place):
    with pytest.raises(ParseError, match=r"place|bounds"):
        read(f"click(start_box='{place}')")


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        ("click(start_box='(1,2)') then wait()", "does not end"),
        ("click(start_box='(1,2)'); wait()", "does not end"),
        ("wait() wait()", "expected name"),
        ("wait(5)", "expected name"),
        ("click(start_box=(1,2))", "expected name"),
        ("os.system('id')", "expected an action"),
        ("__import__(name='os')", "not an action"),
        ("type('hello')", "expected name"),
        ("type(content='a', content='b')", "given twice"),
        ("hotkey(key='ctrl + c')", "between them"),
        ("hotkey(key='')", "between them"),
        ("hotkey(key='a b c d e f g')", "outside 1..6"),
        ("keydown(key='ctrl c')", "unknown key"),
        ("scroll(start_box='(1,2)', direction='DOWN ')", "one of"),
        ("wait()\nAction: wait()", "a second Action"),
        ("finished()\n\nwait()", "nothing may follow"),
        ("\n\n".join(["wait()"] * 13), "60 seconds"),
        ("\n\n".join(["hotkey(key='a')"] * 65), "more than 64"),
    ],
)
def test_what_is_not_an_action_is_refused_with_the_reason(action, reason):
    with pytest.raises(ParseError, match=reason):
        read(action)


def test_actions_are_parted_by_lines():
    ops = [Click(Point(1, 2, REL_1000)), Type("a\n\nb"), Key(("ctrl", "c")), Done()]
    assert read("click(start_box='(1,2)')\n\ntype(content='a\n\nb')\nhotkey(key='ctrl c')\n\nfinished()") == ops


def test_reasoning_may_speak_of_actions():
    assert V1_0.parse("Thought: not \"Action: wait()\" but\nAction: hotkey(key='a')", VIEW) == [Key(("a",))]
    assert V1_0.parse("<think>Action: wait()</think>Action: hotkey(key='a')", VIEW) == [Key(("a",))]
    assert V1_0.parse("Thought: press it. Action: hotkey(key='a')", VIEW) == [Key(("a",))]


def test_finished_ends_with_an_answer_or_without():
    assert read("finished()") == [Done()]
    assert read("finished(content='42')") == [Answer("42")]
    assert read("call_user()") == [Fail()]


def test_fixed_amounts_are_written_without_a_number():
    said = V1_0.emit([Scroll(dy=-20), Wait(0.5), Fail("why")], VIEW)
    assert V1_0.parse(said, VIEW) == [Scroll(dy=-5), Wait(5.0), Fail()]
    at = Point(1, 1, REL_1000)
    for op in (Scroll(1, 1), Scroll(), Click(None), Click(at, "middle"), Drag((at,) * 3)):
        with pytest.raises(AgentError, match="uitars_1_0"):
            V1_0.emit([op], VIEW)


def test_1_5_points_at_the_resized_image_and_1_0_at_a_thousandth():
    corner = Point(1919, 1079, VIEW.screen)
    assert V1_5.emit([Click(corner)], VIEW) == "Action: click(start_box='<|box_start|>(1931,1091)<|box_end|>')"
    assert V1_0.emit([Click(corner)], VIEW) == "Action: click(start_box='<|box_start|>(1000,1000)<|box_end|>')"
    assert POINT.emit([Move(corner)], VIEW) == "Action: hover(point='<point>1000 1000</point>')"


@pytest.mark.parametrize(
    ("action", "ops"),
    [
        ("CLICK(x=0.5, y=0.3)", [Click(Point(0.5, 0.3, REL_1))]),
        ("CLICK(0.5, 0.3)", [Click(Point(0.5, 0.3, REL_1))]),
        ("KEY(key='ctrl+shift+t')", [Key(("ctrl", "shift", "t"))]),
        ("KEY(key='+')", [Key(("+",))]),
        ("WAIT()\nTYPE(text='a, b')", [Wait(1.0), Type("a, b")]),
        ("SCROLL(direction='left')", [Scroll(dx=-3)]),
        ("DONE()", [Done()]),
    ],
)
def test_openadapt_s_actions_are_read_whole(action, ops):
    assert openadapt_text.FORMAT.parse(f"Thought: so\nAction: {action}", VIEW) == ops
    assert openadapt_text.FORMAT.parse(action, VIEW) == ops


@pytest.mark.parametrize(
    "action",
    [
        "CLICK(x=0.5)", "CLICK(x=1.01, y=0)", "KEY(ctrl+a)", "KEY(key='ctrl++')", "click(x=0.5, y=0.5)", "JUMP()",
        "CLICK(x=0.5, y=0.5) ok",
    ],
)  # fmt: skip
def test_openadapt_s_actions_are_never_taken_for_done(action):
    with pytest.raises(ParseError):
        openadapt_text.FORMAT.parse(f"Action: {action}", VIEW)
    with pytest.raises(AgentError):
        openadapt_text.FORMAT.emit([KeyDown("a")], VIEW)
